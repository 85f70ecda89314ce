"""Exact stability of training with a lag: the spectral radius of the recurrence over one period of the sync schedule.

e_t = e_{t−1} + μ (e_{t−1} − e_{t−2}) − ηK e_{b(t)} − ηk·(fresh force), where b(t) = m·⌊(t−1−n)/m⌋ is the version that
sampled the rollouts of step t (sync interval m, offset n; `training/lag.py`). A fresh force acts on the current policy:
e_{t−1} where it is anchored at a fixed reference, e_{t−1} − e_{b(t)} where at the behaviour policy. Theory section 3
(derived: the map is linear, so its largest eigenvalue decides).
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.linalg import solve_discrete_lyapunov
from scipy.optimize import brentq

from delphic.dynamics.oscillator import check_momentum

MAX_INTERVAL = 4096  # sync intervals above this are called unbounded


@dataclass(frozen=True)
class Lag:
    """What delays the update, and what does not.

    interval, offset: m ≥ 1 and n ≥ 0. momentum: μ in [0, 1). stiffness: K > 0 of the delayed force.
    fresh: k ≥ 0 of the undelayed one. anchor: where it pulls to. averaged: momentum is an average of gradients (Adam's
    β₁), so that a step is η(1−μ) of it.
    """

    interval: int = 1
    offset: int = 0
    momentum: float = 0.0
    stiffness: float = 1.0
    fresh: float = 0.0
    anchor: Literal["behaviour", "reference"] = "reference"
    averaged: bool = False

    def __post_init__(self) -> None:
        check_momentum(self.momentum)
        if self.interval < 1:
            raise ValueError(f"the sync interval must be at least 1, not {self.interval}")
        if self.offset < 0:
            raise ValueError(f"the sync offset must not be negative, it is {self.offset}")
        if not self.stiffness > 0:
            raise ValueError(f"the stiffness must be positive, not {self.stiffness}")
        if self.fresh < 0:
            raise ValueError(f"the fresh stiffness must not be negative, it is {self.fresh}")

    @property
    def largest(self) -> int:
        """d = m + n − 1: the longest delay, K_ref of the closed forms."""
        return self.interval + self.offset - 1


def closed_form_limit(lag: Lag) -> float:
    """The η of ηK·d = 1−μ (of ηK·d = 1 where momentum is an average): safe in every case tried; infinite without a lag."""
    if lag.largest == 0:
        return math.inf
    return (1.0 if lag.averaged else 1 - lag.momentum) / (lag.stiffness * lag.largest)


def period_map(rate: float, lag: Lag) -> np.ndarray:
    """Monodromy over the m steps between two syncs. State at a sync: e now, e one step before, e at this sync and at the
    ⌊n/m⌋ + 1 before it that are still learned from."""
    m, whole, rest = lag.interval, *divmod(lag.offset, lag.interval)
    size = whole + 3
    scale = rate * (1 - lag.momentum) if lag.averaged else rate
    behind = lag.stiffness - (lag.fresh if lag.anchor == "behaviour" else 0.0)
    step = np.array(
        [
            [1 + lag.momentum - scale * lag.fresh, -lag.momentum, -scale * behind],
            [1.0, 0.0, 0.0],
            [0.0, 0.0, 1.0],
        ]
    )
    out = np.zeros((size, size))
    now = np.zeros((2, size))
    now[0, 0] = now[1, 1] = 1
    # the first `rest` steps after a sync still learn from the version before the one whose turn it is
    for count, version in ((rest, whole + 1), (m - rest, whole)):
        behaviour = np.zeros(size)
        behaviour[0 if version == 0 else version + 1] = 1
        now = (np.linalg.matrix_power(step, count) @ np.vstack([now, behaviour]))[:2]
    out[:2] = now
    out[2, 0] = 1
    out[np.arange(3, size), np.arange(2, size - 1)] = 1
    return out


def roots(rate: float, lag: Lag) -> np.ndarray:
    """Eigenvalues over one period, the largest first."""
    values = np.linalg.eigvals(period_map(rate, lag))
    return values[np.argsort(-np.abs(values), kind="stable")]


def spectral_radius(rate: float, lag: Lag) -> float:
    """Per step; above 1 the distance grows without bound."""
    return float(np.abs(roots(rate, lag)[0])) ** (1 / lag.interval)


def swings(rate: float, lag: Lag) -> bool:
    """Whether the dominant mode oscillates (a negative root over a period changes side every sync)."""
    top = roots(rate, lag)[0]
    return bool(abs(top.imag) > 1e-9 * abs(top) or top.real < 0)


def exact_limit(lag: Lag) -> float:
    """The smallest η at which the recurrence stops being stable."""
    if lag.interval == 1:
        return _constant_lag_limit(lag)
    return _first(lambda rate: spectral_radius(rate, lag) > 1 + 1e-12, lag)


def oscillation_onset(lag: Lag) -> float:
    """The smallest η at which the dominant mode oscillates; infinite where it never does before the limit."""
    onset = _first(lambda rate: swings(rate, lag), lag)
    return onset if onset < exact_limit(lag) else math.inf


def _scale(lag: Lag) -> float:
    """Above every limit: a force alone loses its hold at η·stiffness = 2(1+μ) at the latest, whichever it is."""
    top = 2 * (1 + lag.momentum) * (1 / lag.stiffness + (1 / lag.fresh if lag.fresh else 0))
    return 1.1 * top / (1 - lag.momentum if lag.averaged else 1)


def _first(happens: Callable[[float], bool], lag: Lag) -> float:
    """Smallest η at which something begins: a scan upwards, then bisection to 1e-9; infinite where it never begins."""
    top = _scale(lag)
    bottom = 1e-3 / max(lag.stiffness, lag.fresh) / (1 + lag.largest) * (1 - lag.momentum)
    grid = np.geomspace(bottom, top, max(2, round(24 * math.log10(top / bottom)))).tolist()
    found = next((k for k, rate in enumerate(grid) if happens(rate)), None)
    if found is None:
        return math.inf
    low, high = grid[max(found - 1, 0)], grid[found]
    while high > low * (1 + 1e-9):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if happens(middle) else (middle, high)
    return high


def _constant_lag_limit(lag: Lag) -> float:
    """For a constant lag: the characteristic polynomial solved for η on the unit circle; the smallest positive real one."""
    d, mu = lag.offset, lag.momentum
    behind = lag.stiffness - (lag.fresh if lag.anchor == "behaviour" else 0.0)

    def rate(angle: np.ndarray | float) -> np.ndarray:
        z = np.exp(1j * np.asarray(angle))
        return -(z - (1 + mu) + mu / z) / (behind * z ** (-d) + lag.fresh)

    angles = np.linspace(1e-9, math.pi, 64 * (d + 2) + 1)
    values = rate(angles)
    found = [float(values[-1].real)]  # z = −1 is real by itself
    for k in np.flatnonzero(values.imag[:-2] * values.imag[1:-1] < 0):
        root = complex(rate(brentq(lambda angle: float(rate(angle).imag), angles[k], angles[k + 1], xtol=1e-15)))
        if abs(root.imag) < 1e-6 * abs(root.real):  # else it is a pole
            found.append(root.real)
    found = [value for value in found if value > 0]
    smallest = min(found, default=math.inf)
    return smallest / (1 - mu) if lag.averaged else smallest


def max_interval(rate: float, lag: Lag, margin: float = 1.0, unit: int = 1) -> int | None:
    """The largest sync interval with every smaller one stable at `margin` times the rate; None where there is no end
    (up to MAX_INTERVAL), 0 where even 1 is unstable. `unit`: updates in which intervals are counted."""
    for interval in range(1, MAX_INTERVAL + 1):
        if spectral_radius(rate * margin, replace(lag, interval=interval * unit)) > 1:
            return interval - 1
    return None


@dataclass(frozen=True)
class Mode:
    """The dominant mode at a learning rate, per step: `spectral_radius`, `period` in steps (None: it does not swing),
    `damping_ratio` −Re s/|s| of its rate s (1: no swing; negative: it grows)."""

    spectral_radius: float
    damping_ratio: float
    period: float | None
    regime: Literal["overdamped", "oscillatory", "unstable"]


def dominant_mode(rate: float, lag: Lag) -> Mode:
    top = complex(roots(rate, lag)[0])
    swing = swings(rate, lag)
    if top == 0:  # there at once
        return Mode(0.0, 1.0, None, "overdamped")
    s = cmath.log(top) / lag.interval
    if not swing:
        s = complex(s.real, 0.0)
    radius = math.exp(s.real)
    ratio = -s.real / abs(s) if abs(s) > 0 else 0.0
    period = 2 * math.pi / abs(s.imag) if swing else None
    regime: Literal["overdamped", "oscillatory", "unstable"] = "oscillatory" if swing else "overdamped"
    return Mode(radius, ratio, period, "unstable" if radius > 1 + 1e-12 else regime)


def gain_from_decay(decay: float, lag: Lag) -> float | None:
    """ηK of the recurrence whose dominant mode decays as e^{−decay·t} without swinging: the lag inverted.

    Constant lag, μ = 0: ηK = z^d(1−z), z = e^{−decay}; hold: 1 − ηKm = e^{−decay·m}; otherwise by bisection on the
    characteristic polynomial. None where no such gain exists (a lag this long cannot decay that fast without swinging).
    """
    if not decay > 0:
        raise ValueError(f"a decay rate must be positive, not {decay}")
    unit = replace(lag, stiffness=1.0, fresh=0.0, averaged=False)
    onset = min(oscillation_onset(unit), exact_limit(unit))
    low, high = 1e-12, onset * (1 - 1e-9)
    if spectral_radius(high, unit) > math.exp(-decay):
        return None
    while high > low * (1 + 1e-10):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spectral_radius(middle, unit) > math.exp(-decay) else (low, middle)
    return high


def gain_from_swing(decay: float, lag: Lag) -> float | None:
    """ηK of the recurrence whose dominant mode swings and decays as e^{−decay·t}: its radius falls up to where swings
    begin, and rises from its lowest value beyond to 1 at the limit. None where no swing dies out that fast.

    Raises:
        ValueError: decay is not positive.
    """
    if not decay > 0:
        raise ValueError(f"a decay rate must be positive, not {decay}")
    unit = replace(lag, stiffness=1.0, fresh=0.0, averaged=False)
    onset, high = oscillation_onset(unit), exact_limit(unit)
    if not math.isfinite(onset):
        return None
    rates = np.geomspace(onset, high, 65)
    fast = [rate for rate in rates.tolist() if spectral_radius(rate, unit) < math.exp(-decay)]
    if not fast:
        return None
    low = fast[-1]
    while high > low * (1 + 1e-10):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spectral_radius(middle, unit) > math.exp(-decay) else (middle, high)
    return high


def stationary_variance(rate: float, lag: Lag, step_variance: float) -> float:
    """Variance of e under independent noise in every step, averaged over the phases of the sync period; exact (a
    discrete Lyapunov equation of the full delay state, [d+2, d+2]). Infinite where the recurrence is unstable."""
    if spectral_radius(rate, lag) >= 1:
        return math.inf
    size, m = max(lag.largest, 1) + 1, lag.interval
    steps = []
    for i in range(m):  # the step after a sync by i steps; what it learns from is `age` steps old
        age = i - m * ((i - lag.offset) // m)
        scale = rate * (1 - lag.momentum) if lag.averaged else rate
        matrix = np.eye(size, k=-1)
        matrix[0, 0] += 1 + lag.momentum - scale * lag.fresh
        matrix[0, 1] -= lag.momentum
        matrix[0, age] -= scale * (lag.stiffness - (lag.fresh if lag.anchor == "behaviour" else 0.0))
        steps.append(matrix)
    noise = np.zeros((size, size))
    noise[0, 0] = step_variance
    over = np.eye(size)
    for matrix in steps:
        over = matrix @ over
    gathered = np.zeros((size, size))
    for matrix in steps:
        gathered = matrix @ gathered @ matrix.T + noise
    covariance = solve_discrete_lyapunov(over, gathered)
    values = []
    for matrix in steps:
        covariance = matrix @ covariance @ matrix.T + noise
        values.append(covariance[0, 0])
    return float(np.mean(values))
