"""The factor in front of every token's ∇ log π: importance, mask and penalties, from values alone (no graph)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

from delphic.objective import penalty, ratio
from delphic.objective.objective import Objective

Array = Any


@dataclass(frozen=True)
class Coefficients:
    """Factors in front of each token's ∇ log π, [N, T]; the step ascends `policy + penalty`."""

    policy: Array  # A · w · u · M
    penalty: Array  # −(penalty's own factor)
    importance: Array  # u
    learns: Array  # M, bool
    ratio: Array  # ρ, at the level that u and M see


def coefficients(
    objective: Objective,
    coefficient: Array,
    penalised: Array,
    log_ratio: Array,
    mask: Array,
    reference_log_ratio: Array | None = None,
) -> Coefficients:
    """The factor in front of every token's ∇ log π, from values alone (no graph).

    Args:
        coefficient: [N, 1] A · w from `prepare`.
        penalised: [N, 1] float, 0 where no penalty acts.
        log_ratio: [N, T] log π − log π_behaviour; 0 outside the mask.
        mask: [N, T] float loss mask.
        reference_log_ratio: [N, T] log π − log π_ref, for a KL term in the loss.
    """
    xp = array_namespace(log_ratio)
    seen = {
        "token": lambda: log_ratio,
        "sequence": lambda: ratio.sequence_log_ratio(log_ratio, mask),
        "completion": lambda: ratio.completion_log_ratio(log_ratio, mask),
    }[objective.ratio_level]()
    rho = xp.exp(seen)
    ones = xp.ones_like(log_ratio)
    u = {
        "none": lambda: ones,
        "ratio": lambda: rho * ones,
        "capped": lambda: ratio.capped(rho, objective.importance_cap) * ones,
        "truncated_negative": lambda: ratio.truncated_negative(rho, coefficient) * ones,
        "soft_gate": lambda: ratio.soft_gate(rho, coefficient, objective.gate_positive, objective.gate_negative) * ones,
    }[objective.importance]()
    low, high = objective.clip_low, objective.clip_high
    if objective.mask == "none":
        learns = ones > 0
    elif objective.mask == "one_side":
        learns = ratio.one_side(rho, coefficient, low, high) & (ones > 0)
    elif objective.mask == "two_side":
        learns = ratio.two_side(rho, low, high) & (ones > 0)
    else:
        learns = ratio.ring(rho, coefficient, low, high, objective.ring_low, objective.ring_high) & (ones > 0)
    # `where`, not a product: the ratio of a token that does not count may be infinite, and 0 · ∞ poisons the step
    policy = xp.where(learns & (coefficient != 0), coefficient * u, xp.zeros_like(u))
    factor = xp.zeros_like(log_ratio)
    if objective.quadratic > 0:
        factor = factor + objective.quadratic * penalty.quadratic_factor(log_ratio, mask, objective.quadratic_level)
    if objective.uses_kl_loss:
        if reference_log_ratio is None:
            raise ValueError("a KL term in the loss needs reference_log_ratio")
        # the estimator's correction is the token's own ratio, whatever level the policy term uses
        own = xp.exp(log_ratio)
        kl = penalty.kl_factor(reference_log_ratio, own, objective.kl, objective.kl_corrected)
        factor = factor + objective.kl_coefficient * kl
    felt = xp.where((penalised != 0) & (ones > 0), -factor * penalised, xp.zeros_like(factor))
    return Coefficients(policy, felt, u, learns, rho * ones)
