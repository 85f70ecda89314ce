"""Scoring: log-probs of given completions under a policy, at the sampler's temperature.

Rows are padded on the right, where causal attention cannot see, and masks come from lengths, never from the pad id:
a row alone and the same row in a batch get the same log-probs, to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from delphic.policy.model import Policy
from delphic.rollouts import Rollouts


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
    lengths = [len(t) for t in tokens]
    joined = [np.concatenate([p, t]) for p, t in zip(prompt_tokens, tokens, strict=True)]
    ids = pad_rows(joined, max(len(j) for j in joined), torch.long)
    # the logit at position i predicts token i + 1
    chosen = torch.zeros_like(ids, dtype=torch.bool)
    for i, (prompt, length) in enumerate(zip(prompt_tokens, lengths, strict=True)):
        chosen[i, len(prompt) - 1 : len(prompt) + length - 1] = True
    logp_MV = torch.log_softmax(policy.logits_at(ids, chosen).float() / temperature, -1)
    targets = torch.from_numpy(np.concatenate(list(tokens)).astype(np.int64))
    flat = logp_MV.gather(-1, targets[:, None])[:, 0]
    place = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    logp = torch.zeros(place.shape).masked_scatter(place, flat)
    entropy = None
    if with_entropy:
        entropy_M = -(logp_MV.exp() * logp_MV).sum(-1)
        entropy = torch.zeros(place.shape).masked_scatter(place, entropy_M)
    return Scored(logp, entropy)


def micro_batches(rollouts: Rollouts, rows: np.ndarray, token_budget: int) -> Iterator[np.ndarray]:
    """Cut rows into batches whose padded size stays within the budget; rows of similar length together."""
    sizes = np.array([len(rollouts.prompt_tokens[i]) + len(rollouts.tokens[i]) for i in rows])
    order = np.argsort(-sizes, kind="stable")
    start = 0
    while start < len(rows):
        count = max(1, token_budget // int(sizes[order[start]]))
        yield rows[order[start : start + count]]
        start += count


@torch.no_grad()
def score_all(policy: Policy, rollouts: Rollouts, temperature: float, token_budget: int) -> list[np.ndarray]:
    """Log-probs of all completions without a graph, a float32 array [T_n] each."""
    out: list[np.ndarray] = [np.zeros(0, dtype=np.float32)] * len(rollouts)
    for rows in micro_batches(rollouts, np.arange(len(rollouts)), token_budget):
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
            out[int(row)] = hidden[k, len(prompts[row]) - 1].float()
    return torch.stack(out)
