"""Runs of the built-in model, {SGD, AdamW} × {mean, std-normalised advantages} × G, and what they say of the laws of reward curves
and of the mean field."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from delphic.config import RunConfig, make_config
from delphic.dynamics.backtest import Trial, summarise, trial
from delphic.dynamics.fitting import fit_all, fit_level, make_curve
from delphic.reproduce.claims import Claim, Verdict, text
from delphic.reproduce.runs import NO_CLIPPING, Course, recorded
from delphic.statistics.interval import Interval, mean_interval

PAPER = "arXiv 2606.30789"
SIZES = (4, 16, 64)
SCALES = {"mean": "none", "std": "std"}
PROMPTS, SAMPLES = 4, 4  # prompts of a step; completions of a held-out problem
RATES = {("sgd", "mean"): 2e-3, ("sgd", "std"): 1e-3, ("adamw", "mean"): 1e-4, ("adamw", "std"): 1e-4}
SHARE = "share of p̄(1−p̄) that lies between prompts"
Row = dict[str, Any]
Courses = dict[tuple[str, str], dict[int, list[Course]]]


def model_config(optimiser: str, scale: str, size: int, seed: int, steps: int, problems: int) -> RunConfig:
    content: dict[str, Any] = {
        "seed": seed,
        "objective": {"preset": "rloo", "scale": SCALES[scale]},
        "model": {"threads": 1},
        "sampling": {"prompts": PROMPTS, "completions": size, "max_new_tokens": 6},
        "train": {
            "steps": steps,
            "optimizer": optimiser,
            "learning_rate": RATES[optimiser, scale],
            "max_grad_norm": NO_CLIPPING,
            "reference_every": 0,
            "estimate": False,
        },
        "evaluation": {"problems": problems, "samples": SAMPLES},
    }
    return make_config(content, "reproduce")


def model_courses(folder: Path, seeds: int, steps: int, problems: int, note: Callable[[str], None]) -> Courses:
    """(optimiser, scale) → G → runs, a seed each."""

    def one(optimiser: str, scale: str, size: int, seed: int) -> Course:
        config = model_config(optimiser, scale, size, seed, steps, problems)
        return recorded(config, (steps // 2, steps), folder / "runs.jsonl", note)

    return {
        (optimiser, scale): {size: [one(optimiser, scale, size, seed) for seed in range(seeds)] for size in SIZES}
        for optimiser, scale in product(("sgd", "adamw"), SCALES)
    }


def law_rows(courses: Courses) -> tuple[list[Row], Row]:
    """(a row a law: how often the best by AICc, and its distance to the three-phase law; forecasts half-way) on the runs of the
    largest G, whose curves have the least noise."""
    found: list[dict[str, float]] = []
    trials: list[Trial] = []
    for (optimiser, scale), runs in courses.items():
        for course in runs[SIZES[-1]]:
            steps = np.arange(1, len(course.reward) + 1)
            curve = make_curve(steps, course.reward)
            fits, _ = fit_all(curve, (0.5, 0.5))
            found.append({f.law.name: f.aicc for f in fits} | {"last_value": fit_level(curve).aicc})
            trials.append(trial(f"{optimiser}, {scale}", "built-in", steps, course.reward, 0.5, (0.0, 1.0)))
    rows = []
    for name in found[0]:
        behind = np.array([f[name] - f["three_phase"] for f in found])
        best = sum(min(f, key=lambda k: f[k]) == name for f in found)
        beaten = int((behind > 2).sum())
        rows.append(
            {
                "law": name,
                "runs": len(found),
                "best by AICc": best,
                "median AICc − three-phase": float(np.median(behind)),
            }
            | {"three-phase better by 2": beaten, "three-phase worse by 2": int((behind < -2).sum())}
        )
    return rows, summarise(trials)[0]


def mean_field_row(values: np.ndarray, step: int, samples: int = 0) -> Row:
    """The order parameter p̄, the deviation of p over prompts, and how far the mean field p̄(1−p̄) overstates E p(1−p).

    Args:
        values: [P] p of each prompt, exact; or means of so many 0/1 `samples`, whose own noise is then taken out.
    """
    mean = float(values.mean())
    own = float((values * (1 - values)).mean())
    inside = own * samples / (samples - 1) if samples else own
    spread = max(mean * (1 - mean) - inside, 0.0)
    return {"step": step, "p̄": mean, "deviation over prompts": spread**0.5} | {
        SHARE: spread / (mean * (1 - mean)) if 0 < mean < 1 else 0.0
    }


def mean_field_rows(courses: Courses, steps: int) -> tuple[list[Row], Interval]:
    """(rows of the built-in model, all seeds of a setting together; by how much the share between prompts grew, over runs)."""
    rows, grown = [], []
    for (optimiser, scale), runs in courses.items():
        last = runs[SIZES[-1]]
        for step in (0, steps // 2, steps):
            each = [mean_field_row(c.held_out[step], step, SAMPLES) for c in last]
            rows.append(
                {"optimiser": optimiser, "advantage": scale}
                | {k: float(np.mean([r[k] for r in each])) for k in each[0]}
            )
        grown += [
            mean_field_row(c.held_out[steps], steps, SAMPLES)[SHARE] - mean_field_row(c.held_out[0], 0, SAMPLES)[SHARE]
            for c in last
        ]
    return rows, mean_interval(np.array(grown))


def law_claim(laws: list[Row], quick: bool) -> Claim:
    single = next(row for row in laws if row["law"] == "exponential")
    best = max(laws, key=lambda row: row["best by AICc"])
    better, worse = single["three-phase better by 2"], single["three-phase worse by 2"]
    won: Verdict = "cannot tell"
    if not quick and max(better, worse) > single["runs"] / 2:
        won = "holds" if better > worse else "does not hold"
    return Claim(
        "The three-phase law describes reward curves better than a single exponential",
        PAPER,
        f"on {single['runs']} runs of the built-in model: better by 2 of AICc in {better}, worse in {worse}; most often best: "
        f"{best['law']} ({best['best by AICc']})",
        won,
    )


def mean_field_claim(grown: Interval, bandit: list[Row], quick: bool) -> Claim:
    """grown: of the model's runs. bandit: rows along a path."""
    widened: Verdict = "cannot tell"
    if not quick and grown.excludes_zero:
        widened = "holds" if grown.low > 0 else "does not hold"
    return Claim(
        "built-in model: the spread of p over prompts widens, so that one order parameter no longer summarises the policy",
        PAPER + " (erosion of the mean field)",
        f"the share of p̄(1−p̄) between prompts changes by {text(grown, 3)}; a bandit, for comparison: {bandit[0][SHARE]:.2f} at "
        f"the start, at most {max(r[SHARE] for r in bandit):.2f}, {bandit[-1][SHARE]:.2f} at the end",
        widened,
    )
