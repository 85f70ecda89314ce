"""From the rewards of a whole optimiser step to advantages: shaping, selection, baseline, scale, data weight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from delphic.objective import advantage as adv
from delphic.objective import shaping
from delphic.objective.aggregate import Totals
from delphic.objective.objective import GROUP_BASELINES, Objective

Array = Any


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
