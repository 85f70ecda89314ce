"""How stiff training is: the top eigenvalue of minus the derivative of the expected update, over a fixed batch of rollouts.

The update is u(θ; θ_b) = E_{y~π_b} Σ_t k_t ∇ log π_θ(y_t), k the weight and coefficient that the learner gives a token. Its
derivative (theory section 3, derived; both parts at θ_b = θ) is

    delayed, through the sampling policy θ_b:  E Σ_gh (k_g ∇ log π(y_g)) S_hᵀ over a group, S_h a completion's score
    fresh, through the current policy θ:       E Σ k ∇² log π + Σ (∂k/∂ log π) ∇ log π ∇ log πᵀ (ratios, KL anchors)

A KL term in the reward is one of the sampling policy: E Σ_gh (∂A_g/∂r_h) ∇ log π(y_g) (∂r_h/∂θ_b)ᵀ joins the delayed part.

For h ≠ g only the change that y_h makes to A_g counts: A_g − A_g^(−h), without y_h, has the same expectation and far less noise.
Of a derivative that is not symmetric the symmetric part is taken: its top eigenvalue bounds the real parts of the others.
Products with a vector need one forward pass with tangents and one backward pass; the matrix never exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.autograd.forward_ad as forward
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from delphic.objective import group_slots

Part = Literal["delayed", "fresh", "total"]
LANCZOS_VECTORS = 8
QUANTILE = 1.96  # of a 95 % interval
AGREE = 2.0  # the two ends of a certified interval differ by no more than this factor


@dataclass(frozen=True)
class Update:
    """One update over N completions of P prompts, T tokens the longest, as the learner would make it.

    token [N, T]: aggregation weight × coefficient of ∇ log π. weight [N, T]: the aggregation weight alone. mask [N, T]: 1
    where the policy wrote. prompt [N]: 0 … P − 1. cross [N, N]: for g ≠ h of a group A_g − A_g^(−h), else nothing.
    slopes: tangents [N, T] of log π → the weighted changes of the coefficients through the ratio to the behaviour policy and
    through that to the reference; None where the coefficients depend on neither. penalised: whether they do where A is 0.
    rewarded: (∂A_g/∂r_h [N, N] within groups, ∂r_h/∂ log π_b [N, T]) of a KL term in the reward; None without one.
    """

    token: np.ndarray
    weight: np.ndarray
    mask: np.ndarray
    prompt: np.ndarray
    cross: csr_array
    slopes: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None
    penalised: bool = False
    rewarded: tuple[csr_array, np.ndarray] | None = None

    @property
    def prompts(self) -> int:
        return int(self.prompt.max()) + 1

    def alive(self) -> np.ndarray:
        """[N] whether the completion's group adds anything to the derivative."""
        own = self.token.any(1) | (np.abs(self.cross).sum(1) > 0)
        return (np.bincount(self.prompt, own) > 0)[self.prompt] | self.penalised

    def by_prompt(self, values: np.ndarray) -> np.ndarray:
        """[P] sums of [N] values, times P: their mean is the sum over all."""
        return np.bincount(self.prompt, values, self.prompts) * self.prompts


