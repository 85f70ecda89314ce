"""Ragged batches for the peers and for us, and the gradient with respect to every token's log-probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from delphic.objective import StepInputs, build, coefficients, prepare, token_weights

Tensor = torch.Tensor
MAX_LENGTH = 12  # the length limit; wider than the longest completion, so that no peer can take one for the other
WIDTH = 9


@dataclass
class Batch:
    """N completions, left-aligned; every tensor is 0 outside the mask."""

    rewards: np.ndarray  # [N]
    groups: np.ndarray  # [N]
    lengths: np.ndarray  # [N]
    mask: Tensor  # [N, T]
    behaviour: Tensor  # [N, T]
    reference: Tensor  # [N, T]
    logp: Tensor  # [N, T], the leaf

    def gradient(self, loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss, self.logp)[0]

    @property
    def log_ratio(self) -> Tensor:
        return ((self.logp - self.behaviour) * self.mask).detach()

    @property
    def ratio(self) -> Tensor:
        return torch.exp(self.log_ratio)

    @property
    def sequence_ratio(self) -> Tensor:
        """[N, 1] GSPO's s: the geometric mean over a completion's tokens."""
        return torch.exp(self.log_ratio.sum(-1, keepdim=True) / self.mask.sum(-1, keepdim=True))

    @property
    def delta(self) -> Tensor:
        return ((self.logp - self.reference) * self.mask).detach()


def rewards_of(kind: str, size: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "graded":
        return np.sort(rng.normal(size=size))
    if kind == "lone success":
        return np.eye(size)[0]
    if kind == "silent":
        return np.full(size, 0.5)
    return np.where(np.arange(size) % 3 == 0, 1.0, -1.0)  # signed


def make_batch(
    seed: int = 0,
    drift: float = 0.35,
    sizes: Sequence[int] = (5, 6, 3, 4),
    shuffled: bool = True,
    kinds: Sequence[str] = ("graded", "lone success", "silent", "signed"),
) -> Batch:
    """Groups of the sizes and kinds given, lengths 1 to 9, log-ratios of spread `drift`; rows in any order."""
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    rewards = np.concatenate([rewards_of(kind, size, rng) for kind, size in zip(kinds, sizes, strict=True)])
    groups = np.repeat(np.arange(len(sizes)), sizes)
    order = rng.permutation(n) if shuffled else np.arange(n)
    lengths = rng.integers(1, WIDTH + 1, n)
    lengths[:2] = 1, WIDTH
    mask = torch.from_numpy((np.arange(WIDTH) < lengths[:, None]).astype(float))
    behaviour = torch.from_numpy(-3 * rng.random((n, WIDTH))) * mask
    logp = behaviour + torch.from_numpy(rng.normal(size=(n, WIDTH)) * drift) * mask
    reference = behaviour + torch.from_numpy(rng.normal(size=(n, WIDTH)) * 0.5) * mask
    return Batch(rewards[order], groups[order], lengths, mask, behaviour, reference, logp.requires_grad_())


def our_gradient(row: str | dict[str, Any], b: Batch, priority: np.ndarray | None = None) -> Tensor:
    """The gradient of our loss, through the same three calls that training makes."""
    objective = build(row)
    prepared = prepare(objective, StepInputs(b.rewards, b.groups, lengths=b.lengths, priority=priority))
    factors = coefficients(
        objective,
        torch.from_numpy(prepared.coefficient)[:, None],
        torch.from_numpy(prepared.penalised.astype(float))[:, None],
        b.log_ratio,
        b.mask,
        b.delta,
    )
    kept = torch.from_numpy(prepared.kept.astype(float))[:, None]
    weight = token_weights(b.mask, kept, objective.aggregation, prepared.totals(b.lengths), MAX_LENGTH)
    return -weight * (factors.policy + factors.penalty)


def our_advantage(row: str | dict[str, Any], b: Batch) -> np.ndarray:
    """[N]"""
    return prepare(build(row), StepInputs(b.rewards, b.groups, lengths=b.lengths)).advantage


def assert_same(ours: Tensor, peers: Tensor, tolerance: float) -> None:
    """Equal to `tolerance` of the largest entry."""
    largest = float(peers.abs().max())
    assert largest > 0
    torch.testing.assert_close(ours, peers.to(ours.dtype), rtol=tolerance, atol=tolerance * largest)


def assert_differs(ours: Tensor, peers: Tensor, by: float = 1e-3) -> None:
    assert float((ours - peers).abs().max()) > by * float(peers.abs().max())
