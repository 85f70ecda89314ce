"""Is the group-size advice right? Bandits with known G*, trained at every group size, against what `plan` would say.

A fixed number of completions a step and of steps; only G differs. Every group size has the learning rate that suits it
best (from one grid, on seeds of their own), so that no group size is helped by another's rate. What is maximised is
J − β·KL to the start, as in practice: its optimum is inside the simplex, where noise is what is left at the end. Without
the KL term a softmax bandit's optimum lies at infinity, and large noisy steps are a way to get there: one learner shows it.
"""

from __future__ import annotations

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
from delphic.statistics.group_size import Constants, Interval, best_group_size, constants_of, recommend

BUDGET = 192  # completions a step
GROUPS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
TOLERANCE, MATTERS = 0.05, 0.20  # loss of good advice; loss of the worst G from which the choice matters
ORDERS = ("independent", "epochs")


@dataclass(frozen=True)
class Learner:
    """A way to train. interval: updates per refresh of the sampler, so that ratios leave 1 and the clip acts.

    anchor: β of the exact KL term.
    """

    about: str
    objective: Objective
    optimiser: str
    rates: tuple[float, ...]
    interval: int = 1
    anchor: float = 0.1
    orders: tuple[str, ...] = ORDERS


SGD_RATES, ADAM_RATES = (tuple(first * 2.0**k for k in range(7)) for first in (2.0, 0.02))
LEARNERS = {
    "sgd": Learner("leave-one-out, SGD", build("rloo"), "sgd", SGD_RATES),
    "adam": Learner("leave-one-out, Adam", build("rloo"), "adam", ADAM_RATES),
    "grpo": Learner("std-normalised, clipped, Adam, 4 updates per refresh", build("grpo"), "adam", ADAM_RATES, 4),
    "sgd, no KL": Learner("leave-one-out, SGD, no KL term", build("rloo"), "sgd", SGD_RATES, 1, 0.0, ORDERS[:1]),
}


@dataclass(frozen=True)
class Size:
    """How much is run. tuning: replicas per learning rate; seeds: replicas of each G that count."""

    stars: tuple[int, ...] = (3, 12, 48)
    orders: tuple[str, ...] = ORDERS
    groups: tuple[int, ...] = GROUPS
    steps: int = 50
    tuning: int = 16
    seeds: int = 200
    pilots: int = 2000
    resamples: int = 2000


QUICK = Size((12,), ORDERS[:1], (2, 12, 96), 20, 4, 30, 50, 200)


def run(folder: Path, quick: bool, note: Callable[[str], None]) -> Outcome:
    """The part's outcome; tables "pilots", "cells", "group sizes"."""
    return study(QUICK if quick else Size(), note)


def study(size: Size, note: Callable[[str], None]) -> Outcome:
    pilots, cells, curves = [], [], []
    for star in size.stars:
        bandit = world(star)
        advised, row = pilot_figures(bandit, star, size.pilots)
        pilots.append(row)
        for order in size.orders:
            for name, learner in LEARNERS.items():
                if order not in learner.orders:
                    continue
                note(f"G* = {star}, {order}, {name}")
                regret, rows = regrets(bandit, learner, order, size)
                cell = {"G*": star, "prompts": order, "learner": name}
                curves += [cell | r for r in rows]
                cells.append(cell | judge(regret, advised, row, size))
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
    """(final (J* − J)/(J* − J₀) of each G [seeds], a row of figures for each G); J is less β·KL."""
    start = np.zeros(bandit.shape[2])
    first, top = float(bandit.expected_reward(start)), bandit.best(start, learner.anchor)

    def final(group: int, rates: np.ndarray, replicas: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """[len(rates), replicas] regrets, and the last parameters."""
        optimiser = Optimiser(learner.optimiser, np.repeat(rates, replicas)[:, None])  # type: ignore[arg-type]
        plan = Plan(learner.objective, BUDGET // group, group, order, optimiser, learner.interval, anchor=anchor)  # type: ignore[arg-type]
        trace = train(bandit, plan, np.tile(start, (len(rates) * replicas, 1)), size.steps, seed)
        reached = trace.reward[-1] - learner.anchor * bandit.kl(trace.last, start)
        return ((top - reached) / (top - first)).reshape(len(rates), replicas), trace.last

    grid, anchor = np.array(learner.rates), Anchor(learner.anchor) if learner.anchor > 0 else None
    out, rows = {}, []
    for group in size.groups:
        tuned = final(group, grid, size.tuning, seed=1)[0].mean(1)
        best = int(tuned.argmin())
        regret, last = final(group, grid[best : best + 1], size.seeds, seed=2)
        out[group] = regret[0]
        late = [best_group_size(c[0], c[2]) for t in last[:20] if (c := bandit.moments(t).constants)]
        rows.append(
            {
                "G": group,
                "regret": float(regret.mean()),
                "standard error": float(regret.std(ddof=1) / np.sqrt(size.seeds)),
                "rate": float(grid[best]),
                "rate at the edge": best in (0, len(grid) - 1),
                "regret by rate": ", ".join(f"{t:.3f}" for t in tuned),
                "G* at the end": float(np.median(late)),
            }
        )
    return out, rows


def judge(
    regret: dict[int, np.ndarray], advised: dict[int, float], pilot: dict[str, Any], size: Size
) -> dict[str, Any]:
    """The loss of the advice, of the exact advice and of the worst G, relative to the best G, with 90 % intervals.

    The best G is the lowest of the same seeds, in each resample anew: chance makes the losses look larger, never smaller.
    """
    rng = np.random.default_rng(0)
    groups = sorted(regret)
    draws = {g: regret[g][rng.integers(size.seeds, size=(size.resamples, size.seeds))].mean(1) for g in groups}
    means = {g: np.concatenate([[regret[g].mean()], draws[g]]) for g in groups}
    lowest = np.min(list(means.values()), axis=0)

    def loss(shares: dict[int, float]) -> np.ndarray:
        near = {min(groups, key=lambda h: abs(np.log(h / g))): 0.0 for g in shares}
        for g, share in shares.items():
            near[min(groups, key=lambda h: abs(np.log(h / g)))] += share
        return sum(share * means[g] for g, share in near.items()) / lowest - 1

    worst = np.max(list(means.values()), axis=0) / lowest - 1
    exact = loss({pilot["exact advice"]: 1.0})
    usable = pilot["carry a recommendation"] >= 0.5
    given = loss(advised) if usable else exact

    def ends(values: np.ndarray) -> dict[str, float]:
        low, high = np.quantile(values[1:], [0.05, 0.95])
        return {"value": float(values[0]), "low": float(low), "high": float(high)}

    row: dict[str, Any] = {
        "best G": min(groups, key=lambda g: regret[g].mean()),
        "advice": "pilots" if usable else "exact",
    }
    for name, values in (
        ("loss of the advice", given),
        ("loss of the exact advice", exact),
        ("loss of the worst G", worst),
    ):
        row |= {name if key == "value" else f"{name}, {key}": value for key, value in ends(values).items()}
    row["worst G"] = max(groups, key=lambda g: regret[g].mean())
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
            if not rows:
                continue
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
