"""A figure and how sure it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, stdtrit


@dataclass(frozen=True)
class Interval:
    """A value with its interval (95 % unless said otherwise); an end may be infinite where nothing bounds it."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def share(hits: int, count: int) -> Interval:
    """A share of `count` ≥ 1 cases with its exact (Clopper-Pearson) 95 % interval."""
    low = float(betaincinv(hits, count - hits + 1, 0.025)) if hits else 0.0
    high = float(betaincinv(hits + 1, count - hits, 0.975)) if hits < count else 1.0
    return Interval(hits / count, low, high)


def mean_interval(values: np.ndarray, level: float = 0.95) -> Interval:
    """The mean of [n] ≥ 2 independent values, by Student's t."""
    mean, n = float(values.mean()), len(values)
    half = float(stdtrit(n - 1, 0.5 + level / 2) * values.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - half, mean + half)


def number(value: float) -> float | None:
    """JSON has no infinity and no NaN: null."""
    return float(value) if math.isfinite(value) else None
