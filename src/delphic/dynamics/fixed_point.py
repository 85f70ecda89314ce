"""Where GRPO with a KL anchor ends: the recursion of the success probability, its fixed points and 2-cycles.

Binary reward, exact maximisation of every step's objective (arXiv 2503.06639). With Ω the size of the advantage gap between
right and wrong answers (1/√(p(1−p)+ε) where rewards are divided by their spread, 1 where not):
reference: logit p_n = logit p_ref + Ω(p_{n−1})/β · mirror (the anchor is the policy before): logit p_n = logit p_{n−1} + Ω/β ·
two KLs, β₁ to the reference and β₂ to the policy before: logit p_n = (β₁ logit p_ref + β₂ logit p_{n−1} + Ω)/(β₁+β₂).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit


@dataclass(frozen=True)
class Recursion:
    """h of p_n = h(p_{n−1}).

    reference: p_ref in (0, 1). to_reference, to_previous: KL weights β₁ and β₂, not both 0. scaled: rewards are divided by
    their spread. epsilon: inside the root.
    """

    reference: float
    to_reference: float
    to_previous: float = 0.0
    scaled: bool = True
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if not 0 < self.reference < 1:
            raise ValueError(f"the reference's success probability must be inside (0, 1), not {self.reference}")
        if min(self.to_reference, self.to_previous) < 0 or self.to_reference + self.to_previous <= 0:
            raise ValueError("KL weights must not be negative, and one of them must be positive")

    def gap(self, p: np.ndarray | float) -> np.ndarray:
        """Ω(p), the advantage of a right answer minus that of a wrong one."""
        p = np.asarray(p, dtype=np.float64)
        return 1 / np.sqrt(p * (1 - p) + self.epsilon) if self.scaled else np.ones_like(p)

    def __call__(self, p: np.ndarray | float) -> np.ndarray:
        total = self.to_reference + self.to_previous
        anchors = self.to_reference * logit(self.reference)
        if self.to_previous > 0:
            anchors = anchors + self.to_previous * logit(np.asarray(p, dtype=np.float64))
        return expit((anchors + self.gap(p)) / total)

    def slope(self, p: float) -> float:
        """h′(p): a fixed point attracts where |h′| < 1; where h′ < −1, its neighbours fall into a 2-cycle."""
        total = self.to_reference + self.to_previous
        inner = self.to_previous / (p * (1 - p))
        if self.scaled:
            inner -= 0.5 * (1 - 2 * p) * float(self.gap(p)) ** 3
        q = float(self(p))
        return q * (1 - q) * inner / total

    def path(self, start: float, steps: int) -> np.ndarray:
        """[steps + 1] p_0, p_1, …"""
        out = [start]
        for _ in range(steps):
            out.append(float(self(out[-1])))
        return np.array(out)


@dataclass(frozen=True)
class FixedPoint:
    """p* with h(p*) = p*, h′(p*), and whether it attracts."""

    value: float
    slope: float

    @property
    def stable(self) -> bool:
        return bool(abs(self.slope) < 1)


def fixed_points(recursion: Recursion) -> list[FixedPoint]:
    """All of them that floats tell from 0 and 1, from left to right; none where there is no anchor at the reference (nothing
    holds p from 1)."""
    if recursion.to_reference == 0:
        return []
    return [FixedPoint(p, recursion.slope(p)) for p in _zeros(lambda x: _logit_step(recursion, x) - x)]


def two_cycles(recursion: Recursion) -> list[tuple[float, float]]:
    """Pairs p < q with h(p) = q and h(q) = p."""
    if recursion.to_reference == 0:
        return []
    fixed = np.array([f.value for f in fixed_points(recursion)])
    twice = _zeros(lambda x: _logit_step(recursion, _logit_step(recursion, x)) - x)
    out = []
    for p in twice:
        q = float(recursion(p))
        if p < q and not (len(fixed) and np.isclose(logit(p), logit(fixed), atol=1e-6).any()):
            out.append((p, q))
    return out


def _logit_step(recursion: Recursion, x: np.ndarray | float) -> np.ndarray:
    """logit h(σ(x)): in logits, probabilities near 0 and 1 stay apart."""
    total = recursion.to_reference + recursion.to_previous
    anchors = recursion.to_reference * logit(recursion.reference) + recursion.to_previous * np.asarray(x)
    return (anchors + recursion.gap(expit(x))) / total


def _zeros(function: Callable[[np.ndarray], np.ndarray], span: float = 36.0) -> list[float]:
    """Probabilities at whose logits in ±span a function is zero."""
    grid = np.linspace(-span, span, 20_001)
    values = function(grid)
    out = [float(expit(x)) for x in grid[values == 0]]
    for k in np.flatnonzero(values[:-1] * values[1:] < 0):
        out.append(float(expit(brentq(lambda x: float(function(np.array(x))), grid[k], grid[k + 1], xtol=1e-14))))
    return sorted(out)


def stiffness(recursion: Recursion, point: FixedPoint, free_logits: int = 1) -> float:
    """K of the two-arm softmax bandit at p*, β v* (1 − h′(p*)) with v* = p*(1−p*) (mean-only: h′ = 0); two free logits
    double it. For an anchor at the reference alone.

    Raises:
        ValueError: the recursion has another anchor.
    """
    if recursion.to_previous > 0:
        raise ValueError("the stiffness is known for an anchor at the reference alone")
    v = point.value * (1 - point.value)
    return free_logits * recursion.to_reference * v * (1 - point.slope)
