"""Sampling completions: one prefill per group, finished rows leave the batch, token in, token out.

The same row draws the same random numbers whatever else is in its batch and whatever was sampled before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from delphic.errors import UserError
from delphic.policy.model import Policy
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
    prompts: Sequence[str],
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
        rows: [prompts × count] row numbers, which key the randomness.

    Raises:
        UserError: an empty prompt, or one that leaves no room in the model's context.
    """
    encoded = encode_prompts(policy, prompts, settings.max_new_tokens)
    stops = set(policy.eos)
    if settings.stop:
        stops |= policy.tokens_containing(settings.stop)
    uniforms = row_uniforms(seed, purpose, step, rows, settings.max_new_tokens)
    groups_at_once = max(1, settings.batch_rows // count)
    tokens: list[np.ndarray] = []
    logp: list[np.ndarray] = []
    entropy: list[np.ndarray] = []
    for start in range(0, len(prompts), groups_at_once):
        chunk = slice(start, start + groups_at_once)
        u = uniforms[start * count : (start + groups_at_once) * count]
        part = _decode(policy, encoded[chunk], count, settings, stops, torch.from_numpy(u))
        tokens += part[0]
        logp += part[1]
        entropy += part[2]
    ended = [bool(len(t)) and int(t[-1]) in stops for t in tokens]
    return Completions(
        prompt_tokens=[p for p in encoded for _ in range(count)],
        tokens=tokens,
        logp=logp,
        entropy=entropy,
        truncated=~np.array(ended, dtype=bool),
        text=[policy.decode(t) for t in tokens],
    )


def encode_prompts(policy: Policy, prompts: Sequence[str], max_new_tokens: int) -> list[np.ndarray]:
    """Token ids of each prompt.

    Raises:
        UserError: an empty prompt, or one that leaves no room for `max_new_tokens` in the model's context.
    """
    encoded = [policy.encode(prompt) for prompt in prompts]
    for prompt, ids in zip(prompts, encoded, strict=True):
        if len(ids) == 0:
            raise UserError(f"prompt {prompt!r} has no tokens; a prompt must not be empty")
        if policy.context is not None and len(ids) + max_new_tokens > policy.context:
            raise UserError(
                f"a prompt of {len(ids)} tokens and {max_new_tokens} new ones exceed the model's context "
                f"of {policy.context}; lower sampling.max_new_tokens or shorten the prompt: {prompt[:60]!r}…"
            )
    return encoded


@torch.inference_mode()
def _decode(
    policy: Policy,
    prompts: list[np.ndarray],
    count: int,
    settings: SamplingSettings,
    stops: set[int],
    uniforms: torch.Tensor,
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Tokens, log-probs and entropies of len(prompts) × count rows."""
    limit, greedy = settings.max_new_tokens, settings.temperature == 0
    n = len(prompts) * count
    prefix = policy.prefill(prompts)
    prefix.select(torch.arange(len(prompts)).repeat_interleave(count))  # the group shares one prefill
    tokens = np.zeros((n, limit), dtype=np.int32)
    logps, entropies = np.zeros((n, limit), dtype=np.float32), np.zeros((n, limit), dtype=np.float32)
    lengths = np.full(n, limit)
    alive = torch.arange(n)  # which row each row of the running batch is
    running = torch.ones(n, dtype=torch.bool)  # rows of the running batch that have not ended
    stop_ids = torch.tensor(sorted(stops))
    for t in range(limit):
        logits_V = policy.logits(prefix.last)
        logp_V = torch.log_softmax(logits_V / (1 if greedy else settings.temperature), -1)
        if settings.top_p < 1 and not greedy:
            logp_V = _nucleus(logp_V, settings.top_p)
        probability = logp_V.exp()
        # of the logits: equal ones only; log-probs may become equal by rounding
        drawn = logits_V.argmax(-1) if greedy else _inverse_cdf(probability, uniforms[alive, t])
        here = alive[running].numpy()
        chosen = logp_V.gather(-1, drawn[:, None])[:, 0]
        entropy = torch.special.entr(probability).sum(-1)
        tokens[here, t] = drawn[running].numpy()
        logps[here, t] = chosen[running].numpy()
        entropies[here, t] = entropy[running].numpy()
        ended = running & torch.isin(drawn, stop_ids)
        lengths[alive[ended].numpy()] = t + 1
        running = running & ~ended
        if t + 1 == limit or not bool(running.any()):
            break
        if int(running.sum()) <= 0.8 * len(running):  # copying the cache is not free: wait until it saves a fifth
            prefix.select(running.nonzero()[:, 0])
            alive, drawn = alive[running], drawn[running]
            running = torch.ones(len(alive), dtype=torch.bool)
        policy.extend(prefix, drawn[:, None])
    return tuple([x[i, : lengths[i]].copy() for i in range(n)] for x in (tokens, logps, entropies))  # type: ignore[return-value]


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
