"""An objective is a row of choices: advantage × shaping × importance × mask, + penalty, aggregated.

    L = −agg( sg(A · w · u · M) · log π ) + penalty          (sg: stop-gradient; arXiv 2509.24203, section 2)

`Objective` holds the choices. `prepare` turns the rewards of a whole optimiser step into advantages;
`coefficients` gives the factor in front of each token's ∇ log π. Neither knows of models or autograd.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace
from pydantic import BaseModel, ConfigDict, Field, model_validator

from delphic.objective import advantage as adv
from delphic.objective import penalty, ratio, shaping
from delphic.objective.aggregate import Totals

Array = Any

GROUP_BASELINES = ("mean", "leave_one_out", "length_mean", "score_norm_mean", "log_mean_exp")


class Objective(BaseModel):
    """The choices that make one member of the family. Defaults: plain REINFORCE with nothing added."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("custom", description="Label in reports.")
    # reward and advantage
    reward_normalization: Literal["none", "per_reward"] = Field(
        "none", description="per_reward: each reward function is normalised within its group before they are added."
    )
    overlong_buffer: int = Field(
        0, ge=0, description="Tokens before the length limit over which the soft punishment grows; 0 = off."
    )
    overlong_penalty: float = Field(
        1.0, ge=0, description="Size of the overlong punishment at the limit, in reward units."
    )
    selection: Literal["all", "balance"] = Field(
        "all", description="balance: drop surplus negatives at random (RED-Drop)."
    )
    baseline: Literal[
        "none", "mean", "leave_one_out", "length_mean", "score_norm_mean", "log_mean_exp", "oracle", "critic"
    ] = Field("none", description="What is subtracted from the reward.")
    baseline_shift: float = Field(0.0, description="β: the baseline becomes baseline − β (AsymRE).")
    baseline_temperature: float = Field(1.0, gt=0, description="τ of log_mean_exp, in reward units.")
    scale: Literal["none", "std", "mean", "batch_whiten"] = Field(
        "none", description="What the advantage is divided by."
    )
    scale_epsilon: float = Field(1e-6, ge=0, description="ε added to the (sample) standard deviation.")
    truncated: Literal["keep", "mask"] = Field(
        "keep", description="mask: completions cut at the length limit do not learn."
    )
    silent_groups: Literal["penalise", "mask"] = Field(
        "penalise", description="Whether groups of equal rewards still feel the penalty terms."
    )
    # shaping
    data_weight: Literal["none", "exponential"] = Field("none", description="exponential: times exp(A/T) (RED-Weight).")
    data_weight_temperature: float = Field(1.0, gt=0, description="T of the exponential weight.")
    multiplier: float = Field(1.0, gt=0, description="Constant factor of the policy term.")
    # importance and mask
    importance: Literal["none", "ratio", "capped", "truncated_negative", "soft_gate"] = Field(
        "none", description="u: none, ρ, min(ρ, cap), TOPR's, or SAPO's gate."
    )
    importance_cap: float = Field(5.0, gt=0, description="c of min(ρ, c); CISPO's 1 + ε_h.")
    gate_positive: float = Field(1.0, gt=0, description="SAPO's τ where A > 0.")
    gate_negative: float = Field(1.05, gt=0, description="SAPO's τ elsewhere.")
    mask: Literal["none", "one_side", "two_side", "ring"] = Field("none", description="Which ratios may learn.")
    clip_low: float = Field(0.2, ge=0, description="ε_l: lower edge 1 − ε_l.")
    clip_high: float = Field(0.2, ge=0, description="ε_h: upper edge 1 + ε_h.")
    ring_low: float = Field(0.6, ge=0, description="ε′_l of the ring.")
    ring_high: float = Field(2.0, ge=0, description="ε′_h of the ring.")
    ratio_level: Literal["token", "sequence"] = Field(
        "token", description="sequence: importance and mask see the geometric mean ratio of the completion (GSPO)."
    )
    # penalties
    kl: Literal["none", "k1", "k2", "k3"] = Field("none", description="Estimator of KL(π‖reference).")
    kl_coefficient: float = Field(0.0, ge=0, description="β of the KL term; 0 = no reference model.")
    kl_place: Literal["loss", "reward"] = Field("loss", description="Where the KL term enters.")
    kl_corrected: bool = Field(
        False, description="Weight the estimator by π/π_behaviour, so its gradient is ∇KL(π‖ref)."
    )
    quadratic: float = Field(0.0, ge=0, description="τ of OPMD's τ/2 (log π − log π_behaviour)².")
    quadratic_level: Literal["sequence", "token"] = Field(
        "sequence", description="Square of the sum, or sum of squares."
    )
    pairwise: float = Field(0.0, ge=0, description="τ of the pairwise surrogate (1/K²) Σ (a_i − a_j)²; 0 = off.")
    entropy_bonus: float = Field(
        0.0, ge=0, description="Coefficient of the exact token entropy, added to what is maximised."
    )
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum", "constant"] = Field(
        "token_mean", description="How tokens become one number."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Objective:
        if self.kl == "k1" and self.kl_place == "loss":
            raise ValueError(
                "kl: k1 in the loss has zero expected gradient, so it would regularise nothing; "
                'use kl = "k3" with kl_corrected = true, kl = "k2", or kl_place = "reward"'
            )
        if self.kl_coefficient > 0 and self.kl == "none":
            raise ValueError('kl_coefficient is set but kl = "none"; choose kl = "k2", "k3", or "k1" in the reward')
        if self.mask == "ring" and (self.ring_low < self.clip_low or self.ring_high < self.clip_high):
            raise ValueError("ring_low and ring_high must not be smaller than clip_low and clip_high")
        if self.pairwise > 0 and (self.baseline != "mean" or self.scale != "none"):
            raise ValueError('pairwise compares within the group: it needs baseline = "mean" and scale = "none"')
        return self

    @property
    def group_relative(self) -> bool:
        """Whether a group of one completion would learn nothing."""
        return self.baseline in GROUP_BASELINES or self.scale in ("std", "mean") or self.selection == "balance"

    @property
    def needs_behaviour(self) -> bool:
        """Whether the ratio to the behaviour policy enters the gradient (and so needs its full support)."""
        kl_ratio = self.uses_kl_loss and self.kl_corrected
        return self.importance != "none" or self.mask != "none" or self.quadratic > 0 or self.pairwise > 0 or kl_ratio

    @property
    def uses_kl_loss(self) -> bool:
        return self.kl != "none" and self.kl_coefficient > 0 and self.kl_place == "loss"

    @property
    def uses_kl_reward(self) -> bool:
        return self.kl != "none" and self.kl_coefficient > 0 and self.kl_place == "reward"

    @property
    def needs_reference(self) -> bool:
        return self.uses_kl_loss or self.uses_kl_reward

    @property
    def has_penalty(self) -> bool:
        """Whether a completion of zero advantage can still have a gradient."""
        return self.uses_kl_loss or self.quadratic > 0 or self.pairwise > 0 or self.entropy_bonus > 0


