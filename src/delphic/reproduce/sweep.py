"""Training at a fixed number of completions N = B·G: which G learns best, and is it the one that a pilot names?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from delphic.config import RunConfig
from delphic.planning.advice import advise
from delphic.planning.pilot import Measured, run_pilot
from delphic.reproduce.claims import Claim, Outcome, Part, Verdict, text
from delphic.reproduce.runs import course, plain_config
from delphic.statistics.evaluation import spearman
from delphic.statistics.group_size import Constants, estimate_constants, relative_error
from delphic.statistics.interval import Interval, mean_interval

PAPER = "arXiv 2603.01162"
SIZES = (2, 4, 8, 16, 32, 64)
PILOT_SEED = 1000  # none of the training seeds
MARGIN = 0.02
BOOTSTRAPS = 10_000


def pilot(config: RunConfig, prompts: int, completions: int, note: Callable[[str], None]) -> tuple[Measured, Constants]:
    """What `delphic plan` measures, and its constants."""
    note(f"pilot: {prompts} prompts × {completions} completions")
    measured = run_pilot(config, Path(), prompts, completions, lambda _: None)
    return measured, estimate_constants(measured.pilot)


# -- which G learns best -----------------------------------------------------------------------------------------


def run_sweep(folder: Path, quick: bool, note: Callable[[str], None]) -> Outcome:
    """Several N and lengths; the longer run is evaluated on its way, so both lengths are of the same runs."""
    budgets, at, seeds = ((32,), (4, 8), 3) if quick else ((64, 256), (20, 60), 5)
    sizes = (2, 8, 32) if quick else SIZES
    _, constants = pilot(plain_config(8, 8, 1, PILOT_SEED), *((24, 16) if quick else (200, 32)), note)
    predicted = relative_error((max(constants.c1.value, 0.0), constants.c2.value, constants.c3.value), np.array(sizes))
    rows, summary = [], []
    for budget in budgets:
        accuracy = _accuracies(budget, sizes, at, range(seeds), folder / "runs.jsonl", 60 if quick else 200, note)
        for k, step in enumerate(at):
            best, low, high, first = best_size(accuracy[:, :, k], sizes)
            rank = spearman(-predicted, accuracy[:, :, k].mean(0))
            different = _significant_pairs(accuracy[:, :, k])
            summary.append(
                {"N": budget, "steps": step, "best G": best, "low": low, "high": high, "seeds": seeds}
                | {"G* of the pilot": text(constants.g_star), "rank correlation with the predicted error": rank.rho}
                | {"pairs of G that differ": f"{different} of {len(sizes) * (len(sizes) - 1) // 2}"}
            )
            for j, size in enumerate(sizes):
                values = accuracy[:, j, k]
                rows.append(
                    {"N": budget, "steps": step, "G": size, "held-out accuracy": float(values.mean())}
                    | {
                        "± 95 %": mean_interval(values).high - float(values.mean()),
                        "best in, of the resampled": float(first[j]),
                    }
                    | {"predicted error / least": float(predicted[j] / predicted.min())}
                )
    return Outcome(_sweep_claims(summary, constants.g_star), {"Best G in training": summary, "Accuracy by G": rows})


def _accuracies(
    budget: int,
    sizes: Sequence[int],
    at: Sequence[int],
    seeds: Sequence[int],
    kept: Path,
    problems: int,
    note: Callable[[str], None],
) -> np.ndarray:
    """[seeds, G, steps] held-out accuracy."""

    def one(size: int, seed: int) -> list[float]:
        config = plain_config(max(1, round(budget / size)), size, max(at), seed, problems=problems, samples=4)
        found = course(config, at, kept, note)
        return [found[step] for step in at]

    return np.array([[one(size, seed) for size in sizes] for seed in seeds])


def best_size(accuracy_SG: np.ndarray, sizes: Sequence[int]) -> tuple[int, int, int, np.ndarray]:
    """The G of the highest mean accuracy over seeds, the 2.5 and 97.5 % points of it over resampled seeds (all G of a
    seed together), and [G] how often each came first."""
    seeds = len(accuracy_SG)
    draws = np.random.default_rng(0).integers(seeds, size=(BOOTSTRAPS, seeds))
    first = accuracy_SG[draws].mean(1).argmax(1)
    low, high = np.quantile(np.array(sizes)[first], (0.025, 0.975), method="inverted_cdf")
    shares = np.bincount(first, minlength=len(sizes)) / BOOTSTRAPS
    return sizes[int(accuracy_SG.mean(0).argmax())], int(low), int(high), shares


def _significant_pairs(accuracy_SG: np.ndarray) -> int:
    """Pairs of G whose paired difference over seeds has a 95 % interval without 0 (no correction for many pairs)."""
    count = 0
    for i in range(accuracy_SG.shape[1]):
        for j in range(i):
            difference = accuracy_SG[:, i] - accuracy_SG[:, j]
            count += mean_interval(difference).excludes_zero
    return count


def _sweep_claims(summary: list[dict[str, Any]], star: Interval) -> list[Claim]:
    inside = [row["low"] <= star.high * np.sqrt(2) and row["high"] >= star.low / np.sqrt(2) for row in summary]
    overlap = max(row["low"] for row in summary) <= min(row["high"] for row in summary)
    seen = "; ".join(f"N = {r['N']}, step {r['steps']}: {r['best G']} ({r['low']} to {r['high']})" for r in summary)
    differing = ", ".join(row["pairs of G that differ"] for row in summary)
    small, large = summary[0], summary[-1]
    grows: Verdict = "cannot tell"
    if large["low"] > small["high"]:
        grows = "holds"
    elif large["high"] < small["low"]:
        grows = "does not hold"
    informative = any(row["low"] > min(SIZES) or row["high"] < max(SIZES) for row in summary)
    return [
        Claim(
            "G* of a pilot is the G that learns best at a fixed number of completions",
            PAPER,
            f"pilot: {text(star)}; training: {seen}; {sum(inside)} of {len(inside)} agree (to half a doubling)",
            "does not hold" if not all(inside) else "holds" if informative else "cannot tell",
        ),
        Claim(
            "The best G depends neither on N nor on the number of steps",
            PAPER,
            seen + ("; one G fits all" if overlap else "; no G fits all"),
            ("holds" if informative else "cannot tell") if overlap else "does not hold",
        ),
        Claim("The best G grows with compute", "arXiv 2603.12151 (IsoCompute)", seen, grows),
        Claim(
            "Most differences between group sizes are not significant",
            PAPER + ", GSM8K at N = 1024",
            f"pairs of G that differ: {differing}",
            "holds"
            if all(
                2 * int(r["pairs of G that differ"].split()[0]) < int(r["pairs of G that differ"].split()[-1])
                for r in summary
            )
            else "does not hold",
        ),
    ]


# -- is the recommended G good enough ----------------------------------------------------------------------------


def run_recommended(folder: Path, quick: bool, note: Callable[[str], None]) -> Outcome:
    """The recommended G against every other one: paired by seed, one-sided 95 % bounds."""
    budget, steps, seeds = (32, 6, 3) if quick else (128, 60, 10)
    config = plain_config(budget // 8, 8, 1, PILOT_SEED)
    measured, constants = pilot(config, *((24, 16) if quick else (64, 32)), note)
    advice = advise(measured, config)["recommendation"]
    if advice is None:
        refused = f"the pilot's G* = {text(constants.g_star)} is too uncertain for a recommendation"
        return Outcome([Claim("The recommended G is as good as any", "delphic plan", refused, "cannot tell")])
    chosen = int(advice["completions"])
    sizes = sorted({*((2, 8, 32) if quick else SIZES), chosen})
    problems = 60 if quick else 400
    kept = folder / "runs.jsonl"
    accuracy = _accuracies(budget, sizes, (steps,), range(seeds), kept, problems, note)[:, :, 0]
    rows = [
        {"G": size, "recommended": "yes" if size == chosen else "", "held-out accuracy": float(accuracy[:, k].mean())}
        | noninferiority(accuracy[:, sizes.index(chosen)] - accuracy[:, k])
        for k, size in enumerate(sizes)
    ]
    others = [row for row in rows if row["G"] != chosen]
    bad = [row["G"] for row in others if row["verdict"] == "inferior"]
    open_ = [row["G"] for row in others if row["verdict"] == "cannot tell"]
    worst = min(others, key=lambda row: row["lower bound"])
    claims = [
        Claim(
            f"The recommended G loses less than {MARGIN} held-out accuracy against every other G",
            "delphic plan",
            f"recommended {chosen} (G* = {text(constants.g_star)}), N = {budget}, {steps} steps, {seeds} seeds; the lowest "
            f"one-sided 95 % bound is {worst['lower bound']:+.3f} (against G = {worst['G']})"
            + (f"; inferior to {bad}" if bad else "")
            + (f"; open against {open_}" if open_ else ""),
            "does not hold" if bad else "cannot tell" if open_ else "holds",
        )
    ]
    if {2, 16} <= set(sizes):
        ratio = accuracy[:, sizes.index(2)] / accuracy[:, sizes.index(16)]
        found = mean_interval(ratio)
        verdict: Verdict = "holds" if found.low > 0.95 else "does not hold" if found.high < 0.95 else "cannot tell"
        claims.append(
            Claim(
                "G = 2 is about as good as G = 16 (97.6 % of it)",
                "arXiv 2510.00977 (2-GRPO), there with an eighth of the completions; here with as many",
                f"accuracy at G = 2 over that at G = 16: {found.value:.3f} ± {found.high - found.value:.3f}",
                verdict,
            )
        )
    return Outcome(claims, {f"The recommended G against the others (N = {budget}, {steps} steps)": rows})


def noninferiority(difference: np.ndarray, margin: float = MARGIN) -> dict[str, Any]:
    """Of paired differences recommended − other: mean, one-sided 95 % lower bound (Student's t), verdict."""
    found = mean_interval(difference, 0.90)
    verdict = "non-inferior" if found.low > -margin else "inferior" if found.high < -margin else "cannot tell"
    return {"recommended − this": found.value, "lower bound": found.low, "verdict": verdict}


SWEEP = Part("sweep", "which G learns best at a fixed number of completions", run_sweep)
RECOMMENDED = Part("recommended", "is the recommended G as good as any other", run_recommended)
