"""Regularisers. Each estimator comes as its value and as the factor in front of ∇ log π in its gradient.

With the factor known in closed form, a penalty is one more score-function coefficient: no second graph, and
the same lines serve numpy and torch. `delta` = log π − log π_ref, [N, T]; `ratio` = π/π_behaviour.

What each KL estimator's gradient does, in expectation over y ~ π (tested by enumeration):
k1 in the loss: nothing at all (refused). k2: ∇KL(π‖ref). k3: ∇KL(ref‖π), the *other* direction.
k3 corrected (times π/π_behaviour, differentiated through): ∇KL(π‖ref), off-policy too.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

Array = Any


def kl_value(delta: Array, estimator: str) -> Array:
    """Per-token estimate of KL(π‖ref) in nats: k1 = δ, k2 = δ²/2, k3 = e^{−δ} − 1 + δ
    (J. Schulman, "Approximating KL divergence", 2020)."""
    if estimator == "k1":
        return delta
    if estimator == "k2":
        return delta**2 / 2
    xp = array_namespace(delta)
    return xp.expm1(-delta) + delta


def kl_factor(delta: Array, ratio: Array, estimator: str, corrected: bool) -> Array:
    """d(estimator)/d log π. Corrected: of ρ·estimator for k3, ρ times the factor for k2; both give ρ·δ."""
    if corrected:
        return ratio * delta
    if estimator == "k2":
        return delta
    xp = array_namespace(delta)
    if estimator == "k1":
        return xp.ones_like(delta)
    return -xp.expm1(-delta)


def quadratic_factor(log_ratio: Array, mask: Array, level: str) -> Array:
    """d/d log π of ½(log π − log π_behaviour)², OPMD (arXiv 2509.24203, section 4).

    `sequence`: the square of the completion's summed log-ratio, as derived. `token`: of each token's, as
    commonly coded. Equal for one-token completions.
    """
    if level == "token":
        return log_ratio
    xp = array_namespace(log_ratio)
    total = xp.sum(log_ratio * xp.astype(mask, log_ratio.dtype), axis=-1, keepdims=True)
    return total + xp.zeros_like(log_ratio)
