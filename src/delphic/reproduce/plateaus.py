"""Does the group size change where training ends, or only how much it fluctuates? SGD and Adam, mean and std-normalised advantages,
in a bandit (with and without a KL anchor) and on the built-in model; and what those runs say of the laws and of the mean field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from delphic.config import RunConfig, make_config
from delphic.dynamics.backtest import Trial, summarise, trial
from delphic.dynamics.bandit import Bandit
from delphic.dynamics.bandit_run import Anchor, Optimiser, Plan, train
from delphic.dynamics.fitting import fit_all, fit_level, make_curve
from delphic.objective import build
from delphic.reproduce.claims import Claim, Outcome, Part, Verdict, text
from delphic.reproduce.forecasts import mixed_bandit
from delphic.reproduce.runs import NO_CLIPPING, Course, recorded
from delphic.statistics.interval import Interval

PAPER = "arXiv 2606.30789"
SIZES = (4, 16, 64)
MARGIN = 0.02
SCALES = {"mean": "none", "std": "std"}
ANCHOR = 0.5  # strong enough to keep the level away from 1
PROMPTS = 4  # a step of the model's runs
RATES = {("sgd", "mean"): 2e-3, ("sgd", "std"): 1e-3, ("adamw", "mean"): 1e-4, ("adamw", "std"): 1e-4}
Row = dict[str, Any]


# -- comparisons ---------------------------------------------------------------------------------------------------


def mean_interval(values: np.ndarray, level: float = 0.95) -> Interval:
    """Student's t over independent runs."""
    half = float(student.ppf(0.5 + level / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return Interval(float(values.mean()), float(values.mean()) - half, float(values.mean()) + half)


def equivalence(difference: np.ndarray) -> str:
    """Two one-sided tests at 5 %: "equal" within ± MARGIN, "apart" by more than it, or "cannot tell"."""
    found = mean_interval(difference, 0.90)
    if found.low > -MARGIN and found.high < MARGIN:
        return "equal"
    return "apart" if found.low > MARGIN or found.high < -MARGIN else "cannot tell"


def fluctuation(levels: np.ndarray) -> np.ndarray:
    """[R] variance around a straight line of curves [R, T]."""
    t = np.arange(levels.shape[1]) - (levels.shape[1] - 1) / 2
    rest = levels - levels.mean(1, keepdims=True)
    slope = rest @ t / (t @ t)
    return ((rest - slope[:, None] * t) ** 2).sum(1) / (len(t) - 2)


def exponent(variances: Sequence[np.ndarray]) -> Interval:
    """Slope of log variance on log G over the runs; −1 is "∝ 1/G". variances: [R] of each of SIZES."""
    x = np.log(SIZES) - np.mean(np.log(SIZES))
    y = np.log(np.array(variances)).T  # [R, sizes]
    return mean_interval(y @ x / (x @ x))


def error_exponent(bandit: Bandit, theta: np.ndarray) -> float:
    """Slope of log(c₁/B + c₂/(BG) + c₃/(BG(G−1))) on log G over SIZES, at one policy [D]."""
    c1, c2, c3 = bandit.moments(theta).constants
    G = np.array(SIZES)
    return float(np.polyfit(np.log(G), np.log(c1 + c2 / G + c3 / (G * (G - 1))), 1)[0])


def _row(about: Row, ends: dict[int, np.ndarray], variances: dict[int, np.ndarray]) -> Row:
    """A row of either table: the level of each G, the farthest pair, the exponent of the fluctuation."""
    pairs = [(a, b) for a in SIZES for b in SIZES if a < b]
    verdicts = [equivalence(ends[b] - ends[a]) for a, b in pairs]
    far = max(pairs, key=lambda p: abs((ends[p[1]] - ends[p[0]]).mean()))
    found = exponent([variances[G] for G in SIZES])
    return (
        about
        | {f"G = {G}": float(ends[G].mean()) for G in SIZES}
        | {"largest difference": text(mean_interval(ends[far[1]] - ends[far[0]], 0.90), 3)}
        | {"levels": "apart" if "apart" in verdicts else "cannot tell" if "cannot tell" in verdicts else "equal"}
        | {"exponent of the fluctuation": text(found, 2)}
        | {"∝ 1/G": "yes" if found.low <= -1 <= found.high else "no"}
    )


# -- the bandit ----------------------------------------------------------------------------------------------------


def bandit_rows(replicas: int, steps: int, note: Callable[[str], None]) -> tuple[list[Row], list[Row]]:
    """(a row a setting; the spread of V over prompts along the way, plain SGD). Level: exact J, mean of the last third.

    With many prompts a step's draw of prompts is noise that no G averages out (c₁/B); with one prompt there is none. The
    baseline's part c₃/(BG(G−1)) falls faster than 1/G.
    """
    many, start = mixed_bandit(np.random.default_rng(5), 24, 4, 8)
    one = Bandit.tabular(np.array([[0.0, 0.5, 1.0]]))
    worlds = [(many, start, ANCHOR), (many, start, 0.0), (one, np.zeros(3), ANCHOR)]
    rows, spread = [], []
    for optimiser, scale, (bandit, begin, anchor) in product(("sgd", "adam"), SCALES, worlds):
        ends, variances = {}, {}
        for size in SIZES:
            plan = Plan(
                build({"preset": "rloo", "scale": SCALES[scale]}),
                prompts=min(8, len(bandit.rewards)),
                completions=size,
                optimiser=Optimiser("sgd", 0.3) if optimiser == "sgd" else Optimiser("adam", 0.01),
                anchor=Anchor(anchor) if anchor else None,
            )
            trace = train(bandit, plan, np.repeat(begin[None], replicas, 0), steps, size, every=5, keep_theta=True)
            late = trace.reward[-len(trace.reward) // 3 :].T
            ends[size], variances[size] = late.mean(1), fluctuation(late)
            if (optimiser, scale, anchor, size) == ("sgd", "mean", 0.0, 16):
                assert trace.theta is not None
                at = np.linspace(0, len(trace.steps) - 1, 5).round().astype(int)
                spread = [mean_field_row(bandit.values(trace.theta[k, 0]), int(trace.steps[k])) for k in at]
        about = {"optimiser": optimiser, "advantage": scale, "prompts": len(bandit.rewards), "KL anchor": anchor}
        found = _row(about, ends, variances)
        if scale == "mean":  # what the noise of the gradient alone would do
            found["exponent of the gradient's error"] = error_exponent(bandit, trace.last.mean(0))
        rows.append(found)
        note(f"bandit: {_where(found)}")
    return rows, spread


# -- the built-in model --------------------------------------------------------------------------------------------


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
        "evaluation": {"problems": problems, "samples": 4},
    }
    return make_config(content, "reproduce")


Courses = dict[tuple[str, str], dict[int, list[Course]]]


def model_courses(folder: Path, seeds: int, steps: int, problems: int, note: Callable[[str], None]) -> Courses:
    """(optimiser, scale) → G → runs, a seed each."""

    def one(optimiser: str, scale: str, size: int, seed: int) -> Course:
        config = model_config(optimiser, scale, size, seed, steps, problems)
        return recorded(config, (steps // 2, steps), folder / "runs.jsonl", note)

    return {
        (optimiser, scale): {size: [one(optimiser, scale, size, seed) for seed in range(seeds)] for size in SIZES}
        for optimiser, scale in product(("sgd", "adamw"), SCALES)
    }


def model_rows(courses: Courses, steps: int) -> tuple[list[Row], list[Row]]:
    """(a row a setting: held-out accuracy after the last step, fluctuation of the logged reward over the last half; what that
    fluctuation is made of). The logged reward varies by its prompts as well, which no G averages out."""
    rows, parts = [], []
    for (optimiser, scale), runs in courses.items():
        ends = {size: np.array([c.held_out[steps].mean() for c in runs[size]]) for size in SIZES}
        late = {size: np.array([c.reward[steps // 2 :] for c in runs[size]]) for size in SIZES}
        variances = {size: fluctuation(late[size]) for size in SIZES}
        rows.append(_row({"optimiser": optimiser, "advantage": scale}, ends, variances))
        for size in SIZES:
            within = float(np.mean([c.within for c in runs[size]])) / (PROMPTS * size)
            total = float(variances[size].mean())
            parts.append(
                {"optimiser": optimiser, "advantage": scale, "G": size, "variance of the logged reward": total}
                | {"of it sampling, V_within/(BG)": within, "the rest: prompts and policy": total - within}
            )
    return rows, parts


# -- the laws and the mean field on those runs -----------------------------------------------------------------------


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
        "share of p̄(1−p̄) that lies between prompts": spread / (mean * (1 - mean)) if 0 < mean < 1 else 0.0
    }


def mean_field_rows(courses: Courses, steps: int) -> tuple[list[Row], Interval]:
    """(rows of the built-in model, all seeds of a setting together; by how much the share between prompts grew, over runs)."""
    rows, grown = [], []
    name = "share of p̄(1−p̄) that lies between prompts"
    for (optimiser, scale), runs in courses.items():
        last = runs[SIZES[-1]]
        for step in (0, steps // 2, steps):
            each = [mean_field_row(c.held_out[step], step, 4) for c in last]
            rows.append(
                {"optimiser": optimiser, "advantage": scale}
                | {k: float(np.mean([r[k] for r in each])) for k in each[0]}
            )
        grown += [
            mean_field_row(c.held_out[steps], steps, 4)[name] - mean_field_row(c.held_out[0], 0, 4)[name] for c in last
        ]
    return rows, mean_interval(np.array(grown))


# -- the part --------------------------------------------------------------------------------------------------------


def run(folder: Path, quick: bool, note: Callable[[str], None]) -> Outcome:
    """About 25 minutes on one core; quick: a minute."""
    seeds, steps, problems = (2, 12, 8) if quick else (8, 80, 200)
    bandits, path = bandit_rows(4 if quick else 16, 150 if quick else 2000, note)
    courses = model_courses(folder, seeds, steps, problems, note)
    models, parts = model_rows(courses, steps)
    laws, ahead = law_rows(courses)
    field, grown = mean_field_rows(courses, steps)
    tables = {
        "level and fluctuation of the bandit by G": bandits,
        "level and fluctuation of the built-in model by G": models,
        "what the fluctuation of the logged reward is made of": parts,
        "laws on the built-in model's runs": laws,
        "forecasts of the built-in model's runs, half-way": [ahead],
        "the mean field of the built-in model": field,
        "the mean field of a bandit": path,
    }
    return Outcome(_claims(bandits, models, laws, grown, path, quick), tables)


def _claims(
    bandits: list[Row], models: list[Row], laws: list[Row], grown: Interval, path: list[Row], quick: bool
) -> list[Claim]:
    both = [("bandit", bandits), ("built-in model", models)]
    reached = (
        "bandit: the level that training reaches",
        "built-in model: the level after the last step, still on its way,",
    )
    share = "share of p̄(1−p̄) that lies between prompts"
    single = next(row for row in laws if row["law"] == "exponential")
    best = max(laws, key=lambda row: row["best by AICc"])
    won: Verdict = "cannot tell"
    if single["three-phase better by 2"] > single["runs"] / 2:
        won = "holds"
    elif single["three-phase worse by 2"] > single["runs"] / 2:
        won = "does not hold"
    widened: Verdict = "holds" if grown.low > 0 else "does not hold" if grown.high < 0 else "cannot tell"
    return [
        *(_level_claim(what, rows, quick) for what, (_, rows) in zip(reached, both, strict=True)),
        *(_fluctuation_claim(name, rows, quick) for name, rows in both),
        Claim(
            "The three-phase law describes reward curves better than a single exponential",
            PAPER,
            f"on {single['runs']} runs of the built-in model: better by 2 of AICc in {single['three-phase better by 2']}, worse in "
            f"{single['three-phase worse by 2']}; most often best: {best['law']} ({best['best by AICc']})",
            "cannot tell" if quick else won,
        ),
        Claim(
            "built-in model: the spread of p over prompts widens, so that one order parameter no longer summarises the policy",
            PAPER + " (erosion of the mean field)",
            f"the share of p̄(1−p̄) between prompts changes by {text(grown, 3)}; a bandit, for comparison: "
            f"{path[0][share]:.2f} at the start, at most {max(r[share] for r in path):.2f}, {path[-1][share]:.2f} at the end",
            "cannot tell" if quick else widened,
        ),
    ]


def _where(row: Row) -> str:
    anchor = "" if "KL anchor" not in row else ", anchored" if row["KL anchor"] else ", no anchor"
    return f"{row['optimiser']} {row['advantage']}{anchor}{', one prompt' if row.get('prompts') == 1 else ''}"


def _level_claim(what: str, rows: list[Row], quick: bool) -> Claim:
    apart = [f"{_where(r)} {r['largest difference']}" for r in rows if r["levels"] == "apart"]
    equal = sum(r["levels"] == "equal" for r in rows)
    return Claim(
        f"{what} does not depend on G (± {MARGIN})",
        PAPER,
        f"equal in {equal} of {len(rows)} settings" + (f"; apart: {'; '.join(apart)}" if apart else ""),
        "cannot tell" if quick else "does not hold" if apart else "holds" if equal == len(rows) else "cannot tell",
    )


def _fluctuation_claim(name: str, rows: list[Row], quick: bool) -> Claim:
    off = [f"{_where(r)} {r['exponent of the fluctuation']}" for r in rows if r["∝ 1/G"] == "no"]
    return Claim(
        f"{name}: the fluctuation is ∝ 1/G (exponent −1)",
        PAPER,
        f"in {len(rows) - len(off)} of {len(rows)} settings" + (f"; not: {'; '.join(off)}" if off else ""),
        "cannot tell" if quick else "does not hold" if off else "holds",
    )


PART = Part("group_size", "does G change the level or only the fluctuation; laws and mean field on those runs", run)
