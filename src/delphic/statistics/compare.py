"""Do two runs differ? Their levels, and how many seeds it takes to see a difference, on numbers alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import nctdtr, ndtri, stdtrit

from delphic.statistics.interval import Interval
from delphic.statistics.step_noise import step_noise

POWER = 0.8
MOST_SEEDS = 1000
LARGEST = 5.0  # half the log interval of a noise ratio; beyond a factor of 150 either way nothing is known


@dataclass(frozen=True)
class Level:
    """Mean of the last steps of a run, and its standard error over those steps (not over seeds), known from `free` degrees of
    freedom."""

    value: float
    error: float
    steps: int
    free: float


def late_level(values: np.ndarray, share: float = 0.1) -> Level:
    """[n] ≥ 16 rewards → the mean of the last share, ten steps at the least; the noise is that of the second half."""
    late = values[-max(round(share * len(values)), 10) :]
    noise = step_noise(values)
    return Level(float(late.mean()), noise.error_of_mean(len(late)), len(late), noise.freedom)


def noise_bound(one: Level, two: Level, level: float = 0.95) -> float:
    """The difference that the steps' own noise makes, by Welch's t."""
    parts = (one.error**2, two.error**2)
    return _half_width(parts, (one.free, two.free), level)


def seed_bound(spread: float, free: float, counts: tuple[int, int], level: float = 0.95) -> float:
    """The difference that seeds make between means of so many runs a side.

    Args:
        spread: standard deviation over seeds. free: degrees of freedom it is known from; infinite where it is given.
    """
    return float(stdtrit(free, 0.5 + level / 2) * spread * np.sqrt(1 / counts[0] + 1 / counts[1]))


def _half_width(parts: tuple[float, float], free: tuple[float, float], level: float) -> float:
    """Of an interval of a difference whose sides have these variances (Welch-Satterthwaite)."""
    total = sum(parts)
    if total == 0:
        return 0.0
    joint = total**2 / sum(part**2 / f for part, f in zip(parts, free, strict=True))
    return float(stdtrit(joint, 0.5 + level / 2) * np.sqrt(total))


def difference(one: np.ndarray, two: np.ndarray, level: float = 0.95) -> Interval:
    """[n] and [m] levels of runs with a seed each: mean of two − mean of one, by Welch's t.

    Raises:
        ValueError: a side has fewer than two runs.
    """
    if min(len(one), len(two)) < 2:
        raise ValueError("two runs a side are needed to know how much seeds differ")
    value = float(two.mean() - one.mean())
    parts = (float(one.var(ddof=1)) / len(one), float(two.var(ddof=1)) / len(two))
    half = _half_width(parts, (len(one) - 1, len(two) - 1), level)
    return Interval(value, value - half, value + half)


def power(effect: float, spread: float, seeds: int, level: float = 0.95) -> float:
    """Chance that a two-sided t test of `seeds` runs a side sees a difference of means `effect` where seeds spread by `spread`."""
    free = 2 * seeds - 2
    shift = abs(effect) / spread * np.sqrt(seeds / 2)
    edge = stdtrit(free, 0.5 + level / 2)
    return float(1 - nctdtr(free, shift, edge) + nctdtr(free, shift, -edge))


def seeds_needed(effect: float, spread: float, wanted: float = POWER) -> int | None:
    """The fewest runs a side with that power (to a tenth, beyond 40); None beyond MOST_SEEDS."""
    if spread == 0:
        return 2
    seeds = 2
    while seeds <= MOST_SEEDS:
        if power(effect, spread, seeds) >= wanted:
            return seeds
        seeds = seeds + 1 if seeds < 40 else round(seeds * 1.1)
    return None


def noise_ratio(one: np.ndarray, two: np.ndarray, level: float = 0.95) -> Interval:
    """Variance of a step's noise of two over that of one, each with its own correlation; normal on the log scale (derived).
    [n] ≥ 16 rewards. NaN with infinite ends where one of them has no noise."""
    first, second = step_noise(one), step_noise(two)
    error = float(np.hypot(first.log_error, second.log_error))
    if not np.isfinite(error):
        return Interval(float("nan"), 0.0, float("inf"))
    ratio, half = second.variance / first.variance, float(ndtri(0.5 + level / 2)) * error
    if half > LARGEST:
        return Interval(ratio, 0.0, float("inf"))
    return Interval(ratio, ratio * float(np.exp(-half)), ratio * float(np.exp(half)))
