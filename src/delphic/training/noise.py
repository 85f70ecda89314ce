"""How noisy a gradient is, from scored groups: the constants of theory section 1, in the units of the optimiser.

Adam multiplies the gradient by P = 1/(√v̂ + ε), so the error of its step is that of P ∘ ĝ, an estimator with the scores
P ∘ S. No more than a few gradients exist at a time, whatever the number of groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from delphic.config import RunConfig
from delphic.policy.logprobs import micro_batches, pad_rows, score
from delphic.policy.model import Policy
from delphic.policy.scores import GroupScores, group_scores
from delphic.rollouts import Rollouts
from delphic.statistics.error import oracle_ratio
from delphic.statistics.group_size import Pilot, critical_batch, error_moments, estimate_constants, noise_split
from delphic.statistics.ustatistic import baseline_weights, prompt_moments
from delphic.training.generate import is_silent
from delphic.training.team import Team

SKETCH = 4096
EPSILON = 1e-8  # torch's AdamW
LEAST_PROMPTS, LEAST_COMPLETIONS = 3, 4  # an interval; two disjoint pairs for ‖g(x)‖²

Moments = Mapping[str, torch.Tensor]


def whole_groups(rollouts: Rollouts) -> list[Rollouts]:
    """The groups whose rewards are all finite and that have as many completions as the largest, in order."""
    parts = [rollouts.select(np.flatnonzero(rollouts.group == g)) for g in np.unique(rollouts.group)]
    size = max(len(part) for part in parts)
    return [part for part in parts if len(part) == size and np.isfinite(part.reward).all()]


def second_moments(policy: Policy, groups: Sequence[Rollouts], config: RunConfig) -> dict[str, torch.Tensor]:
    """E[ĝ²] of every number of the leave-one-out gradient of an update with the config's prompts and completions: what
    Adam's second moments settle at while the policy stands still.

    From B₀ ≥ 2 groups with gradients ĝ_b (of as many completions as the config's, where there are so many), mean ḡ and
    sample variance s²: E[ĝ²] = g² + Var(ĝ_b)/B, without bias ḡ² + s²(1/B − 1/B₀). B counts B₀ at most, where the estimate
    could be negative (derived, not in the papers).
    """
    parameters = policy.parameters()
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    squares = {name: torch.zeros_like(p) for name, p in parameters.items()}
    parts = [whole.select(np.arange(min(len(whole), config.sampling.completions))) for whole in groups]
    joined, weights = Rollouts.concat(parts), np.concatenate([baseline_weights(p.reward, "loo") for p in parts])
    number = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    count = len(groups)
    batch = min(count, max(1, config.sampling.prompts // config.train.minibatches))
    moving = np.flatnonzero(weights)
    if batch == count:  # s² has no part in it: completions of several groups go together
        chunks = list(micro_batches(policy, joined, moving, config.train.token_budget))
    else:
        chunks = [moving[number[moving] == k] for k in np.unique(number[moving])]
    for rows in chunks:
        part = joined.select(rows)
        logp = score(policy, part.prompt_tokens, part.tokens, config.sampling.temperature).logp
        mask = pad_rows(part.loss_mask, logp.shape[1], logp.dtype)
        loss = (torch.from_numpy(weights[rows]).to(logp.dtype)[:, None] * mask * logp).sum()
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        for name, gradient in zip(parameters, found, strict=True):
            if gradient is not None:
                total[name] += gradient
                squares[name].addcmul_(gradient, gradient)
    for name, square in squares.items():
        mean2 = (total.pop(name) / count).square_()
        variance = square.sub_(count * mean2).div_(count - 1)
        square.copy_((mean2 + variance * (1 / batch - 1 / count)).clamp_(min=0))
    return squares


def adam_moments(
    policy: Policy, groups: Sequence[Rollouts], config: RunConfig, saved: Moments | None
) -> dict[str, torch.Tensor]:
    """v̂ after an update from the groups: β₂ v̂ + (1 − β₂) E[ĝ²], E[ĝ²] brought to the sum of v̂, whose run may have scaled
    and clipped its gradients; E[ĝ²] alone where no v̂ is saved.

    The update counts: v̂ of a number whose first gradients are those of the groups is close to 0, and Adam's step on it
    bounded all the same. With E[ĝ²] alone, P and the scores share their noise: that leaves c₁ and c₃ nearly as they are
    and takes ‖P ∘ g‖², which is small beside them, below zero.
    """
    own = second_moments(policy, groups, config)
    if saved is None:
        return own
    total = sum(float(v.sum()) for v in own.values())
    scale = sum(float(v.sum()) for v in saved.values()) / total if total > 0 else 0.0
    decay = config.train.betas[1]
    return {name: decay * saved[name] + (1 - decay) * scale * v for name, v in own.items()}


def adam_factors(moments: Moments) -> dict[str, torch.Tensor]:
    """P = 1/(√v̂ + ε); 0 for numbers that have had no gradient, of which Adam's units say nothing."""
    return {name: torch.where(v > 0, 1 / (v.sqrt() + EPSILON), 0.0) for name, v in moments.items()}


def score_groups(
    policy: Policy,
    groups: Sequence[Rollouts],
    config: RunConfig,
    moments: Moments | None,
    advance: Callable[[int], None] = lambda _count: None,
    team: Team | None = None,
    keep: Callable[[Rollouts, GroupScores], None] | None = None,
) -> tuple[Pilot, Pilot | None]:
    """(in the gradient's units, in Adam's if its second moments are given); `advance(1)` after each group, and `keep` sees it
    and its scores."""
    factors = None if moments is None else adam_factors(moments)

    def work(numbers: np.ndarray) -> list[GroupScores]:
        out = []
        for part in (groups[i] for i in numbers):
            scores = group_scores(
                policy,
                part.prompt_tokens[0],
                part.tokens,
                part.loss_mask,
                config.sampling.temperature,
                precondition=factors,
                weights=baseline_weights(part.reward, "loo"),
                sketch=SKETCH,
                seed=config.seed,
            )
            out.append(scores)
            advance(1)
            if keep is not None:
                keep(part, scores)
        return out

    scored: list[GroupScores] = (team or Team()).spread(groups, work)
    scaled = [s.scaled for s in scored if s.scaled is not None]
    return _pilot(scored, groups), _pilot(scaled, groups) if moments is not None else None


def _pilot(scored: Sequence[GroupScores], groups: Sequence[Rollouts]) -> Pilot:
    sketch = np.array([s.sketch for s in scored])
    return Pilot([prompt_moments(s.gram, g.reward) for s, g in zip(scored, groups, strict=True)], sketch @ sketch.T)


def noise_figures(
    policy: Policy, rollouts: Rollouts, config: RunConfig, moments: Moments | None, team: Team
) -> dict[str, float]:
    """`statistics/…` of a step's rollouts: constants with intervals, G*, noise split, oracle ratio, critical batch.

    Args:
        moments: Adam's v̂ so far; before its first update they are estimated from the rollouts, which leaves no critical
            batch (see `adam_moments`).

    Empty where the rewards or the groups left do not allow an estimate; a figure that is not finite stays infinite.
    """
    groups = whole_groups(rollouts)
    if len(groups) < LEAST_PROMPTS or len(groups[0]) < LEAST_COMPLETIONS:
        return {}
    if all(is_silent(part.reward) for part in groups):
        return {}
    adam = config.train.optimizer == "adamw"
    used = adam_moments(policy, groups, config, moments) if adam else None
    plain, scaled = score_groups(policy, groups, config, used, team=team)
    pilot = plain if scaled is None else scaled
    size, average = len(groups[0]), error_moments(pilot)
    if not np.isfinite(average.constants).all():
        return {}
    constants = estimate_constants(pilot)
    figures: dict[str, float] = {}
    for name in ("c1", "c2", "c3", "g_star"):
        interval = getattr(constants, name)
        figures |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    values = (max(constants.c1.value, 0.0), constants.c2.value, constants.c3.value)
    figures |= {f"share_{name}": share for name, share in noise_split(values, size).items()}
    if moments is not None or not adam:
        figures["critical_batch"] = critical_batch(values, size, average.mean)
    figures["oracle_ratio"] = oracle_ratio(average, size)
    return {f"statistics/{name}": value for name, value in figures.items() if not math.isnan(value)}
