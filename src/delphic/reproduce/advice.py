"""Is the group-size advice right? Bandits with known G*, trained at every group size, against what `plan` would say.

A fixed number of completions a step and of steps; only G differs. Every group size has the learning rate that suits it
best, so that none is helped by another's: the best of a coarse grid, then the lowest point of a parabola through three
rates around it. What is maximised is J − β·KL to the start, as in practice: its optimum is inside the simplex, where noise
is what is left at the end (without the KL term a softmax bandit's optimum lies at infinity, and large noisy steps are a way
to get there). The regret is the mean over the last tenth of the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from delphic.dynamics.bandit import Bandit
from delphic.dynamics.bandit_run import Anchor, Optimiser, Plan, train
from delphic.objective import Objective, build
from delphic.reproduce.claims import Claim, Outcome, Part, Verdict
from delphic.reproduce.worlds import simulate_pilots, world
from delphic.statistics.group_size import Constants, best_group_size, constants_of, recommend
from delphic.statistics.interval import Interval

BUDGET = 192  # completions a step
ANCHOR = 0.1  # β of the goal that everybody is judged by
NEAR = np.array([1 / 1.5, 1.0, 1.5])  # rates that count, times the best of the grid
GROUPS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
TOLERANCE, MATTERS = 0.05, 0.20  # loss of good advice; loss of the worst G from which the choice matters
ORDERS = ("independent", "epochs")


@dataclass(frozen=True)
class Learner:
    """A way to train. interval: updates per refresh of the sampler, so that ratios leave 1 and the clip acts.

    anchor: β of the exact KL term in training.
    """

    about: str
    objective: Objective
    optimiser: str
    rates: tuple[float, ...]
    interval: int = 1
    anchor: float = ANCHOR


SGD_RATES, ADAM_RATES = (tuple(first * 2.0**k for k in range(8)) for first in (2.0, 0.01))
STD_ANCHOR = 0.25  # a step over σ ≈ 0.4 pulls 2.5 times as hard as the plain one does
LEARNERS = {
    "sgd": Learner("leave-one-out, SGD", build("rloo"), "sgd", SGD_RATES),
    "adam": Learner("leave-one-out, Adam", build("rloo"), "adam", ADAM_RATES),
    "grpo": Learner(
        "std-normalised, clipped, Adam, 4 updates per refresh", build("grpo"), "adam", ADAM_RATES, 4, STD_ANCHOR
    ),
}


@dataclass(frozen=True)
class Size:
    """How much is run. tuning: replicas per rate of the grid; seeds: replicas per rate that counts."""

    stars: tuple[int, ...] = (3, 12, 48)
    orders: tuple[str, ...] = ORDERS
    groups: tuple[int, ...] = GROUPS
    steps: int = 50
    tuning: int = 16
    seeds: int = 150
    pilots: int = 2000
    resamples: int = 2000


QUICK = Size((12,), ORDERS[:1], (2, 12, 96), 20, 4, 16, 50, 200)


def run(folder: Path, quick: bool, note: Callable[[str], None]) -> Outcome:
    """The part's outcome; tables "pilots", "cells", "group sizes"."""
    return study(QUICK if quick else Size(), folder, note)


def study(size: Size, folder: Path, note: Callable[[str], None]) -> Outcome:
    """Cells that were finished before, at the same size, are read from `folder`."""
    pilots, cells, curves = [], [], []
    for star in size.stars:
        bandit = world(star)
        advised, row = pilot_figures(bandit, star, size.pilots)
        pilots.append(row)
        for order in size.orders:
            for name, learner in LEARNERS.items():
                note(f"G* = {star}, {order}, {name}")
                path = folder / f"cell-{star}-{order}-{name}.json"
                kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
                if kept.get("size") != repr(size):
                    regret, rows = regrets(bandit, learner, order, size)
                    kept = {"size": repr(size), "cell": judge(regret, advised, row, size), "rows": rows}
                    path.write_text(json.dumps(kept), encoding="utf-8")
                cell = {"G*": star, "prompts": order, "learner": name}
                curves += [cell | r for r in kept["rows"]]
                cells.append(cell | kept["cell"])
    return Outcome(claims(cells, size), {"pilots": pilots, "cells": cells, "group sizes": curves})


# -- what plan would say


