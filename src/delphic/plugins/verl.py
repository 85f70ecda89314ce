"""Delphic objectives in verl's registries of advantage estimators and policy losses.

    from delphic.plugins.verl import register
    register("rec_ring_nois")          # → "delphic_rec_ring_nois", for algorithm.adv_estimator and
                                       #   actor_rollout_ref.actor.policy_loss.loss_mode
Run it before verl's trainer is built, in every worker: `delphic export CONFIG --to verl` writes the lines.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from delphic.errors import UserError
from delphic.objective import Objective, StepInputs, Totals, build, coefficients, prepare
from delphic.plugins.host import VERL_AGGREGATION, refuse_missing, warn_untested
from delphic.randomness import Purpose, stream

TESTED = "0.9.1"


def register(objective: str | Mapping[str, Any] | Objective, name: str | None = None, seed: int = 0) -> str:
    """Register an objective's advantages and its loss with verl under one name, and return the name.

    verl hands a loss neither the reference's log-probs nor which completions are left out. So left-out completions
    get advantage 0 and the rest are scaled up to keep the objective's normaliser (exact when a mini-batch is the
    whole batch), and a KL term is verl's own (`use_kl_loss`).

    Raises:
        UserError: the objective needs something that verl does not pass (named).
    """
    goal = objective if isinstance(objective, Objective) else build(objective)
    refuse_missing(goal, "verl")
    if goal.uses_kl_loss:
        raise UserError(
            f'verl cannot serve objective "{goal.name}": it needs reference log-probs in the loss, which verl does not '
            "pass; leave kl_coefficient at 0 and set verl's actor.use_kl_loss"
        )
    if goal.quadratic > 0 and (goal.selection != "all" or goal.silent_groups == "mask"):
        raise UserError(
            f'verl cannot serve objective "{goal.name}": it needs which rows the penalty spares, which verl does not pass'
        )
    warn_untested("verl", TESTED)
    core = importlib.import_module("verl.trainer.ppo.core_algos")
    label = name or "delphic_" + goal.name.replace(" ", "_").replace("(", "").replace(")", "")
    calls = iter(range(2**31))

    def estimate(
        token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray | None = None, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if index is None:
            raise UserError(f'objective "{goal.name}" needs group ids (verl\'s uid), which this batch does not carry')
        advantage = advantages(goal, token_level_rewards, response_mask, index, seed, next(calls))
        return advantage, advantage

    def loss(
        old_log_prob: torch.Tensor,
        log_prob: torch.Tensor,
        advantages: torch.Tensor,
        response_mask: torch.Tensor,
        loss_agg_mode: str = "token-mean",  # the objective's own is used
        config: Any = None,
        rollout_is_weights: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        matrix, stopped = loss_matrix(goal, old_log_prob, log_prob, advantages, response_mask)
        if rollout_is_weights is not None:
            matrix = matrix * rollout_is_weights
        info = {} if config is None else dict(config.global_batch_info)
        value = core.agg_loss(matrix, response_mask, VERL_AGGREGATION[goal.aggregation], **info)
        return value, {"actor/pg_clipfrac": stopped}

    core.register_adv_est(label)(estimate)
    core.register_policy_loss(label)(loss)
    return label


def advantages(
    goal: Objective, rewards: torch.Tensor, mask: torch.Tensor, index: np.ndarray, seed: int, call: int
) -> torch.Tensor:
    """[N, T] A · w on every token of a completion, scaled so that verl's normaliser is the objective's."""
    lengths = mask.sum(-1).long().cpu().numpy()
    _, groups = np.unique(np.asarray(index).astype(str), return_inverse=True)
    rows = range(len(groups))
    prepared = prepare(
        goal,
        StepInputs(
            rewards=rewards.sum(-1).double().cpu().numpy(),
            groups=groups,
            lengths=lengths,
            truncated=lengths == mask.shape[-1],
            max_length=mask.shape[-1],
            priority=np.array([stream(seed, Purpose.DROP, call, row).random() for row in rows]),
        ),
    )
    kept, all_rows = prepared.totals(lengths), Totals(int((lengths > 0).sum()), int(lengths.sum()))
    by_token = goal.aggregation == "token_mean"
    scale = (all_rows.tokens / max(kept.tokens, 1)) if by_token else (all_rows.completions / max(kept.completions, 1))
    values = torch.from_numpy(prepared.coefficient * scale).to(mask.device, torch.float32)
    return values[:, None] * mask


def loss_matrix(
    goal: Objective, old_logp: torch.Tensor, logp: torch.Tensor, advantage: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, float]:
    """[N, T] −sg(coefficient) · log π, and the share of tokens that the mask stops."""
    weight = mask.to(logp.dtype)
    now = logp.detach()
    log_ratio = torch.where(mask > 0, now - old_logp, torch.zeros_like(now))
    # one advantage a completion: that of its first token that the policy wrote
    first = mask.to(torch.int64).argmax(-1, keepdim=True)
    coefficient = advantage.gather(-1, first).to(logp.dtype)
    c = coefficients(goal, coefficient, torch.ones_like(coefficient), log_ratio, weight)
    stopped = ((~c.learns) * weight).sum() / weight.sum().clamp(min=1)
    return -(c.policy + c.penalty) * logp, float(stopped)
