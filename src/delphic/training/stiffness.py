"""The learner's own update as `policy.curvature` takes it: its weights, its coefficients, Adam's preconditioner."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from delphic.errors import UserError
from delphic.objective import coefficients, token_weights
from delphic.objective.penalty import kl_factor
from delphic.policy.curvature import Curvature, Part, Update, cross_terms, flatten, reward_slopes
from delphic.policy.logprobs import micro_batches, pad_rows, score
from delphic.policy.model import Policy
from delphic.rollouts import Rollouts
from delphic.training.learner import LocalLearner
from delphic.training.metrics import Meter
from delphic.training.noise import adam_factors


class PolicyScores(nn.Module):
    """Log-probs [n, T] of a batch's completions, T the longest one's tokens of all."""

    def __init__(self, policy: Policy, rollouts: Rollouts, temperature: float) -> None:
        super().__init__()
        self.policy, self.rollouts, self.temperature = policy, rollouts, temperature
        self.model = policy.model  # its parameters become this module's
        self.width = max(len(tokens) for tokens in rollouts.tokens)

    def forward(self, rows: np.ndarray) -> torch.Tensor:
        part = self.rollouts.select(rows)
        logp = score(self.policy, part.prompt_tokens, part.tokens, self.temperature).logp
        return nn.functional.pad(logp, (0, self.width - logp.shape[1]))


def make_curvature(learner: LocalLearner, rollouts: Rollouts, part: Part, adam: bool) -> Curvature:
    """The derivative of the update that `learner` would make of these rollouts, sampled by its own policy.

    Args:
        adam: in preconditioned units of the optimiser's second moments; else in those of plain gradient steps.

    Raises:
        UserError: an objective whose coefficients are no function of rewards and ratios, or no second moments.
    """
    goal, train = learner.config.objective, learner.config.train
    if goal.pairwise > 0 or goal.entropy_bonus > 0:
        raise UserError(f'probe: the curvature of objective "{goal.name}" is not known (pairwise or entropy bonus)')
    scores = PolicyScores(learner.policy, rollouts, learner.config.sampling.temperature)

    def batches(rows: np.ndarray) -> Iterable[np.ndarray]:
        # a second derivative keeps several times what a training step keeps
        return micro_batches(learner.policy, rollouts, rows, max(1, train.token_budget // 4))

    preconditioner = adam_preconditioner(learner) if adam else None
    return Curvature(scores, learner_update(learner, rollouts), batches, part, preconditioner)


def learner_update(learner: LocalLearner, rollouts: Rollouts) -> Update:
    """Weights and coefficients at a ratio of 1 (the step's normaliser is held fixed), and how y_h changes A_g."""
    goal, sampling = learner.config.objective, learner.config.sampling
    known = learner._score(rollouts, 0, Meter())
    prepared = learner._prepare(rollouts, known, 0)
    width = max(len(tokens) for tokens in rollouts.tokens)
    mask = pad_rows(rollouts.loss_mask, width, torch.float64)
    weight = token_weights(
        mask, _column(prepared.kept), goal.aggregation, prepared.totals(rollouts.lengths), sampling.max_new_tokens
    )
    to_reference = None
    if goal.needs_reference and known.reference is not None:
        pairs = zip(rollouts.behaviour_logp, known.reference, strict=True)
        to_reference = pad_rows([b - r for b, r in pairs], width, torch.float64) * mask
    reference = to_reference if goal.uses_kl_loss else None

    def total(log_ratio: torch.Tensor, from_reference: torch.Tensor | None) -> torch.Tensor:
        columns = _column(prepared.coefficient), _column(prepared.penalised)
        found = coefficients(goal, *columns, log_ratio, mask, from_reference)
        return found.policy + found.penalty

    def coefficient(reward: np.ndarray) -> np.ndarray:
        return learner._prepare(rollouts.with_(reward=reward), known, 0).coefficient

    rewarded = None
    if goal.uses_kl_reward and to_reference is not None:
        factor = -goal.kl_coefficient * mask * kl_factor(to_reference, torch.ones_like(mask), goal.kl, corrected=False)
        rewarded = reward_slopes(rollouts.group, rollouts.reward, coefficient), factor.numpy()
    zero = torch.zeros_like(mask)

    def slopes(tangents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        along = torch.from_numpy(tangents) * mask
        behaviour = torch.func.jvp(lambda x: total(x, reference), (zero,), (along,))[1]
        through = zero if reference is None else torch.func.jvp(lambda x: total(zero, x), (reference,), (along,))[1]
        return (weight * behaviour).numpy(), (weight * through).numpy()

    return Update(
        token=(weight * total(zero, reference)).numpy(),
        weight=weight.numpy(),
        mask=mask.numpy(),
        prompt=np.unique(rollouts.group, return_inverse=True)[1],
        cross=cross_terms(rollouts.group, rollouts.reward, coefficient),
        slopes=slopes if goal.needs_behaviour or reference is not None else None,
        penalised=goal.has_penalty or rewarded is not None,
        rewarded=rewarded,
    )


def _column(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(x, dtype=np.float64))[:, None]


def adam_preconditioner(learner: LocalLearner) -> np.ndarray:
    """[d] 1/(√v̂ + ε) of every parameter (`noise.adam_factors`), from the optimiser's second moments."""
    moments = learner.optimiser.second_moments()
    if moments is None:
        raise UserError("probe: the optimiser has no second moments yet; Adam's units need a checkpoint after step 1")
    factors = adam_factors(moments)
    return flatten(factors[name] for name in learner.policy.parameters())
