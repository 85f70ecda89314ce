"""Ratios to the behaviour policy: importance u, and mask M. Array-API functions, elementwise.

`log_ratio` = log π − log π_behaviour, shape [N, T] (a token's) or [N, 1] (a sequence's);
`advantage` broadcasts against it, [N, 1].
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

Array = Any


def sequence_log_ratio(log_ratio: Array, mask: Array) -> Array:
    """[N, 1] mean over a completion's tokens of the log-ratio: log of GSPO's s (arXiv 2507.18071, eq. 7)."""
    xp = array_namespace(log_ratio)
    weight = xp.astype(mask, log_ratio.dtype)
    count = xp.sum(weight, axis=-1, keepdims=True)
    return xp.sum(log_ratio * weight, axis=-1, keepdims=True) / xp.where(count > 0, count, xp.ones_like(count))


def completion_log_ratio(log_ratio: Array, mask: Array) -> Array:
    """[N, 1] sum over a completion's tokens of the log-ratio: log of π(y|x)/π_behaviour(y|x)."""
    xp = array_namespace(log_ratio)
    return xp.sum(log_ratio * xp.astype(mask, log_ratio.dtype), axis=-1, keepdims=True)


def capped(ratio: Array, cap: float) -> Array:
    """min(ρ, c): truncated importance sampling; with c = 1 + ε_h, CISPO (arXiv 2506.13585, eq. 5)."""
    xp = array_namespace(ratio)
    return xp.where(ratio < cap, ratio, xp.full_like(ratio, cap))


def truncated_negative(ratio: Array, advantage: Array) -> Array:
    """TOPR (arXiv 2503.14286): 1 where A > 0, else min(ρ, 1)."""
    xp = array_namespace(ratio)
    return xp.where(advantage > 0, xp.ones_like(ratio), capped(ratio, 1.0))


def soft_gate(ratio: Array, advantage: Array, tau_positive: float, tau_negative: float) -> Array:
    """SAPO (arXiv 2511.20347): the derivative in log π of (4/τ) σ(τ(ρ − 1)), that is 4 ρ σ(1 − σ).

    τ = `tau_positive` where A > 0, `tau_negative` elsewhere; 1 at ρ = 1 for either.
    """
    xp = array_namespace(ratio)
    tau = xp.where(advantage > 0, xp.full_like(ratio, tau_positive), xp.full_like(ratio, tau_negative))
    gate = 1 / (1 + xp.exp(-tau * (ratio - 1)))
    closed = 1 - gate <= 0  # its limit, where ρ itself may have overflown
    return xp.where(closed, xp.zeros_like(ratio), 4 * ratio * gate * (1 - gate))


def one_side(ratio: Array, advantage: Array, low: float, high: float) -> Array:
    """Where PPO-clip passes the gradient: A ≥ 0 and ρ ≤ 1 + ε_h, or A < 0 and ρ ≥ 1 − ε_l."""
    return ((advantage >= 0) & (ratio <= 1 + high)) | ((advantage < 0) & (ratio >= 1 - low))


def two_side(ratio: Array, low: float, high: float) -> Array:
    """1 − ε_l ≤ ρ ≤ 1 + ε_h, whatever the sign."""
    return (ratio >= 1 - low) & (ratio <= 1 + high)


def ring(ratio: Array, advantage: Array, low: float, high: float, ring_low: float, ring_high: float) -> Array:
    """Two-side, or far outside on the side from which the step leads back: A ≥ 0 and ρ ≤ 1 − ε′_l, or
    A < 0 and ρ ≥ 1 + ε′_h (arXiv 2509.24203, REC-Ring)."""
    far = ((advantage >= 0) & (ratio <= 1 - ring_low)) | ((advantage < 0) & (ratio >= 1 + ring_high))
    return two_side(ratio, low, high) | far