@dataclass(frozen=True)
class StepInputs:
    """What `prepare` may need beside rewards, all in the order of the completions.

    | field | shape | meaning |
    |---|---|---|
    | rewards | [N] | float64; NaN takes the completion out |
    | groups | [N] | integer group ids; any values, any order |
    | lengths | [N] | tokens that the policy wrote |
    | truncated | [N] | bool: cut at the length limit |
    | max_length | – | the length limit, tokens |
    | values | [N] | V(x) of the completion's prompt (critic, oracle) |
    | score_norms | [N] | ‖∇ log π(y)‖² |
    | priority | [N] | independent uniforms, for what is dropped at random |
    | components | [K, N] | each reward function's values; with component_weights [K] |
    | sequence_log_ratio | [N] | Σ_t log π − log π_behaviour now (pairwise) |
    | sequence_kl | [N] | Σ_t KL estimate (KL in the reward) |
    """

    rewards: np.ndarray
    groups: np.ndarray
    lengths: np.ndarray | None = None
    truncated: np.ndarray | None = None
    max_length: int | None = None
    values: np.ndarray | None = None
    score_norms: np.ndarray | None = None
    priority: np.ndarray | None = None
    components: np.ndarray | None = None
    component_weights: np.ndarray | None = None
    sequence_log_ratio: np.ndarray | None = None
    sequence_kl: np.ndarray | None = None


