"""An objective is a row of choices: advantage × shaping × importance × mask, + penalty, aggregated.

    L = −agg( sg(A · w · u · M) · log π ) + penalty          (sg: stop-gradient; arXiv 2509.24203, section 2)

`Objective` holds the choices. `prepare` (prepare.py) turns the rewards of a whole optimiser step into advantages;
`coefficients` (coefficients.py) gives the factor in front of each token's ∇ log π. Neither knows of models or autograd.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

GROUP_BASELINES = ("mean", "leave_one_out", "length_mean", "score_norm_mean", "log_mean_exp")


class Objective(BaseModel):
    """The choices that make one member of the family. Defaults: plain REINFORCE with nothing added."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

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
    ratio_level: Literal["token", "sequence", "completion"] = Field(
        "token",
        description="What importance and mask see. sequence: the geometric mean ratio of the completion (GSPO); "
        "completion: the product (TOPR as published).",
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
    def cancels_lag(self) -> bool:
        """Whether the expected update is that of the current policy, whatever policy sampled: the whole completion's ratio,
        unmasked, times an advantage whose mean over the other completions does not depend on who sampled them (derived;
        a token's ratio, that of a KL term included, leaves the distribution of the tokens before it)."""
        weighted = self.importance == "ratio" and self.ratio_level == "completion" and self.mask == "none"
        linear = self.baseline in ("none", "mean", "leave_one_out", "oracle") and self.scale == "none"
        plain = self.data_weight == "none" and self.selection == "all" and self.reward_normalization == "none"
        unanchored = not self.needs_reference and self.pairwise == 0 and self.quadratic == 0
        return weighted and linear and plain and unanchored

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
