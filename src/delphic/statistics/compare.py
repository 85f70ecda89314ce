"""Do two runs differ? Their levels, and how many seeds it takes to see a difference, on numbers alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import f as fisher
from scipy.stats import nct
from scipy.stats import t as student

from delphic.statistics.interval import Interval

POWER = 0.8
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Level:
    """Mean of the last steps of a run, and its standard error over those steps (not over seeds)."""

    value: float
    error: float
    steps: int


def late_level(values: np.ndarray, share: float = 0.1) -> Level:
    """[n] rewards → the mean of the last share, ten steps at the least; neighbours correlate as AR(1)."""
    late = values[-max(round(share * len(values)), min(10, len(values))) :]
    centred = late - late.mean()
    total = float(centred @ centred)
    rho = (
        0.0
        if total == 0 or len(late) < 4
        else float(np.clip(centred[1:] @ centred[:-1] / total + 1 / len(late), 0, 0.9))
    )
    variance = total / max(len(late) - 1, 1)
    return Level(float(late.mean()), float(np.sqrt(variance / len(late) * (1 + rho) / (1 - rho))), len(late))


def difference(one: np.ndarray, two: np.ndarray, level: float = 0.95) -> Interval:
    """[n] and [m] levels of runs with a seed each: mean of two − mean of one, by Welch's t.

    Raises:
        ValueError: a side has fewer than two runs.
    """
    if min(len(one), len(two)) < 2:
        raise ValueError("two runs a side are needed to know how much seeds differ")
    parts = [x.var(ddof=1) / len(x) for x in (one, two)]
    total = sum(parts)
    value = float(two.mean() - one.mean())
    if total == 0:
        return Interval(value, value, value)
    free = total**2 / sum(p**2 / (len(x) - 1) for p, x in zip(parts, (one, two), strict=True))
    half = float(student.ppf(0.5 + level / 2, free) * np.sqrt(total))
    return Interval(value, value - half, value + half)


def power(effect: float, spread: float, seeds: int, level: float = 0.95) -> float:
    """Chance that a two-sided t test of `seeds` runs a side sees a difference of means `effect` where seeds spread by `spread`."""
    free = 2 * seeds - 2
    shift = abs(effect) / spread * np.sqrt(seeds / 2)
    edge = student.ppf(0.5 + level / 2, free)
    return float(nct.sf(edge, free, shift) + nct.cdf(-edge, free, shift))


def seeds_needed(effect: float, spread: float, wanted: float = POWER) -> int | None:
    """The fewest runs a side with that power; None beyond MOST_SEEDS."""
    if spread == 0:
        return 2
    seeds = 2
    while seeds <= MOST_SEEDS:
        if power(effect, spread, seeds) >= wanted:
            return seeds
        seeds = seeds + 1 if seeds < 40 else round(seeds * 1.1)
    return None


def noise_ratio(one: np.ndarray, two: np.ndarray, level: float = 0.95) -> Interval:
    """Variance of the steps' noise of two over that of one, by Fisher's F. [n] rewards: mean square of second differences over 6, which
    leaves a smooth course out; they overlap, so that n of them have n/1.94 degrees of freedom (derived, for white noise)."""
    sizes, variances = [], []
    for x in (one, two):
        second = np.diff(x, 2)
        variances.append(float((second**2).mean() / 6))
        sizes.append(
            max(len(second) / 1.94, 2.0)
        )  # Var of the mean of squares of an MA(2) with weights 1, −2, 1: 2·(35/18) σ⁴/n
    if variances[0] == 0:
        return Interval(float("nan"), 0.0, float("inf"))
    ratio = variances[1] / variances[0]
    low, high = (float(fisher.ppf(q, sizes[1], sizes[0])) for q in (0.5 - level / 2, 0.5 + level / 2))
    return Interval(ratio, ratio / high, ratio / low)