@dataclass(frozen=True)
class Prepared:
    """Advantages of one optimiser step. All arrays [N], float64 or bool."""

    advantage: np.ndarray  # A, as the objective defines it
    coefficient: np.ndarray  # A · w · multiplier: what importance and mask then multiply
    kept: np.ndarray  # whether the completion counts in the normaliser
    penalised: np.ndarray  # whether the penalty terms act on it
    silent: np.ndarray  # member of a group whose rewards are all equal
    reasons: dict[int, str] = field(default_factory=dict)  # why a row is not kept

    def totals(self, lengths: np.ndarray) -> Totals:
        return Totals(int(self.kept.sum()), int(lengths[self.kept].sum()))


def group_slots(groups: np.ndarray) -> np.ndarray:
    """[P, G_max] row numbers of each group's members, −1 where a group has fewer. Groups by id, never by position."""
    _, inverse, counts = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(inverse, kind="stable")
    slots = np.full((len(counts), int(counts.max(initial=0))), -1, dtype=np.int64)
    starts = np.cumsum(counts) - counts
    slots[inverse[order], np.arange(len(groups)) - np.repeat(starts, counts)] = order
    return slots


def _require(value: np.ndarray | None, what: str, why: str) -> np.ndarray:
    if value is None:
        raise ValueError(f"{why} needs {what}")
    return value


def prepare(objective: Objective, step: StepInputs) -> Prepared:
    """Advantages of a whole optimiser step. Independent of the order of the rows (to rounding).

    Raises:
        ValueError: an input that the objective needs is missing (its name is in the text).
    """
    rewards = np.asarray(step.rewards, dtype=np.float64)
    slots = group_slots(np.asarray(step.groups))
    present = slots >= 0

    def dense(x: np.ndarray) -> np.ndarray:
        return np.asarray(x, dtype=np.float64)[..., slots]

    def flat(x_PG: np.ndarray) -> np.ndarray:
        out = np.zeros(len(rewards), dtype=x_PG.dtype)
        out[slots[present]] = np.broadcast_to(x_PG, slots.shape)[present]
        return out

    reasons: dict[int, str] = {int(i): "reward is not a number" for i in np.flatnonzero(~np.isfinite(rewards))}
    if objective.truncated == "mask":
        cut = _require(step.truncated, "truncated", 'truncated = "mask"')
        reasons.update({int(i): "truncated" for i in np.flatnonzero(cut) if int(i) not in reasons})
    usable = np.ones(len(rewards), dtype=bool)
    usable[list(reasons)] = False
    valid = present & usable[slots]

    shaped = np.where(usable, _shape(objective, step, rewards, dense, flat, valid), 0.0)
    r = dense(shaped)
    if objective.group_relative:
        lone = valid & (adv.masked_count(r, valid) < 2)
        reasons.update({int(i): "alone in its group" for i in slots[lone]})
        valid = valid & ~lone
    if objective.selection == "balance":
        keep = adv.balance(r, valid, dense(_require(step.priority, "priority", 'selection = "balance"')))
        reasons.update({int(i): "surplus negative" for i in slots[valid & ~keep]})
        silent = adv.all_equal(r, valid)
        valid = keep
    else:
        silent = adv.all_equal(r, valid)
    if objective.pairwise > 0:
        moved = dense(_require(step.sequence_log_ratio, "sequence_log_ratio", "pairwise"))
        r = np.where(valid, r - objective.pairwise * moved, 0.0)

    advantage = _advantage(objective, step, r, valid, dense)
    kept = flat(valid)
    advantage_N = flat(advantage)
    if objective.scale == "batch_whiten" and kept.any():
        lengths = np.ones(len(rewards)) if step.lengths is None else np.asarray(step.lengths, dtype=np.float64)
        advantage_N = adv.whiten(advantage_N, kept, lengths, objective.scale_epsilon)
    weight = 1.0
    if objective.data_weight == "exponential":
        weight = shaping.exponential_weight(advantage_N, objective.data_weight_temperature)
    silent_N = flat(silent & present)
    multiplier = objective.multiplier * (2 * objective.pairwise if objective.pairwise > 0 else 1.0)
    masked_silent = silent_N if objective.silent_groups == "mask" else np.zeros_like(silent_N)
    coefficient = np.where(kept & ~masked_silent, advantage_N * weight * multiplier, 0.0)
    return Prepared(advantage_N, coefficient, kept, kept & ~masked_silent, silent_N, reasons)


