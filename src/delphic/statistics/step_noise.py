"""The noise of a reward curve from step to step, whose neighbours correlate: its variance, its correlation, and how sure they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.linalg import toeplitz

CORRELATIONS = np.linspace(0.0, 0.95, 96)
SHORTEST, LONGEST = 8, 64  # steps of a block


@dataclass(frozen=True)
class StepNoise:
    """variance of a step, correlation of neighbours, log_error: standard error of log variance (the correlation's own error
    counted; infinite where there is no noise), steps: how many were looked at."""

    variance: float
    correlation: float
    log_error: float
    steps: int

    def error_of_mean(self, steps: int) -> float:
        """Standard error of the mean of so many neighbours: σ²/n² · (n + 2 Σ_k (n − k) ρᵏ)."""
        k = np.arange(1, steps)
        return float(np.sqrt(self.variance * (steps + 2 * ((steps - k) * self.correlation**k).sum())) / steps)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of that error: half of the steps that would be as good if they did not correlate (2 at the least)."""
        return max(0.5 * self.steps * (1 - self.correlation) / (1 + self.correlation), 2.0)


@dataclass(frozen=True)
class _Blocks:
    """For blocks of one length: `remove` [w, w] takes a line out; total, neighbours [96]: what is expected of Σ r² and
    Σ r_t r_{t+1} for unit variance at each of CORRELATIONS (exact: traces of M R M)."""

    remove: np.ndarray
    total: np.ndarray
    neighbours: np.ndarray


@lru_cache(maxsize=8)
def _blocks(width: int) -> _Blocks:
    t = np.arange(width) - (width - 1) / 2
    line = np.stack([np.full(width, width**-0.5), t / np.sqrt(t @ t)], axis=1)
    remove = np.eye(width) - line @ line.T
    left = [remove @ toeplitz(rho ** np.arange(width)) @ remove for rho in CORRELATIONS]
    return _Blocks(remove, np.array([np.trace(m) for m in left]), np.array([np.trace(m, 1) for m in left]))


def step_noise(values: np.ndarray) -> StepNoise:
    """AR(1) noise of the second half of [n] ≥ 16 values, a line taken out of every block of it, by moments (derived).

    What the line takes away from variance and correlation is given back exactly, so neither is biased by short blocks; a
    course that bends within a block counts as noise.
    """
    late = values[len(values) // 2 :]
    width = int(np.clip(len(late) // 4, SHORTEST, LONGEST))
    count = len(late) // width
    known = _blocks(width)
    rest = late[len(late) - count * width :].reshape(count, width) @ known.remove
    total = float((rest**2).sum())
    if total <= 1e-24 * float((late**2).sum()):
        return StepNoise(0.0, 0.0, np.inf, count * width)
    found = float((rest[:, 1:] * rest[:, :-1]).sum()) / total
    rho = float(np.interp(found, known.neighbours / known.total, CORRELATIONS))
    variance = total / (count * float(np.interp(rho, CORRELATIONS, known.total)))
    return StepNoise(variance, rho, _log_error(known, rho, width, count), count * width)


def _log_error(known: _Blocks, rho: float, width: int, count: int) -> float:
    """By the delta method: both moments are quadratic forms of a normal block, with covariances 2 tr(A R B R)."""
    at = int(np.argmin(np.abs(CORRELATIONS - rho)))
    low, high = max(at - 1, 0), min(at + 1, len(CORRELATIONS) - 1)
    ratio = known.neighbours / known.total
    slope = (known.total[high] - known.total[low]) / (ratio[high] - ratio[low]) / known.total[at]
    gradient = np.array([1 + slope * ratio[at], -slope]) / known.total[at]
    left = known.remove @ toeplitz(rho ** np.arange(width)) @ known.remove
    shift = 0.5 * (np.eye(width, k=1) + np.eye(width, k=-1))
    forms = (left, left @ shift)
    covariance = 2 * np.array([[np.trace(a @ b) for b in forms] for a in forms])
    return float(np.sqrt(gradient @ covariance @ gradient / count))