def pilot_figures(bandit: Bandit, star: int, count: int) -> tuple[dict[int, float], dict[str, Any]]:
    """(share of each recommended G among the pilots that carry one, figures) of 64 × 32 pilots of the policy at the start."""
    theta = np.zeros(bandit.shape[2])
    pilots = simulate_pilots(bandit, theta, count, 64, 32, seed=star)
    gradient, spread, product = (pilots.columns[name] for name in ("gradient", "spread", "product"))
    found = [constants_of(gradient[m], spread[m], product[m], pilots.cross[m]) for m in range(count)]
    stars = [c.g_star for c in found]
    said = [r.completions for c in found if (r := recommend(c, 64)) is not None]
    shares = {int(g): float(np.mean(np.array(said) == g)) for g in np.unique(said)} if said else {}
    row = {
        "G*": star,
        "exact advice": exact_advice(bandit, theta),
        "pilots": count,
        "interval covers": float(np.mean([s.low <= star <= s.high for s in stars])),
        "carry a recommendation": len(said) / count,
        "recommended": ", ".join(f"{g}: {share:.0%}" for g, share in shares.items()) or "none",
    }
    return shares, row


def exact_advice(bandit: Bandit, theta: np.ndarray) -> int:
    """What `plan` would recommend from an endless pilot."""
    c1, c2, c3 = (Interval(c, c, c) for c in bandit.moments(theta).constants)
    star = best_group_size(c1.value, c3.value)
    found = recommend(Constants(c1, c2, c3, Interval(star, star, star)), 10**6)
    assert found is not None
    return found.completions


# -- what training says