def _shape(objective: Objective, step: StepInputs, rewards: Array, dense: Any, flat: Any, valid: Array) -> Array:
    """The reward that the baseline sees: per-reward normalisation, overlong punishment, KL in the reward."""
    if objective.reward_normalization == "per_reward" and step.components is not None:
        weights = np.ones(len(step.components)) if step.component_weights is None else step.component_weights
        rewards = sum(
            w
            * flat(
                shaping.per_reward_normalised(dense(part), valid & np.isfinite(dense(part)), objective.scale_epsilon)
            )
            for w, part in zip(weights, step.components, strict=True)
        )
    if objective.overlong_buffer > 0:
        lengths = np.asarray(_require(step.lengths, "lengths", "overlong_buffer"), dtype=np.float64)
        if step.max_length is None or step.max_length < objective.overlong_buffer:
            raise ValueError(f"overlong_buffer = {objective.overlong_buffer} needs a length limit of at least that")
        punishment = shaping.overlong(lengths, step.max_length, objective.overlong_buffer)
        rewards = rewards + objective.overlong_penalty * punishment
    if objective.uses_kl_reward:
        kl = _require(step.sequence_kl, "sequence_kl", 'kl_place = "reward"')
        rewards = rewards - objective.kl_coefficient * kl
    return rewards


def _advantage(objective: Objective, step: StepInputs, r: Array, valid: Array, dense: Any) -> Array:
    """[P, G] the advantage before whitening over the batch."""
    kind = objective.baseline
    if kind == "none":
        baseline = np.zeros_like(r)
    elif kind == "mean":
        baseline = adv.mean(r, valid)
    elif kind == "leave_one_out":
        baseline = adv.leave_one_out(r, valid)
    elif kind == "length_mean":
        baseline = adv.weighted_mean(r, valid, dense(_require(step.lengths, "lengths", 'baseline = "length_mean"')))
    elif kind == "score_norm_mean":
        norms = _require(step.score_norms, "score_norms", 'baseline = "score_norm_mean"')
        baseline = adv.weighted_mean(r, valid, dense(norms))
    elif kind == "log_mean_exp":
        baseline = adv.log_mean_exp(r, valid, objective.baseline_temperature)
    else:
        baseline = dense(_require(step.values, "values", f'baseline = "{kind}"'))
    advantage = adv.subtract(r, valid, baseline) if kind in GROUP_BASELINES else np.where(valid, r - baseline, 0.0)
    advantage = np.where(valid, advantage + objective.baseline_shift, 0.0)
    if objective.scale == "std":
        advantage = adv.over_std(advantage, r, valid, objective.scale_epsilon)
    elif objective.scale == "mean":
        advantage = adv.over_mean(advantage, r, valid)
    return np.where(valid, advantage, 0.0)


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
    seen = log_ratio if objective.ratio_level == "token" else ratio.sequence_log_ratio(log_ratio, mask)
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
