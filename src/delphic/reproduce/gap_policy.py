"""An over-parametrised policy whose gap to the optimum is known exactly, trained by stochastic gradients.

The policy: a softmax over A answers to each of P prompts, with a logit of its own for each prompt and answer and a bias
that every answer shares over the prompts. P·A + A parameters move P·(A − 1) log-odds: the rest is flat.

The objective: E[reward] − τ KL(π‖reference), prompts equally likely. Without the KL, a softmax has no interior optimum
(π* is deterministic, at infinite parameters) and the limit says nothing. With it, π* ∝ reference · e^(reward/τ), the
gap is exactly τ E_x KL(π‖π*), and the Hessian at the optimum is −τ times the Fisher information.

Only the reward's gradient is estimated from sampled answers; the KL's is exact at the prompts that are drawn. (With the
KL inside the reward, every answer would be worth the same at the optimum, and oracle and leave-one-out would have no
noise left.) This policy is optimal at every prompt at once, so no noise between prompts is left at the optimum, c₁ = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from delphic.statistics.gap import EnumeratedPrompt

PROMPTS, ANSWERS, BATCH = 3, 4, 2  # P, A, and B: prompts of a step, drawn independently


@dataclass(frozen=True)
class SoftmaxPolicy:
    """features [P, A, D], reference [P, A] (chances), rewards [P, A] in [0, 1], penalty τ."""

    features: np.ndarray
    reference: np.ndarray
    rewards: np.ndarray
    penalty: float

    def chances(self, parameters: np.ndarray) -> np.ndarray:
        """[..., P, A] π of parameters [..., D]."""
        flat = self.features.reshape(-1, self.features.shape[-1])
        return softmax((parameters @ flat.T).reshape(*parameters.shape[:-1], *self.rewards.shape))

    @property
    def optimum(self) -> np.ndarray:
        """[P, A] π* ∝ reference · e^(reward/τ)."""
        return softmax(np.log(self.reference) + self.rewards / self.penalty)

    def gap(self, parameters: np.ndarray) -> np.ndarray:
        """[...] J* − J = τ E_x KL(π‖π*), exact and free of cancellation."""
        p = self.chances(parameters)
        return self.penalty * (p * (np.log(p) - np.log(self.optimum)) - p + self.optimum).sum(axis=-1).mean(axis=-1)

    def hessian(self) -> np.ndarray:
        """[D, D] of J at the optimum: −τ E_x E[S Sᵀ]."""
        scores = self.scores()
        return -self.penalty * np.einsum("pa,pad,pae->de", self.optimum, scores, scores) / len(scores)

    def scores(self) -> np.ndarray:
        """[P, A, D] ∇ log π at the optimum."""
        return self.features - np.einsum("pa,pad->pd", self.optimum, self.features)[:, None]

    def enumerated(self) -> list[EnumeratedPrompt]:
        """The prompts at the optimum; the KL's exact gradient cancels the reward's at each of them."""
        out = []
        for p, S, z in zip(self.optimum, self.scores(), self.rewards, strict=True):
            out.append(EnumeratedPrompt(1 / len(self.rewards), p, S, z, -S.T @ (p * z)))
        return out


def softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def make_policy(seed: int) -> SoftmaxPolicy:
    """Rewards and reference drawn at random; τ = 1/2 keeps every answer's chance within a factor e² of the reference."""
    rng = np.random.default_rng(seed)
    own = np.eye(PROMPTS * ANSWERS).reshape(PROMPTS, ANSWERS, -1)
    shared = np.broadcast_to(np.eye(ANSWERS), (PROMPTS, ANSWERS, ANSWERS))
    reference = rng.dirichlet(np.full(ANSWERS, 20.0), size=PROMPTS)
    return SoftmaxPolicy(np.concatenate([own, shared], axis=-1), reference, rng.uniform(0, 1, (PROMPTS, ANSWERS)), 0.5)


def curvatures(policy: SoftmaxPolicy) -> np.ndarray:
    """The eigenvalues of −H* that are not 0, smallest first."""
    found = np.linalg.eigvalsh(-policy.hessian())
    return found[found > 1e-9 * found[-1]]


def schedule(policy: SoftmaxPolicy) -> tuple[float, int]:
    """(β, i₀): steps β/i for i = i₀+1, i₀+2, …

    β = 1.5/μ is three times the least that the limit asks for: the start is forgotten as n^(−3). i₀ makes the first step
    1/(2L). The limit does not depend on i₀, but how soon it is seen does: from i₀ = 0 the first step is about 30/(2L),
    and after a thousand steps n·Δ was still hundreds of times Σw.
    """
    curvature = curvatures(policy)
    step = 1.5 / float(curvature[0])
    return step, int(np.ceil(2 * float(curvature[-1]) * step))


def logit_gradient(
    policy: SoftmaxPolicy, p: np.ndarray, counts: np.ndarray, drawn: np.ndarray, kind: str
) -> np.ndarray:
    """[R, B, A] gradient by the drawn prompts' logits: the estimate from answer counts [R, B, A], less τ times the KL's.

    With C(y) of the estimator, (1/G) Σ_i (e_{y_i} − p)(Z_i − C_i) depends on how often each answer came, not on order.
    """
    z, G = policy.rewards[drawn], counts.sum(axis=-1, keepdims=True)
    if kind == "loo":
        estimate = counts * (z - (counts * z).sum(axis=-1, keepdims=True) / G) / (G - 1)
    else:
        value = (p * z).sum(axis=-1, keepdims=True) if kind == "oracle" else 0.0
        weighted = counts * (z - value) / G
        estimate = weighted - p * weighted.sum(axis=-1, keepdims=True)
    ratio = np.log(p) - np.log(policy.reference[drawn])
    return estimate - policy.penalty * p * (ratio - (p * ratio).sum(axis=-1, keepdims=True))


def simulate(
    policy: SoftmaxPolicy, kind: str, completions: int, replicas: int, looks: Sequence[int], seed: int
) -> dict[int, np.ndarray]:
    """n·Δ_n [R] at each n of `looks`, from parameters 0, with the steps of `schedule`: n is the i of the last one."""
    rng = np.random.default_rng(seed)
    theta = np.zeros((replicas, policy.features.shape[-1]))
    rows, (step, before), out = np.arange(replicas)[:, None], schedule(policy), {}
    for i in range(before + 1, max(looks) + 1):
        drawn = rng.integers(PROMPTS, size=(replicas, BATCH))
        p = policy.chances(theta)[rows, drawn]
        counts = rng.multinomial(completions, p)
        of_logits = logit_gradient(policy, p, counts, drawn, kind) * (step / i / BATCH)
        by_prompt = np.einsum("rbp,rba->rpa", drawn[:, :, None] == np.arange(PROMPTS), of_logits)
        theta += by_prompt.reshape(replicas, -1) @ policy.features.reshape(PROMPTS * ANSWERS, -1)
        if i in looks:
            out[i] = i * policy.gap(theta)
    return out