def regrets(
    bandit: Bandit, learner: Learner, order: str, size: Size
) -> tuple[dict[int, np.ndarray], list[dict[str, Any]]]:
    """(final (J* − J)/(J* − J₀) of each G [3 rates, seeds], a row of figures for each G); J stands for the goal."""
    start = np.zeros(bandit.shape[2])
    first, top = float(bandit.goal(start, start, ANCHOR)), bandit.best(start, ANCHOR)

    def final(group: int, rates: np.ndarray, replicas: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """[len(rates), replicas] regrets, and the last parameters."""
        optimiser = Optimiser(learner.optimiser, np.repeat(rates, replicas)[:, None])  # type: ignore[arg-type]
        anchor, prompts = Anchor(learner.anchor), BUDGET // group
        plan = Plan(learner.objective, prompts, group, order, optimiser, learner.interval, anchor=anchor)  # type: ignore[arg-type]
        many = np.tile(start, (len(rates) * replicas, 1))
        trace = train(bandit, plan, many, size.steps, seed, every=2, keep_theta=True)
        assert trace.theta is not None
        reached = bandit.goal(trace.theta[-max(1, size.steps // 20) :], start, ANCHOR).mean(0)
        return ((top - reached) / (top - first)).reshape(len(rates), replicas), trace.last

    grid, out, rows = np.array(learner.rates), {}, []
    for group in size.groups:
        tuned = final(group, grid, size.tuning, seed=1)[0].mean(1)
        best = int(tuned.argmin())
        regret, last = final(group, grid[best] * NEAR, size.seeds, seed=2)
        out[group] = regret
        middle = last[size.seeds : size.seeds + 20]
        late = [best_group_size(c[0], c[2]) for t in middle if (c := bandit.moments(t).constants)]
        rows.append(
            {
                "G": group,
                "regret": float(lowest(regret.mean(1))),
                "standard error": float(np.std(resampled(regret, size.resamples), ddof=1)),
                "rate": float(grid[best]),
                "rate at the edge": best in (0, len(grid) - 1),
                "regret by rate": ", ".join(f"{t:.3f}" for t in [*tuned, *regret.mean(1)]),
                "G* at the end": float(np.median(late)),
            }
        )
    return out, rows


def lowest(regret: np.ndarray) -> np.ndarray:
    """[...] the lowest point of the parabola through regrets [3, ...] at equal ratios of the rate; the lowest of the three
    where that is not between them."""
    left, middle, right = regret
    slope, curvature = (right - left) / 2, (left + right) / 2 - middle
    inside = (curvature > 0) & (np.abs(slope) <= 2 * curvature)
    vertex = middle - slope**2 / (4 * np.where(inside, curvature, 1.0))
    return np.where(inside, vertex, regret.min(0))


def resampled(regret: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """[1 + count] `lowest` of the seeds as they are, then with those of each rate [3, seeds] drawn anew."""
    rng = np.random.default_rng(seed)
    means = [np.append(row.mean(), row[rng.integers(len(row), size=(count, len(row)))].mean(1)) for row in regret]
    return lowest(np.array(means))


def judge(
    regret: dict[int, np.ndarray], advised: dict[int, float], pilot: dict[str, Any], size: Size
) -> dict[str, Any]:
    """The loss of the advice, of the exact advice and of the worst G, relative to the best G, with 90 % intervals.

    The best and the worst G are chosen on one half of the seeds and measured on the other, and the other way round: chosen
    and measured on the same seeds, chance alone would make one group size out of twelve look better than it is.
    """
    groups = sorted(regret)
    halves = [{g: resampled(regret[g][:, side::2], size.resamples, side) for g in groups} for side in (0, 1)]

    def chosen(pick: Any, side: int) -> np.ndarray:
        """The regret on this side of the G that the other side picks."""
        here, there = (np.array([halves[s][g] for g in groups]) for s in (side, 1 - side))
        return np.take_along_axis(here, pick(there, axis=0)[None], axis=0)[0]

    def relative(values: Callable[[int], np.ndarray]) -> np.ndarray:
        return np.mean([values(side) / chosen(np.argmin, side) - 1 for side in (0, 1)], axis=0)

    def mixed(shares: dict[int, float], side: int) -> np.ndarray:
        near = {g: min(groups, key=lambda h: abs(np.log(h / g))) for g in shares}
        return np.sum([share * halves[side][near[g]] for g, share in shares.items()], axis=0)

    usable = pilot["carry a recommendation"] >= 0.5
    exact = relative(lambda side: mixed({pilot["exact advice"]: 1.0}, side))
    given = relative(lambda side: mixed(advised, side)) if usable else exact
    worst = relative(lambda side: chosen(np.argmax, side))

    def ends(values: np.ndarray) -> dict[str, float]:
        low, high = np.quantile(values[1:], [0.05, 0.95])
        return {"value": float(values[0]), "low": float(low), "high": float(high)}

    whole = {g: float(lowest(regret[g].mean(1))) for g in groups}
    row: dict[str, Any] = {
        "best G": min(groups, key=lambda g: whole[g]),
        "advice": "pilots" if usable else "exact",
    }
    for name, values in (
        ("loss of the advice", given),
        ("loss of the exact advice", exact),
        ("loss of the worst G", worst),
    ):
        row |= {name if key == "value" else f"{name}, {key}": value for key, value in ends(values).items()}
    row["worst G"] = max(groups, key=lambda g: whole[g])
    row["verdict"] = _verdict(ends(given), ends(worst))
    return row


def _verdict(given: dict[str, float], worst: dict[str, float]) -> str:
    if worst["value"] < MATTERS:
        return "the choice matters little"
    if given["high"] <= TOLERANCE:
        return "holds"
    return "does not hold" if given["low"] > TOLERANCE else "cannot tell"


def claims(cells: list[dict[str, Any]], size: Size) -> list[Claim]:
    """One claim for each learner and order of the prompts, over the worlds where the choice of G matters."""
    out = []
    for order in size.orders:
        for name, learner in LEARNERS.items():
            rows = [c for c in cells if (c["prompts"], c["learner"]) == (order, name)]
            verdicts = [c["verdict"] for c in rows if c["verdict"] != "the choice matters little"]
            verdict: Verdict = "holds" if verdicts else "cannot tell"
            for worse in ("cannot tell", "does not hold"):
                verdict = worse if worse in verdicts else verdict
            measured = "; ".join(
                f"G* = {c['G*']}: {c['loss of the advice']:.1%} (at most {c['loss of the advice, high']:.1%}), "
                f"the worst G {c['loss of the worst G']:.0%}"
                for c in rows
            )
            text = f"{learner.about}, prompts {order}: the recommended G loses at most 5 % where the worst loses 20 %"
            out.append(Claim(text, "derived; G* = 1 + √(c₃/c₁)", measured, verdict))
    return out


PART = Part("advice", "is the group size that plan recommends the right one?", run)
