"""Tests that stay valid when a run is looked at after every step.

A window of a log is tested at a level that is spent over all lengths: looks within a doubling of the length share most of their
data and are counted as LOOKS independent ones, doubling k gets α/(k(k+1)), which sums to α (Bonferroni; the false-alarm rate over
whole healthy runs with a look at every step is measured in `docs/detection.md`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

LOOKS = 8
ALPHA = 1e-3  # of one check over a whole run, however long


def threshold(n: int, alpha: float = ALPHA) -> float:
    """|z| above which a two-sided test after n steps counts."""
    k = 1 + max(0, math.floor(math.log2(max(n, 16) / 16)))
    return float(-ndtri(alpha / (2 * LOOKS * k * (k + 1))))


def few(z: float, free: float) -> float:
    """The threshold z where the noise itself is known from `free` degrees of freedom only: the same tail of Student's t."""
    return float(-stdtrit(max(free, 1.0), ndtr(-z)))


@dataclass(frozen=True)
class Mean:
    """A mean and its standard error, the values' own correlation from step to step counted."""

    value: float
    error: float
    n: int


def mean(values: np.ndarray) -> Mean:
    """[n] ≥ 2 values; a straight line is taken out before the error is measured, which follows AR(1): σ²/n · (1+ρ)/(1−ρ)."""
    n = len(values)
    t = np.arange(n) - (n - 1) / 2
    slope = float(t @ values / (t @ t)) if n > 2 else 0.0
    rest = values - values.mean() - slope * t
    variance = float(rest @ rest) / max(n - 2, 1)
    rho = _correlation(rest)
    return Mean(float(values.mean()), math.sqrt(variance / n * (1 + rho) / (1 - rho)), n)


def best_block(values: np.ndarray) -> float:
    """The highest mean of the first three of [n] ≥ 1 values and of eight blocks of them."""
    return max(float(part.mean()) for part in (values[:3], *np.array_split(values, min(8, len(values)))))


def slope(steps: np.ndarray, values: np.ndarray) -> Mean:
    """Change per step by least squares, with the same error."""
    t = steps - steps.mean()
    value = float(t @ values / (t @ t))
    rest = values - values.mean() - value * t
    variance = float(rest @ rest) / max(len(values) - 2, 1)
    rho = _correlation(rest)
    return Mean(value, math.sqrt(variance / float(t @ t) * (1 + rho) / (1 - rho)), len(values))


def _correlation(rest: np.ndarray) -> float:
    """Of neighbours, between 0 and .9, its bias of about −1/n given back."""
    total = float(rest @ rest)
    if len(rest) < 4 or total == 0:
        return 0.0
    return float(np.clip(rest[1:] @ rest[:-1] / total + 2 / len(rest), 0.0, 0.9))


def z_of(difference: float, *errors: float) -> float:
    """How many standard errors; infinite where there is no noise at all."""
    error = math.sqrt(sum(e * e for e in errors))
    if error > 0:
        return difference / error
    return 0.0 if difference == 0 else math.copysign(math.inf, difference)


def interval(m: Mean, z: float = 1.96) -> str:
    """value (low to high), 95 %"""
    return f"{m.value:.3g} ({m.value - z * m.error:.3g} to {m.value + z * m.error:.3g})"


def thin(steps: np.ndarray, values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(steps, values, counts) as means of neighbours, `most` points at the most."""
    if len(steps) <= most:
        return steps.astype(np.float64), values, np.ones(len(steps))
    edges = np.linspace(0, len(steps), most + 1).astype(int)
    counts = np.diff(edges).astype(np.float64)
    return (
        np.add.reduceat(steps.astype(np.float64), edges[:-1]) / counts,
        np.add.reduceat(values, edges[:-1]) / counts,
        counts,
    )
