"""Scoring: log-probs of given completions under a policy, at the sampler's temperature.

A prompt goes through the model once for all its completions of a batch. Masks come from lengths, never from the pad
id: a row alone and the same row in a batch get the same log-probs, to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from delphic.policy.model import Policy
from delphic.rollouts import Rollouts

LOGITS = 1 << 26  # numbers


@dataclass(frozen=True)
class Scored:
    """Padded to the longest completion of the batch.

    logp [N, T]: nats (0 beyond a completion's end), with graph where gradients are on;
    entropy [N, T]: exact, only when asked for, else None.
    """

    logp: torch.Tensor
    entropy: torch.Tensor | None


def pad_rows(rows: Sequence[np.ndarray], width: int, dtype: torch.dtype) -> torch.Tensor:
    """[N, width] right-padded with 0."""
    out = np.zeros((len(rows), width), dtype=rows[0].dtype if len(rows) else np.float32)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return torch.from_numpy(out).to(dtype)


def score(
    policy: Policy,
    prompt_tokens: Sequence[np.ndarray],
    tokens: Sequence[np.ndarray],
    temperature: float,
    with_entropy: bool = False,
) -> Scored:
    """Log-probs of every completion token, given its prompt and the tokens before it."""
    lengths = torch.tensor([len(t) for t in tokens])
    place = torch.arange(int(lengths.max()))[None, :] < lengths[:, None]
    distinct, which = _distinct(prompt_tokens)
    if policy.shares_prefix and len(distinct) < len(tokens):
        states = _shared_prefix_states(policy, [prompt_tokens[i] for i in distinct], which, tokens)[place]
    else:
        states = _row_states(policy, prompt_tokens, tokens)
    targets = torch.from_numpy(np.concatenate(list(tokens)).astype(np.int64))
    flat, flat_entropy = _head(policy, states, targets.to(states.device), temperature, with_entropy)
    logp = torch.zeros(place.shape).masked_scatter(place, flat.cpu())
    entropy = None if flat_entropy is None else torch.zeros(place.shape).masked_scatter(place, flat_entropy.cpu())
    return Scored(logp, entropy)


def _head(
    policy: Policy, states: torch.Tensor, targets: torch.Tensor, temperature: float, with_entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """[M] log-probs of the targets, and entropies, from [M, D] states. Logits never exist for more than LOGITS numbers:
    beyond that they are made in pieces, and once more for the gradient."""

    def piece(states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = policy.logits(states)
        if temperature != 1:  # a copy of the largest tensor there is
            logits = logits / temperature
        normaliser = logits.logsumexp(-1)
        logp = logits.gather(-1, targets[:, None])[:, 0] - normaliser
        if not with_entropy:
            return logp[None]
        entropy = normaliser - ((logits - normaliser[:, None]).exp() * logits).sum(-1)
        return torch.stack([logp, entropy])

    count = max(1, LOGITS // policy.vocabulary)
    if len(states) <= count:
        out = piece(states, targets)
    else:
        parts = zip(states.split(count), targets.split(count), strict=True)
        out = torch.cat([checkpoint(piece, *part, use_reentrant=False) for part in parts], -1)
    return out[0], out[1] if with_entropy else None


def _distinct(prompts: Sequence[np.ndarray]) -> tuple[list[int], np.ndarray]:
    """The first row of every distinct prompt, and [N] which of them each row has."""
    number: dict[bytes, int] = {}
    first: list[int] = []
    which = np.zeros(len(prompts), dtype=np.int64)
    for i, prompt in enumerate(prompts):
        key = prompt.tobytes()
        if key not in number:
            number[key] = len(first)
            first.append(i)
        which[i] = number[key]
    return first, which


def _row_states(policy: Policy, prompts: Sequence[np.ndarray], tokens: Sequence[np.ndarray]) -> torch.Tensor:
    """[M, D] states that predict the M completion tokens, every row with its own prompt."""
    ids, chosen = plain_rows(prompts, tokens)
    return policy.states(ids)[chosen]


def plain_rows(prompts: Sequence[np.ndarray], tokens: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids [N, L], bool [N, L]: where a state predicts a completion's token): prompts with their completions, padded on the
    right, where causal attention cannot see."""
    joined = [np.concatenate([p, t]) for p, t in zip(prompts, tokens, strict=True)]
    ids = pad_rows(joined, max(len(j) for j in joined), torch.long)
    # the state at position i predicts token i + 1
    chosen = torch.zeros_like(ids, dtype=torch.bool)
    for i, (prompt, completion) in enumerate(zip(prompts, tokens, strict=True)):
        chosen[i, len(prompt) - 1 : len(prompt) + len(completion) - 1] = True
    return ids, chosen


def _shared_prefix_states(
    policy: Policy, prompts: Sequence[np.ndarray], which: np.ndarray, tokens: Sequence[np.ndarray]
) -> torch.Tensor:
    """[N, T, D] the same states, each prompt going through the model once: its keys and values are repeated for its
    completions, and their gradients meet in it again."""
    prefix = policy.prefill(prompts)
    prefix.select(torch.from_numpy(which))
    first = prefix.last[:, None]
    rest = max(len(t) for t in tokens) - 1
    if rest == 0:
        return first
    return torch.cat([first, policy.extend(prefix, pad_rows([t[:-1] for t in tokens], rest, torch.long))], 1)


def micro_batches(policy: Policy, rollouts: Rollouts, rows: np.ndarray, token_budget: int) -> Iterator[np.ndarray]:
    """Cut rows into batches whose padded size, each distinct prompt counted once, stays within the budget.

    Completions of a prompt together save prompts, completions of a length together save padding: the order that needs
    fewer tokens wins.
    """
    if len(rows) == 0:
        return
    prompts = [rollouts.prompt_tokens[i] for i in rows]
    which = _distinct(prompts)[1] if policy.shares_prefix else np.arange(len(rows))
    before = np.array([len(p) for p in prompts])
    after = np.array([len(rollouts.tokens[i]) for i in rows])
    orders = [np.lexsort((-after, which, -before)), np.lexsort((which, -before, -after))]
    plans = [_cut(order, which, before, after, token_budget) for order in orders]
    _, batches = min(plans, key=lambda plan: plan[0])
    for batch in batches:
        yield rows[batch]


def _cut(
    order: np.ndarray, which: np.ndarray, before: np.ndarray, after: np.ndarray, budget: int
) -> tuple[int, list[np.ndarray]]:
    """Fill batches in this order; (tokens of all batches with padding, batches)."""
    total = 0
    batches: list[list[int]] = []
    distinct: set[int] = set()
    widths, size = (0, 0), 0
    for i in map(int, order):
        grown_widths = max(widths[0], int(before[i])), max(widths[1], int(after[i]) - 1)
        grown_distinct = len(distinct) + (int(which[i]) not in distinct)
        grown = grown_distinct * grown_widths[0] + (len(batches[-1]) + 1 if batches else 1) * grown_widths[1]
        if not batches or grown > budget:
            total += size
            batches.append([])
            distinct, grown_widths = set(), (int(before[i]), int(after[i]) - 1)
            grown = sum(grown_widths)
        batches[-1].append(i)
        distinct.add(int(which[i]))
        widths, size = grown_widths, grown
    return total + size, [np.array(batch) for batch in batches]


@torch.no_grad()
def score_all(policy: Policy, rollouts: Rollouts, temperature: float, token_budget: int) -> list[np.ndarray]:
    """Log-probs of all completions without a graph, a float32 array [T_n] each."""
    out: list[np.ndarray] = [np.zeros(0, dtype=np.float32)] * len(rollouts)
    for rows in micro_batches(policy, rollouts, np.arange(len(rollouts)), token_budget):
        part = rollouts.select(rows)
        logp = score(policy, part.prompt_tokens, part.tokens, temperature).logp.numpy()
        for i, row in enumerate(rows):
            out[int(row)] = logp[i, : len(part.tokens[i])].copy()
    return out


@torch.no_grad()
def prompt_states(policy: Policy, prompts: Sequence[np.ndarray], token_budget: int) -> torch.Tensor:
    """[P, D] last hidden state at each prompt's last token: what a value head sees."""
    out: list[torch.Tensor] = [torch.zeros(0)] * len(prompts)
    order = np.argsort([-len(p) for p in prompts], kind="stable")
    count = max(1, token_budget // max(len(p) for p in prompts))
    for start in range(0, len(prompts), count):
        rows = order[start : start + count]
        ids = pad_rows([prompts[i] for i in rows], max(len(prompts[i]) for i in rows), torch.long)
        hidden = policy.hidden(ids)
        for k, row in enumerate(rows):
            out[int(row)] = hidden[k, len(prompts[row]) - 1].float().cpu()
    return torch.stack(out)