class Curvature:
    """Products with −∂u/∂θ, with P^½ on both sides where a preconditioner P is given.

    Args:
        scores: a module whose `forward(rows)` gives log-probs [n, T] of those rows' tokens, 0 beyond a completion's end.
        batches: cuts row numbers into those of one pass. preconditioner [d]: of Adam, 1/(√v̂ + ε), in the order of
        `scores.named_parameters()`.
    """

    def __init__(
        self,
        scores: nn.Module,
        update: Update,
        batches: Callable[[np.ndarray], Iterable[np.ndarray]],
        part: Part = "total",
        preconditioner: np.ndarray | None = None,
    ) -> None:
        self.scores, self.update, self.batches, self.part = scores, update, batches, part
        self.parameters = {name: p for name, p in scores.named_parameters() if p.requires_grad}
        self.size = sum(p.numel() for p in self.parameters.values())
        self.root = np.ones(self.size) if preconditioner is None else np.sqrt(preconditioner)
        self.alive = update.alive()
        self.products = 0

    def tangents(self, vector: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """[N, T] float64: change of each token's log π along a vector [d] of parameters; 0 in other rows."""
        out = np.zeros(self.update.token.shape)
        for batch in self.batches(rows):
            with sdpa_kernel(SDPBackend.MATH), forward.dual_level():  # the fused kernels have no tangents
                moved = {
                    name: forward.make_dual(p.detach(), part)
                    for (name, p), part in zip(self.parameters.items(), self._split(vector), strict=True)
                }
                logp = functional_call(self.scores, moved, (batch,))
                out[batch] = forward.unpack_dual(logp).tangent.double().numpy()
        return out

    def slopes(self, vector: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        """[len(prompts)] the update's component along a vector [d], by prompt: their mean is u · vector."""
        tangents = self.tangents(vector, self._rows(prompts))
        products = (self.update.token * tangents).sum(1)
        return self.update.by_prompt(products)[prompts]

    def gradient(self, prompts: np.ndarray) -> np.ndarray:
        """[d] the update itself over these prompts."""
        rows = self._rows(prompts)
        return self._scale(prompts) * self._backward(self.update.token, rows, None)

    def product(self, vector: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        """[d] the preconditioned −∂u/∂θ of these prompts times a vector [d]."""
        self.products += 1
        rows, along = self._rows(prompts), self.root * vector
        pulled = self._pull(self.tangents(along, rows))
        return -self._scale(prompts) * self.root * self._backward(pulled, rows, along)

    def quadratic(self, vector: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        """[len(prompts)] vectorᵀ (−∂u/∂θ) vector by prompt: the mean is the Rayleigh quotient of a unit vector."""
        rows, along = self._rows(prompts), self.root * vector
        tangents = self.tangents(along, rows)
        out = self.update.by_prompt((self._pull(tangents) * tangents).sum(1))[prompts]
        if self.part != "delayed":
            nothing = np.zeros_like(tangents)
            for k, prompt in enumerate(prompts):
                rows = self._rows(np.array([prompt]))
                out[k] += self.update.prompts * float(along @ self._backward(nothing, rows, along))
        return -out

    def top(self, prompts: np.ndarray, start: np.ndarray, tolerance: float = 1e-2) -> tuple[float, np.ndarray]:
        """(largest eigenvalue, its unit vector [d]) over these prompts, by Lanczos; relative residual `tolerance`."""
        operator = LinearOperator(
            (self.size, self.size), matvec=lambda v: self.product(v.ravel(), prompts), dtype=np.float64
        )
        count = min(self.size, LANCZOS_VECTORS)
        values, vectors = eigsh(operator, k=1, which="LA", v0=start, tol=tolerance, ncv=count)
        return float(values[0]), vectors[:, 0]

    def _rows(self, prompts: np.ndarray) -> np.ndarray:
        return np.flatnonzero(np.isin(self.update.prompt, prompts) & self.alive)

    def _scale(self, prompts: np.ndarray) -> float:
        return self.update.prompts / len(prompts)  # the weights are those of the whole batch

    def _pull(self, tangents: np.ndarray) -> np.ndarray:
        """[N, T] the weights of ∇ log π in ∂u/∂θ times the vector of these tangents, without the part that needs ∇² log π."""
        u, out = self.update, np.zeros_like(tangents)
        if self.part != "fresh":
            scored, own = (u.mask * tangents).sum(1), (u.token * tangents).sum(1)
            forth = u.token * scored[:, None] + u.weight * (u.cross @ scored)[:, None]
            back = u.mask * (own + u.cross.T @ (u.weight * tangents).sum(1))[:, None]
            out += (forth + back) / 2
            if u.rewarded is not None:
                through, factor = u.rewarded
                forth = u.weight * (through @ (factor * tangents).sum(1))[:, None]
                back = factor * (through.T @ (u.weight * tangents).sum(1))[:, None]
                out += (forth + back) / 2
        if u.slopes is not None:
            behaviour, reference = u.slopes(tangents)
            # the ratio's two ends: what the current policy adds through it, the sampling policy takes away
            out += {"delayed": -behaviour, "fresh": behaviour + reference, "total": reference}[self.part]
        return out

    def _backward(self, weights: np.ndarray, rows: np.ndarray, along: np.ndarray | None) -> np.ndarray:
        """[d] Σ weights · ∇ log π and, with `along` and unless only the delayed part counts, Σ token · ∇² log π · along."""
        leaves = list(self.parameters.values())
        out = np.zeros(self.size)
        second = along is not None and self.part != "delayed"
        for batch in self.batches(rows):
            with sdpa_kernel(SDPBackend.MATH):  # the fused kernels cannot be differentiated twice
                logp = self.scores(batch)
                total = (torch.from_numpy(weights[batch]).to(logp) * logp).sum()
                if second and along is not None:
                    token = torch.from_numpy(self.update.token[batch]).to(logp)
                    first = torch.autograd.grad((token * logp).sum(), leaves, create_graph=True, allow_unused=True)
                    pairs = zip(first, self._split(along), strict=True)
                    total = total + torch.stack([(g * v).sum() for g, v in pairs if g is not None]).sum().to(logp)
                found = torch.autograd.grad(total, leaves, allow_unused=True)
            out += flatten([torch.zeros_like(p) if g is None else g for g, p in zip(found, leaves, strict=True)])
        return out

    def _split(self, vector: np.ndarray) -> list[torch.Tensor]:
        ends = np.cumsum([p.numel() for p in self.parameters.values()])[:-1]
        pieces = zip(np.split(vector, ends), self.parameters.values(), strict=True)
        return [torch.from_numpy(np.ascontiguousarray(piece)).reshape(p.shape).to(p) for piece, p in pieces]


def cross_terms(group: np.ndarray, reward: np.ndarray, coefficient: Callable[[np.ndarray], np.ndarray]) -> csr_array:
    """[N, N] A_g − A_g^(−h) for g ≠ h of a group, by leaving out the k-th member of every group at once.

    Args: group, reward [N]. coefficient: rewards [N] → [N] the coefficients A; a reward that is NaN is left out.
    """
    base, slots = coefficient(reward), group_slots(group)
    entries = []
    for k in range(slots.shape[1]):
        left_out = slots[slots[:, k] >= 0, k]
        without = reward.copy()
        without[left_out] = np.nan
        change = base - coefficient(without)
        others = slots[slots[:, k] >= 0]
        counts = (others >= 0) & (np.arange(slots.shape[1]) != k)
        entries.append((change[others[counts]], others[counts], np.repeat(left_out, counts.sum(1))))
    values, rows, columns = (np.concatenate(x) for x in zip(*entries, strict=True))
    out = csr_array((values, (rows, columns)), shape=(len(base), len(base)))
    out.eliminate_zeros()
    return out


def reward_slopes(group: np.ndarray, reward: np.ndarray, coefficient: Callable[[np.ndarray], np.ndarray]) -> csr_array:
    """[N, N] ∂A_g/∂r_h within groups, by central differences of the k-th member of every group at once.

    Args: as `cross_terms` takes them.
    """
    slots, step = group_slots(group), 1e-6
    entries = []
    for k in range(slots.shape[1]):
        here = slots[:, k] >= 0
        moved = slots[here, k]
        shift = np.zeros_like(reward)
        shift[moved] = step
        change = (coefficient(reward + shift) - coefficient(reward - shift)) / (2 * step)
        members = slots[here]
        counts = members >= 0
        entries.append((change[members[counts]], members[counts], np.repeat(moved, counts.sum(1))))
    values, rows, columns = (np.concatenate(x) for x in zip(*entries, strict=True))
    return csr_array((values, (rows, columns)), shape=(len(reward), len(reward)))


def flatten(tensors: Iterable[Any]) -> np.ndarray:
    """[d] float64 of tensors one after the other."""
    return np.concatenate([t.detach().double().cpu().numpy().ravel() for t in tensors])


@dataclass(frozen=True)
class Stiffness:
    """K with a 95 % interval. value: the top eigenvalue over all prompts, biased upwards by sampling noise. confirmed: the
    mean Rayleigh quotient of each half's top direction on the other half, whose expectation is not above K. products: of
    matrix and vector. vector [d]: the top direction in preconditioned units."""

    value: float
    confirmed: float
    low: float
    high: float
    prompts: int
    products: int
    vector: np.ndarray

    @property
    def certified(self) -> bool:
        return self.low > 0 and self.high <= AGREE * self.low

    @property
    def prompts_needed(self) -> int | None:
        """Roughly, for the ends to agree, if the interval shrinks as 1/√prompts; None where nothing was confirmed."""
        if self.certified:
            return self.prompts
        if not self.confirmed > 0:
            return None
        wide = (self.high - self.low) / (self.confirmed * (AGREE - 1) / (1 + (AGREE - 1) / 2))
        return int(np.ceil(self.prompts * max(wide, 1.0) ** 2))


def measure_stiffness(curvature: Curvature, seed: int = 0) -> Stiffness:
    """Top eigenvalue over all prompts, and what the two halves say of each other's; standard errors over prompts.

    E λ_max(sample) ≥ λ_max(E sample) ≥ E of a held-out Rayleigh quotient: the interval reaches from the lower one less its
    margin to the upper one plus its own (the infinitesimal jackknife of an eigenvalue, which is its own quadratic form).
    """
    rng = np.random.default_rng(seed)
    count = curvature.update.prompts
    if count < 4:
        raise ValueError(f"stiffness needs 4 prompts at least, got {count}")
    order, before = rng.permutation(count), curvature.products
    halves = [order[: count // 2], order[count // 2 :]]
    start = rng.normal(size=curvature.size)
    vectors = [curvature.top(half, start)[1] for half in halves]
    held_out = [curvature.quadratic(v, other) for v, other in zip(vectors, halves[::-1], strict=True)]
    margin = QUANTILE * np.sqrt(sum(float(x.var(ddof=1)) / len(x) for x in held_out)) / 2
    confirmed = float(np.mean([x.mean() for x in held_out]))
    sign = 1.0 if float(vectors[0] @ vectors[1]) >= 0 else -1.0
    value, vector = curvature.top(np.arange(count), vectors[0] + sign * vectors[1])
    spread = float(curvature.quadratic(vector, np.arange(count)).std(ddof=1)) / np.sqrt(count)
    return Stiffness(
        value,
        confirmed,
        confirmed - float(margin),
        value + QUANTILE * spread,
        count,
        curvature.products - before,
        vector,
    )
