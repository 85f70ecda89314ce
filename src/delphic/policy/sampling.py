"""Sampling completions: one prefill per group, finished rows leave the batch, token in, token out.

The same row draws the same random numbers whatever else is in its batch and whatever was sampled before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from delphic.errors import UserError
from delphic.policy.model import Policy, Prefix
from delphic.randomness import Purpose, row_uniforms


@dataclass(frozen=True)
class Completions:
    """N = prompts × count rows, the completions of a prompt next to each other. Ragged lists of arrays."""

    prompt_tokens: list[np.ndarray]
    tokens: list[np.ndarray]
    logp: list[np.ndarray]
    entropy: list[np.ndarray]
    truncated: np.ndarray
    text: list[str]


@dataclass(frozen=True)
class SamplingSettings:
    """How completions are drawn. Temperature 0 takes the likeliest token (of equal ones the lowest id) and records its
    log-prob at temperature 1 and no nucleus, as the distribution itself would be a point."""

    temperature: float
    top_p: float
    max_new_tokens: int
    stop: str
    batch_rows: int


def sample(
    policy: Policy,
    prompts: Sequence[str | np.ndarray],
    count: int,
    settings: SamplingSettings,
    *,
    seed: int,
    purpose: Purpose,
    step: int,
    rows: np.ndarray,
) -> Completions:
    """`count` completions of each prompt.

    Args:
        prompts: token ids, or plain text.
        rows: [prompts × count] row numbers, which key the randomness.

    Raises:
        UserError: an empty prompt, or one that leaves no room in the model's context.
    """
    encoded = encode_prompts(policy, prompts, settings.max_new_tokens)
    stops = set(policy.eos)
    if settings.stop:
        stops |= policy.tokens_containing(settings.stop)
    uniforms = torch.from_numpy(row_uniforms(seed, purpose, step, rows, settings.max_new_tokens))
    if policy.repeats_cache:
        drawn = _decode(policy, encoded, count, settings, stops, uniforms)
    else:  # a recurrent state goes through padding, so there only rows of one prompt are decoded together
        parts = [
            _decode(policy, [ids], count, settings, stops, uniforms[i * count : (i + 1) * count])
            for i, ids in enumerate(encoded)
        ]
        drawn = _Drawn(*([row for part in column for row in part] for column in zip(*parts, strict=True)))
    ended = [bool(len(t)) and int(t[-1]) in stops for t in drawn.tokens]
    return Completions(
        prompt_tokens=[p for p in encoded for _ in range(count)],
        tokens=drawn.tokens,
        logp=drawn.logp,
        entropy=drawn.entropy,
        truncated=~np.array(ended, dtype=bool),
        text=[policy.decode(t) for t in drawn.tokens],
    )


def encode_prompts(policy: Policy, prompts: Sequence[str | np.ndarray], max_new_tokens: int) -> list[np.ndarray]:
    """Token ids of each prompt.

    Raises:
        UserError: an empty prompt, or one that leaves no room for `max_new_tokens` in the model's context.
    """
    encoded = [policy.encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    for ids in encoded:
        if len(ids) == 0:
            raise UserError("a prompt has no tokens; a prompt must not be empty")
        if policy.context is not None and len(ids) + max_new_tokens > policy.context:
            raise UserError(
                f"a prompt of {len(ids)} tokens and {max_new_tokens} new ones exceed the model's context "
                f"of {policy.context}; lower sampling.max_new_tokens or shorten the prompt: {policy.decode(ids)[:60]!r}…"
            )
    return encoded


class _Drawn(NamedTuple):
    """Ragged lists of arrays, one a row."""

    tokens: list[np.ndarray]
    logp: list[np.ndarray]
    entropy: list[np.ndarray]


@torch.inference_mode()
def _decode(
    policy: Policy,
    prompts: list[np.ndarray],
    count: int,
    settings: SamplingSettings,
    stops: set[int],
    uniforms: torch.Tensor,
) -> _Drawn:
    """`count` rows of every prompt. Finished rows leave the batch, and the next groups take their places."""
    n, limit, greedy = len(prompts) * count, settings.max_new_tokens, settings.temperature == 0
    tokens = np.zeros((n, limit), dtype=np.int32)
    logps, entropies = np.zeros((n, limit), dtype=np.float32), np.zeros((n, limit), dtype=np.float32)
    lengths = np.zeros(n, dtype=np.int64)  # tokens drawn so far
    stop_ids = torch.tensor(sorted(stops), dtype=torch.long)
    at_once = max(1, settings.batch_rows // count)  # groups
    started = min(at_once, len(prompts))
    prefix = _prefill(policy, prompts[:started], count)
    alive = torch.arange(started * count)  # which row each row of the running batch is
    running = torch.ones(len(alive), dtype=torch.bool)  # rows of the running batch that have not ended
    while True:
        logits_V = policy.logits(prefix.last)
        logp_V = torch.log_softmax(logits_V / (1 if greedy else settings.temperature), -1)
        if settings.top_p < 1 and not greedy:
            logp_V = _nucleus(logp_V, settings.top_p)
        probability = logp_V.exp()
        at = torch.from_numpy(lengths)[alive].clamp(max=limit - 1)
        # of the logits: equal ones only; log-probs may become equal by rounding
        drawn = logits_V.argmax(-1) if greedy else _inverse_cdf(probability, uniforms[alive, at].to(policy.device))
        chosen = logp_V.gather(-1, drawn[:, None])[:, 0].cpu()
        entropy = torch.special.entr(probability).sum(-1).cpu()
        drawn = drawn.cpu()
        here = alive[running].numpy()
        tokens[here, lengths[here]] = drawn[running].numpy()
        logps[here, lengths[here]] = chosen[running].numpy()
        entropies[here, lengths[here]] = entropy[running].numpy()
        lengths[here] += 1
        running = running & ~torch.isin(drawn, stop_ids) & (torch.from_numpy(lengths)[alive] < limit)
        left = int(running.sum())
        free = min(at_once - -(-left // count), len(prompts) - started)  # groups that could start
        due = free >= 0.2 * at_once or started + free == len(prompts)
        admit = free > 0 and (left == 0 or (policy.joins_cache and due))
        if left == 0 and not admit:
            break
        # copying the cache is not free: wait until it saves a fifth
        if (policy.repeats_cache and 0 < left <= 0.8 * len(running)) or (admit and left):
            prefix.select(running.nonzero()[:, 0])
            alive, drawn = alive[running], drawn[running]
            running = torch.ones(len(alive), dtype=torch.bool)
        if left:
            policy.extend(prefix, drawn[:, None])
        if admit:
            fresh = _prefill(policy, prompts[started : started + free], count)
            rows = torch.arange(started * count, (started + free) * count)
            prefix = prefix.join(fresh) if left else fresh
            alive = torch.cat([alive, rows]) if left else rows
            running = torch.ones(len(alive), dtype=torch.bool)
            started += free
    return _Drawn(*([x[i, : lengths[i]].copy() for i in range(n)] for x in (tokens, logps, entropies)))


def _prefill(policy: Policy, prompts: list[np.ndarray], count: int) -> Prefix:
    """`count` rows of every prompt, which the group shares where the cache can be repeated."""
    if not policy.repeats_cache:
        return policy.prefill([prompt for prompt in prompts for _ in range(count)])
    prefix = policy.prefill(prompts)
    prefix.select(torch.arange(len(prompts)).repeat_interleave(count))
    return prefix


def _inverse_cdf(probability: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """[N] the token at which the cumulative probability passes the row's uniform; never one of probability 0."""
    cumulative = probability.double().cumsum(-1)
    target = uniform[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=probability.shape[-1] - 1)


def _nucleus(logp: torch.Tensor, top_p: float) -> torch.Tensor:
    """Log-probs renormalised over the smallest set of tokens whose mass reaches top_p."""
    ordered, order = logp.sort(-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    cut = torch.zeros_like(logp, dtype=torch.bool).scatter(-1, order, before >= top_p)
    return torch.log_softmax(logp.masked_fill(cut, -torch.inf), -1)
