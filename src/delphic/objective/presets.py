"""The table: every named member of the family as a row of choices, with its source.

A config may name a row (`objective = "grpo"`) or start from one and change choices
(`[objective]` `preset = "grpo"`, `mask = "ring"`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from delphic.errors import UserError, nearest
from delphic.objective.objective import Objective


@dataclass(frozen=True)
class Preset:
    """One row: the choices that differ from the defaults, where it comes from, and what to know of it."""

    choices: Mapping[str, Any]
    source: str
    about: str


REC = "arXiv 2509.24203, REC"
CLIP = {"mask": "one_side", "clip_low": 0.2, "clip_high": 0.2}
SEQ_CLIP = {"mask": "one_side", "clip_low": 3e-4, "clip_high": 4e-4, "ratio_level": "sequence"}

PRESETS: dict[str, Preset] = {
    "reinforce": Preset(
        {"aggregation": "sequence_sum"}, "Williams 1992", "The plain score-function gradient; no baseline."
    ),
    "rloo": Preset(
        {"baseline": "leave_one_out", "aggregation": "sequence_sum"},
        "arXiv 2402.14740",
        "Mean of the other completions as baseline: unbiased, and the U-statistic of arXiv 2603.01162.",
    ),
    "grpo": Preset(
        {"baseline": "mean", "scale": "std", **CLIP, "importance": "ratio", "kl": "k3", "aggregation": "sequence_mean"},
        "arXiv 2402.03300",
        "Group mean and std, PPO clip, mean of token means. Set kl_coefficient > 0 for the k3 term.",
    ),
    "dr_grpo": Preset(
        {"baseline": "mean", **CLIP, "importance": "ratio", "aggregation": "constant"},
        "arXiv 2503.20783",
        "GRPO without the std and without the length in the normaliser.",
    ),
    "dapo": Preset(
        {
            "baseline": "mean",
            "scale": "std",
            "mask": "one_side",
            "clip_low": 0.2,
            "clip_high": 0.28,
            "importance": "ratio",
            "aggregation": "token_mean",
        },
        "arXiv 2503.14476",
        "Clip-higher and token mean; silent groups are refilled (sampling.dynamic), overlong_buffer is optional.",
    ),
    "gspo": Preset(
        {"baseline": "mean", "scale": "std", **SEQ_CLIP, "importance": "ratio", "aggregation": "sequence_mean"},
        "arXiv 2507.18071",
        "Importance and clip on the length-normalised sequence ratio.",
    ),
    "cispo": Preset(
        {
            "baseline": "mean",
            "scale": "std",
            "importance": "capped",
            "importance_cap": 5.0,
            "aggregation": "token_mean",
        },
        "arXiv 2506.13585",
        "No token is masked; the importance weight is capped at 1 + ε_h and not differentiated.",
    ),
    "topr": Preset(
        {"importance": "truncated_negative", "aggregation": "token_mean"},
        "arXiv 2503.14286",
        "Successes count fully, failures by min(ρ, 1), ρ per token as commonly coded; the paper's ρ is the whole "
        'completion\'s, ratio_level = "completion". With 0/1 rewards failures weigh nothing: use signed rewards, or '
        'baseline = "mean".',
    ),
    "rec_oneside_is": Preset(
        {"baseline": "mean", **CLIP, "importance": "ratio"}, REC, "PPO clip with importance weights."
    ),
    "rec_oneside_nois": Preset({"baseline": "mean", **CLIP}, REC, "The clip alone, without importance weights."),
    "rec_twoside_is": Preset(
        {"baseline": "mean", **CLIP, "mask": "two_side", "importance": "ratio"}, REC, "Both signs masked on both sides."
    ),
    "rec_twoside_nois": Preset(
        {"baseline": "mean", **CLIP, "mask": "two_side"}, REC, "Two-side mask, no importance weights."
    ),
    "rec_ring_nois": Preset(
        {"baseline": "mean", **CLIP, "mask": "ring", "ring_low": 0.6, "ring_high": 2.0},
        REC,
        "Two-side, and far outside where the step leads back.",
    ),
    "rec_gspo_is": Preset(
        {"baseline": "mean", **SEQ_CLIP, "importance": "ratio", "aggregation": "sequence_mean"},
        REC,
        "One-side clip and importance on the sequence ratio, no std.",
    ),
    "rec_gspo_nois": Preset(
        {"baseline": "mean", **SEQ_CLIP, "aggregation": "sequence_mean"},
        REC,
        "One-side clip on the sequence ratio alone.",
    ),
    "red_drop": Preset(
        {"baseline": "mean", "selection": "balance"},
        "arXiv 2509.24203, RED",
        "Surplus negatives are dropped at random; the mean is that of the kept.",
    ),
    "red_weight": Preset(
        {"baseline": "mean", "data_weight": "exponential", "data_weight_temperature": 1.0},
        "arXiv 2509.24203, RED",
        "Each completion weighs exp(A/T).",
    ),
    "opmd": Preset(
        {"baseline": "mean", "quadratic": 0.1},
        "arXiv 2509.24203, OPMD",
        'τ/2 (log π − log π_behaviour)² keeps the step near the data. quadratic_level = "token" is the common code\'s form.',
    ),
    "opmd_logavgexp": Preset(
        {"baseline": "log_mean_exp", "baseline_temperature": 1.0, "multiplier": 0.5},
        "arXiv 2509.24203, OPMD; arXiv 2505.17826",
        "Baseline τ log mean exp(r/τ); the gradient is divided by 1 + τ (change multiplier with baseline_temperature).",
    ),
    "asymre": Preset(
        {"baseline": "mean", "baseline_shift": 0.1},
        "arXiv 2506.20520",
        "Baseline r̄ − β: equal to adding β · mean log(π_behaviour/π).",
    ),
    "pairwise": Preset(
        {"baseline": "mean", "pairwise": 0.1, "aggregation": "sequence_sum"},
        "arXiv 2509.24203, section 2",
        "The surrogate (1/K²) Σ_{i<j} (a_i − a_j)² with a = r − τ (log π − log π_behaviour); its first step is 2τ × group REINFORCE.",
    ),
    "sppo": Preset(
        {"baseline": "mean", "scale": "std", "mask": "two_side", "clip_low": 1 - 1 / 1.3, "clip_high": 0.3},
        "arXiv 2108.05828",
        "Softmax PPO: A log clip(ρ, 1/(1+ε), 1+ε) with ε = .3, whose gradient is A inside the band and 0 outside.",
    ),
    "sapo": Preset(
        {"baseline": "mean", "scale": "std", "importance": "soft_gate", "aggregation": "sequence_mean"},
        "arXiv 2511.20347",
        "A smooth gate in place of the clip: τ = 1.0 for A > 0, 1.05 otherwise.",
    ),
    "opo": Preset(
        {"baseline": "length_mean", "aggregation": "token_mean"},
        "arXiv 2505.23585",
        "Length-weighted mean reward as baseline; strictly on-policy.",
    ),
    "maxrl": Preset(
        {"baseline": "mean", "scale": "mean", "aggregation": "token_mean"},
        "arXiv 2602.02710",
        "A = (r − r̄)/r̄: the first terms of maximum likelihood. For rewards ≥ 0.",
    ),
    "reinforce_pp": Preset(
        {"scale": "batch_whiten", **CLIP, "importance": "ratio", "aggregation": "token_mean"},
        "arXiv 2501.03262",
        'No group baseline: rewards whitened over the batch\'s tokens. KL, where wanted: kl = "k1", kl_place = "reward".',
    ),
    "reinforce_pp_baseline": Preset(
        {"baseline": "mean", "scale": "batch_whiten", **CLIP, "importance": "ratio", "aggregation": "token_mean"},
        "arXiv 2501.03262",
        "Group mean subtracted, then whitened over the batch's tokens.",
    ),
    "a2c": Preset(
        {"baseline": "critic", "aggregation": "sequence_sum"},
        "arXiv 2603.01162",
        "A learned V(x): a linear value head on the prompt's last hidden state, regressed on the rewards.",
    ),
    "oracle": Preset(
        {"baseline": "oracle", "aggregation": "sequence_sum"},
        "arXiv 2603.01162",
        "The true V(x), from the task or from a Monte-Carlo budget (sampling.oracle_samples).",
    ),
    "best_baseline": Preset(
        {"baseline": "score_norm_mean", "aggregation": "sequence_sum"},
        "Greensmith et al., JMLR 2004",
        "The variance-optimal baseline of a prompt, Σ‖S‖²r / Σ‖S‖²; costs one backward pass per completion.",
    ),
}


def build(spec: str | Mapping[str, Any], where: str = "objective") -> Objective:
    """A named row, or a table of choices with an optional `preset` to start from.

    Raises:
        UserError: unknown preset or choice (with the nearest valid one), or choices that contradict each other.
    """
    if isinstance(spec, str):
        spec = {"preset": spec}
    choices = dict(spec)
    name = choices.pop("preset", None)
    row: dict[str, Any] = {}
    if name is not None:
        if name not in PRESETS:
            raise UserError(f'{where}: there is no objective "{name}"{nearest(str(name), PRESETS)}')
        row = {"name": name, **PRESETS[name].choices}
        if choices and "name" not in choices:
            row["name"] = f"{name} (modified)"
    for key in choices:
        if key not in Objective.model_fields:
            raise UserError(f"{where}.{key}: no such choice{nearest(key, Objective.model_fields)}")
    try:
        return Objective(**{**row, **choices})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join([where, *(str(part) for part in first["loc"])])
        text = first["msg"].removeprefix("Value error, ")
        raise UserError(f"{place}: {text}") from None
