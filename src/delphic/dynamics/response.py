"""How a mode answers to learning rates: the gain ηK per step from a few steps at each of several rates.

With e the distance along one direction (measured by the update's component along it) and m the momentum,
    m_{n+1} = μ m_n + (1−μ or 1) e_n,   e_{n+1} = e_n − f·g·m_{n+1},
g = ηK the gain at the run's own rate and f what a branch multiplies it by. Every branch starts from the same e₀ and m₀, so
that g is the one number that is not linear. Theory section 3 (derived).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from delphic.dynamics.oscillator import check_momentum
from delphic.dynamics.stability import Lag, exact_limit, oscillation_onset
from delphic.statistics.interval import Interval

GAINS = np.concatenate(
    [-np.geomspace(1, 1e-3, 40), [0.0], np.geomspace(1e-3, 4, 420)]
)  # 2 % apart: far below any noise


@dataclass(frozen=True)
class Branch:
    """factor: of the learning rate. values: S arrays [P_s], the update's component before each step, by prompt."""

    factor: float
    values: Sequence[np.ndarray]


@dataclass(frozen=True)
class Response:
    """gain: g of the run's own rate, with an interval from resampled prompts. misfit: χ² per degree of freedom of the mean
    curves. swings: whether the raised rate oscillates, None where the interval does not say. sentence: for people."""

    gain: float
    low: float
    high: float
    misfit: float
    swings: bool | None
    sentence: str


def curve_basis(gain: np.ndarray, factor: float, steps: int, momentum: float, averaged: bool) -> np.ndarray:
    """[K, steps, 2] e_n per unit of e₀ and of m₀, for K gains."""
    shape = (len(gain), 1)
    e, m = np.tile([1.0, 0.0], shape), np.tile([0.0, 1.0], shape)
    out = np.empty((len(gain), steps, 2))
    for n in range(steps):
        out[:, n] = e
        m = momentum * m + ((1 - momentum) if averaged else 1.0) * e
        e = e - factor * gain[:, None] * m
    return out


def fit_response(
    branches: Sequence[Branch], momentum: float, averaged: bool, level: float = 0.95, draws: int = 200, seed: int = 0
) -> Response:
    """The gain by weighted least squares over a grid, its interval by resampling the prompts of every step.

    Raises:
        ValueError: fewer than two prompts in a step, or a momentum outside [0, 1).
    """
    check_momentum(momentum)
    parts = [np.asarray(v, dtype=np.float64) for branch in branches for v in branch.values]
    if min(len(v) for v in parts) < 2:
        raise ValueError("a response needs two prompts a step at least")
    error = np.array([v.std(ddof=1) / np.sqrt(len(v)) for v in parts])
    error = np.maximum(error, 1e-6 * max(float(error.max()), 1e-300))
    basis = [curve_basis(GAINS, b.factor, len(b.values), momentum, averaged) for b in branches]
    scaled = np.concatenate(basis, axis=1) / error[:, None]
    left_over = np.eye(len(parts)) - scaled @ np.linalg.pinv(scaled)  # [K, S, S]: what no e₀ and m₀ can explain

    rng = np.random.default_rng(seed)
    drawn = np.stack([v[rng.integers(len(v), size=(draws, len(v)))].mean(1) for v in parts], 1)
    means = np.vstack([[v.mean() for v in parts], drawn]) / error  # [1 + draws, S]
    left = np.square(np.einsum("kst,dt->dks", left_over, means, optimize=True)).sum(-1)
    best = left.argmin(1)
    low, high = (float(x) for x in np.quantile(GAINS[best[1:]], [(1 - level) / 2, (1 + level) / 2]))
    raised = max(branch.factor for branch in branches)
    misfit = float(left[0].min()) / max(len(parts) - 3, 1)
    return _judge(float(GAINS[best[0]]), low, high, misfit, raised, Lag(momentum=momentum, averaged=averaged))


def _judge(gain: float, low: float, high: float, misfit: float, raised: float, lag: Lag) -> Response:
    onset, limit = oscillation_onset(lag) / raised, exact_limit(lag) / raised
    swings = True if low > onset else False if high < onset else None
    interval = f"{gain:.3g} ({low:.3g} – {high:.3g})"
    if low <= 0 and high >= min(limit, float(GAINS[-1])):
        sentence = "cannot tell: the interval of the gain covers everything; more steps, prompts or a larger factor"
    elif low <= 0 <= high:
        sentence = f"cannot tell whether it decays: gain {interval}; more steps, prompts or a larger factor"
    else:
        ending = {True: "swings", False: "does not swing", None: "cannot tell whether it swings"}[swings]
        sentence = f"gain {interval} a step; {raised:g} × the rate: {ending}"
    return Response(gain, low, high, misfit, swings, sentence)


def reward_change(own: Sequence[np.ndarray], raised: Sequence[np.ndarray]) -> Interval:
    """Mean reward at the raised rate less that at the run's own, after the first update; 95 % by the spread over prompts.

    Args: S ≥ 2 arrays [P_s] each, the mean reward of every prompt before each step.
    """
    later = [np.concatenate([np.asarray(v, dtype=np.float64) for v in branch[1:]]) for branch in (own, raised)]
    value = float(later[1].mean() - later[0].mean())
    margin = 1.96 * float(np.sqrt(sum(v.var(ddof=1) / len(v) for v in later)))
    return Interval(value, value - margin, value + margin)


def raised_slope(windows: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], level: float = 0.95) -> Interval | None:
    """Change of y per raised step beyond its trend: least squares y = a_w + b·t + x·(raised updates so far) over windows w with a
    common b and x, and Student's interval of x.

    Args: windows: (t [n], raised updates before t [n], y [n]) each.
    Returns None where the windows do not determine x: too few values, or no raised step seen.
    """
    offsets = [np.stack([t - t.mean(), raised], 1) for t, raised, _ in windows]
    starts = np.repeat(np.eye(len(windows)), [len(t) for t, _, _ in windows], axis=0)
    design, y = np.hstack([np.vstack(offsets), starts]), np.concatenate([y for *_, y in windows])
    freedom = len(y) - design.shape[1]
    if freedom < 1 or np.linalg.matrix_rank(design) < design.shape[1]:
        return None
    inverse = np.linalg.inv(design.T @ design)
    found = inverse @ design.T @ y
    variance = float(np.square(y - design @ found).sum()) / freedom
    margin = float(stdtrit(freedom, (1 + level) / 2)) * np.sqrt(variance * inverse[1, 1])
    return Interval(float(found[1]), float(found[1] - margin), float(found[1] + margin))
