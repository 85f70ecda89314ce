"""Training as a damped oscillator: M ë + C ė + K_eff e = noise, e the distance of the reward from its fixed point.

Coefficients and closed forms of arXiv 2606.30789, where M is the second-order expansion of the recurrence
e_{t+1} = e_t + μ (e_t − e_{t−1}) − ηK e_{t−d} (derived; theory section 3). They read the settings; `stability.py` has the
exact limits of the recurrence itself.
"""

from __future__ import annotations

import cmath
import math
from dataclasses import dataclass

import numpy as np

OVERDAMPED_GAIN = math.sqrt(2) - 1  # ηK·d/(1−μ) below which C² > 4·M·K_eff, for small ηK


@dataclass(frozen=True)
class Oscillator:
    """mass M, damping C, stiffness K_eff; time in optimiser steps."""

    mass: float
    damping: float
    stiffness: float

    @property
    def rates(self) -> tuple[complex, complex]:
        """(λ₋, λ₊) of e^{−λt}, the slower first: (C ∓ √(C² − 4·M·K_eff)) / 2M."""
        root = cmath.sqrt(self.damping**2 - 4 * self.mass * self.stiffness)
        return (self.damping - root) / (2 * self.mass), (self.damping + root) / (2 * self.mass)

    @property
    def damping_ratio(self) -> float:
        """C / (2√(M·K_eff)): 1 is critical, below it the path swings, below 0 it grows."""
        return self.damping / (2 * math.sqrt(self.mass * self.stiffness))

    @property
    def period(self) -> float | None:
        """Steps of one swing; None where the path does not swing."""
        swing = abs(self.rates[0].imag)
        return 2 * math.pi / swing if swing > 0 else None

    @property
    def regime(self) -> str:
        if self.damping <= 0:
            return "unstable"
        return "oscillatory" if self.damping**2 < 4 * self.mass * self.stiffness else "overdamped"

    def variance(self, noise: float, completions: int) -> float:
        """Stationary variance D/(2·G·C·K_eff) for D = `noise`, the variance of a step at one completion a prompt."""
        return noise / (2 * completions * self.damping * self.stiffness)


def oscillator(gain: float, momentum: float, lag: float) -> Oscillator:
    """M = ½[(1+μ) + ηK·d²], C = (1−μ) − ηK·d, K_eff = ηK.

    Args:
        gain: ηK, what one undelayed step takes off the distance.
        momentum: μ of heavy-ball momentum, in [0, 1).
        lag: d, steps between the policy that samples and the one that learns.

    Raises:
        ValueError: gain not positive, momentum outside [0, 1), lag negative.
    """
    if not gain > 0:
        raise ValueError(f"the gain ηK must be positive, not {gain}")
    check_momentum(momentum)
    if lag < 0:
        raise ValueError(f"the lag must not be negative, it is {lag}")
    return Oscillator(0.5 * (1 + momentum + gain * lag**2), 1 - momentum - gain * lag, gain)


def check_momentum(momentum: float) -> None:
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be in [0, 1), not {momentum}")


def inertial_time(momentum: float) -> float:
    """M/C without lag, (1+μ)/(2(1−μ)) steps: a slow start much longer than this is not momentum."""
    check_momentum(momentum)
    return (1 + momentum) / (2 * (1 - momentum))


def exact_variance(gain: float, momentum: float, step_variance: float) -> float:
    """Stationary variance without lag, step_variance·(1+μ)/[(1−μ)ηK(2(1+μ)−ηK)]: e is an AR(2).

    step_variance: of the noise that one step adds, η²σ²/G.

    Raises:
        ValueError: the gain is outside (0, 2(1+μ)), where there is no stationary state.
    """
    if not 0 < gain < 2 * (1 + momentum):
        raise ValueError(f"without lag there is a stationary state for ηK in (0, {2 * (1 + momentum):g}), not {gain:g}")
    return step_variance * (1 + momentum) / ((1 - momentum) * gain * (2 * (1 + momentum) - gain))


def response(system: Oscillator, steps: np.ndarray) -> np.ndarray:
    """[T] e(t)/e(0) from rest: (λ₊e^{−λ₋t} − λ₋e^{−λ₊t})/(λ₊ − λ₋), the damped cosine where the rates are complex, and
    (1 + λt)e^{−λt} where they coincide."""
    slow, fast = system.rates
    t = np.asarray(steps, dtype=np.float64)
    gap = fast - slow
    if abs(gap) <= 1e-9 * abs(fast):
        rate = 0.5 * (slow + fast).real
        return (1 + rate * t) * np.exp(-rate * t)
    return ((fast * np.exp(-slow * t) - slow * np.exp(-fast * t)) / gap).real
