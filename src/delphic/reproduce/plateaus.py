"""Does the group size change where training ends, or only how much it fluctuates? SGD and Adam, mean and std-normalised advantages,
in a bandit (with and without a KL anchor) and on the built-in model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from delphic.dynamics.bandit import Bandit
from delphic.dynamics.bandit_run import Anchor, Optimiser, Plan, train
from delphic.objective import build
from delphic.reproduce.claims import Claim, Outcome, Part, text
from delphic.reproduce.courses import (
    PAPER,
    PROMPTS,
    SCALES,
    SIZES,
    Courses,
    Row,
    law_claim,
    law_rows,
    mean_field_claim,
    mean_field_row,
    mean_field_rows,
    model_courses,
)
from delphic.reproduce.forecasts import mixed_bandit
from delphic.statistics.interval import Interval, mean_interval

MARGIN = 0.02
ANCHOR = 0.5  # strong enough to keep the level away from 1


# -- comparisons ---------------------------------------------------------------------------------------------------


def equivalence(difference: np.ndarray) -> str:
    """Two one-sided tests at 5 %: "equal" within ± MARGIN, "apart" by more than it, or "cannot tell"."""
    found = mean_interval(difference, 0.90)
    if found.low > -MARGIN and found.high < MARGIN:
        return "equal"
    return "apart" if found.low > MARGIN or found.high < -MARGIN else "cannot tell"


def fluctuation(levels: np.ndarray) -> np.ndarray:
    """[R] mean square distance of curves [R, T] to the curve that is their mean (R/(R − 1) times, so without bias)."""
    return ((levels - levels.mean(0)) ** 2).mean(1) * len(levels) / (len(levels) - 1)


def exponent(variances: Sequence[np.ndarray]) -> Interval:
    """Slope of log variance on log G over the runs; −1 is "∝ 1/G". variances: [R] of each of SIZES."""
    x = np.log(SIZES) - np.mean(np.log(SIZES))
    y = np.log(np.array(variances)).T  # [R, sizes]
    return mean_interval(y @ x / (x @ x))


def inverse(exponent: Interval) -> str:
    """Whether it is −1, as far as 0.25 either way matters."""
    if not exponent.low <= -1 <= exponent.high:
        return "no"
    return "yes" if exponent.low > -1.25 and exponent.high < -0.75 else "cannot tell"


def error_exponent(bandit: Bandit, theta: np.ndarray) -> float:
    """Slope of log(c₁/B + c₂/(BG) + c₃/(BG(G−1))) on log G over SIZES, at one policy [D]."""
    c1, c2, c3 = bandit.moments(theta).constants
    G = np.array(SIZES)
    return float(np.polyfit(np.log(G), np.log(c1 + c2 / G + c3 / (G * (G - 1))), 1)[0])


def _row(about: Row, ends: dict[int, np.ndarray], variances: dict[int, np.ndarray]) -> Row:
    """A row of either table: the level of each G, the pair that decides, the exponent of the fluctuation."""
    pairs = [(a, b) for a in SIZES for b in SIZES if a < b]
    verdict = {(a, b): equivalence(ends[b] - ends[a]) for a, b in pairs}
    # of the pairs that decide, the one that differs most
    levels = next(v for v in ("apart", "cannot tell", "equal") if v in verdict.values())
    a, b = max((p for p in pairs if verdict[p] == levels), key=lambda p: abs((ends[p[1]] - ends[p[0]]).mean()))
    found = exponent([variances[G] for G in SIZES])
    return (
        about
        | {f"G = {G}": float(ends[G].mean()) for G in SIZES}
        | {"difference": f"{text(mean_interval(ends[b] - ends[a], 0.90), 3)}, G = {a} to {b}", "levels": levels}
        | {"exponent of the fluctuation": text(found, 2), "∝ 1/G": inverse(found)}
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
                at = np.unique(np.append(0, np.geomspace(1, len(trace.steps) - 1, 6).round().astype(int)))
                spread = [mean_field_row(bandit.values(trace.theta[k, 0]), int(trace.steps[k])) for k in at]
        about = {"optimiser": optimiser, "advantage": scale, "prompts": len(bandit.rewards), "KL anchor": anchor}
        found = _row(about, ends, variances)
        if scale == "mean":  # what the noise of the gradient alone would do
            found["exponent of the gradient's error"] = error_exponent(bandit, trace.last.mean(0))
        rows.append(found)
        note(f"bandit: {_where(found)}")
    return rows, spread


# -- the built-in model --------------------------------------------------------------------------------------------


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


# -- the part --------------------------------------------------------------------------------------------------------


def run(folder: Path, quick: bool, note: Callable[[str], None]) -> Outcome:
    """About 16 minutes on one core; quick: a minute."""
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
    return [
        *(_level_claim(what, rows, quick) for what, (_, rows) in zip(reached, both, strict=True)),
        *(_fluctuation_claim(name, rows, quick) for name, rows in both),
        law_claim(laws, quick),
        mean_field_claim(grown, path, quick),
    ]


def _where(row: Row) -> str:
    anchor = "" if "KL anchor" not in row else ", anchored" if row["KL anchor"] else ", no anchor"
    return f"{row['optimiser']} {row['advantage']}{anchor}{', one prompt' if row.get('prompts') == 1 else ''}"


def _level_claim(what: str, rows: list[Row], quick: bool) -> Claim:
    apart = [f"{_where(r)} {r['difference']}" for r in rows if r["levels"] == "apart"]
    equal = sum(r["levels"] == "equal" for r in rows)
    return Claim(
        f"{what} does not depend on G (± {MARGIN})",
        PAPER,
        f"equal in {equal} of {len(rows)} settings" + (f"; apart: {'; '.join(apart)}" if apart else ""),
        "cannot tell" if quick else "does not hold" if apart else "holds" if equal == len(rows) else "cannot tell",
    )


def _fluctuation_claim(name: str, rows: list[Row], quick: bool) -> Claim:
    sure = sum(r["∝ 1/G"] == "yes" for r in rows)
    off = [f"{_where(r)} {r['exponent of the fluctuation']}" for r in rows if r["∝ 1/G"] == "no"]
    return Claim(
        f"{name}: the fluctuation is ∝ 1/G (exponent −1)",
        PAPER,
        f"in {sure} of {len(rows)} settings" + (f"; not: {'; '.join(off)}" if off else ""),
        "cannot tell" if quick else "does not hold" if off else "holds" if sure == len(rows) else "cannot tell",
    )


PART = Part("group_size", "does G change the level or only the fluctuation; laws and mean field on those runs", run)
