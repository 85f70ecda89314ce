"""A softmax bandit: the smallest world in which group-relative policy gradients are exact.

P equally likely prompts, K arms each; logits = features · θ, policy π = softmax, one-token completions. What a model only
estimates is a sum over arms here: J, ∇J, the error constants of theory section 1, the expected update of an objective.

| symbol | shape | meaning |
|---|---|---|
| `theta` | [..., D] | parameters; leading axes are replicas |
| `features` φ | [P, K, D] | ∂ logits/∂θ; `tabular` gives every arm its own parameter |
| `rewards` r | [P, K] | mean reward of each arm |
| outcomes | [P, O] | (arm, reward) pairs: O = K, or 2K for binary rewards (success, failure of each arm) |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

from delphic.statistics.error import ErrorMoments


@dataclass(frozen=True)
class Bandit:
    """The world. noise: "none", rewards are their means · "binary", 1 with chance r · "gaussian", r + deviation · N(0, 1).

    Raises:
        ValueError: shapes that do not fit, or binary rewards outside [0, 1].
    """

    features: np.ndarray
    rewards: np.ndarray
    noise: Literal["none", "binary", "gaussian"] = "none"
    deviation: float = 0.0

    def __post_init__(self) -> None:
        if self.features.ndim != 3 or self.features.shape[:2] != self.rewards.shape:
            raise ValueError(f"features [P, K, D] and rewards [P, K]: {self.features.shape}, {self.rewards.shape}")
        if self.noise == "binary" and not ((self.rewards >= 0) & (self.rewards <= 1)).all():
            raise ValueError("binary rewards have means between 0 and 1")

    @staticmethod
    def tabular(rewards: np.ndarray, noise: Literal["none", "binary", "gaussian"] = "none") -> Bandit:
        """Every arm of every prompt has a logit of its own: D = P·K, and J's prompts do not share anything."""
        P, K = rewards.shape
        return Bandit(np.eye(P * K).reshape(P, K, P * K), rewards, noise)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(P, K, D)"""
        P, K, D = self.features.shape
        return P, K, D

    @cached_property
    def _flat(self) -> np.ndarray:
        """[D, P·K]"""
        P, K, D = self.shape
        return np.ascontiguousarray(self.features.reshape(P * K, D).T)

    # -- the policy and what it is worth

    def logits(self, theta: np.ndarray) -> np.ndarray:
        """[..., P, K] φ · θ"""
        return (theta @ self._flat).reshape(*theta.shape[:-1], *self.rewards.shape)

    def probabilities(self, theta: np.ndarray) -> np.ndarray:
        """[..., P, K] π_θ(arm | prompt)"""
        z = self.logits(theta)
        z -= z.max(-1, keepdims=True)
        np.exp(z, out=z)
        z /= z.sum(-1, keepdims=True)
        return z

    def values(self, theta: np.ndarray) -> np.ndarray:
        """[..., P] V(x) = Σ_k π r"""
        return (self.probabilities(theta) * self.rewards).sum(-1)

    def expected_reward(self, theta: np.ndarray) -> np.ndarray:
        """[...] J(θ) = mean over prompts of V(x)"""
        return self.values(theta).mean(-1)

    def pull(self, weights: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
        """[..., D] Σ_{x,k} w_xk ∇ log π(k|x) = Σ_{x,k} (w_xk − π_xk Σ_j w_xj) φ_xk. weights, probabilities: [..., P, K]."""
        centred = weights - probabilities * weights.sum(-1, keepdims=True)
        return centred.reshape(*centred.shape[:-2], -1) @ self._flat.T

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        """[..., D] ∇J = (1/P) Σ_x Σ_k π (r − V) ∇ log π"""
        p = self.probabilities(theta)
        value = (p * self.rewards).sum(-1, keepdims=True)
        return self.pull(p * (self.rewards - value) / len(self.rewards), p)

    def kl(self, theta: np.ndarray, other: np.ndarray) -> np.ndarray:
        """[...] mean over prompts of KL(π_θ‖π_other), nats"""
        p, delta = self._log_ratio(theta, other)
        return (p * delta).sum(-1).mean(-1)

    def kl_gradient(self, theta: np.ndarray, other: np.ndarray) -> np.ndarray:
        """[..., D] ∇_θ of `kl`: E_x Σ_k π (log π/π_other) ∇ log π"""
        p, delta = self._log_ratio(theta, other)
        return self.pull(p * delta / len(self.rewards), p)

    def _log_ratio(self, theta: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(π_θ, log π_θ/π_other), finite where a probability is too small to be a number."""
        own = log_softmax(self.logits(theta), axis=-1)
        return np.exp(own), own - log_softmax(self.logits(other), axis=-1)

    def goal(self, theta: np.ndarray, reference: np.ndarray, weight: float) -> np.ndarray:
        """[...] J − weight · KL(π‖π_reference)"""
        return self.expected_reward(theta) - (weight * self.kl(theta, reference) if weight > 0 else 0.0)

    def best(self, start: np.ndarray, weight: float = 0.0) -> float:
        """sup of `goal` around `start` [D], as far as a quasi-Newton ascent from there gets (1,000 iterations).

        Without a weight the supremum may lie at infinity.
        """
        found = minimize(
            lambda t: -float(self.goal(t, start, weight)),
            start,
            jac=lambda t: weight * self.kl_gradient(t, start) - self.gradient(t),
            method="L-BFGS-B",
            options={"maxiter": 1000, "ftol": 1e-12, "gtol": 1e-9},
        )
        return -float(found.fun)

    # -- outcomes: what a draw can be

    @cached_property
    def outcome_rewards(self) -> np.ndarray:
        """[P, O] reward of each outcome; with gaussian noise its mean."""
        if self.noise != "binary":
            return self.rewards
        P, K, _ = self.shape
        return np.broadcast_to([1.0, 0.0], (P, K, 2)).reshape(P, 2 * K)

    @property
    def outcomes_per_arm(self) -> int:
        return 2 if self.noise == "binary" else 1

    def outcome_chances(self, probabilities: np.ndarray) -> np.ndarray:
        """[..., P, O] from [..., P, K]: binary arms split into success and failure."""
        if self.noise != "binary":
            return probabilities
        split = np.stack([self.rewards, 1 - self.rewards], axis=-1)
        return (probabilities[..., None] * split).reshape(*probabilities.shape[:-1], -1)

    # -- how good is a sampled gradient

    def moments(self, theta: np.ndarray) -> ErrorMoments:
        """Exact moments over the prompts, so that c₁, c₂, c₃ and G* are exact (theory section 1). theta: [D].

        The prompts of the world are the whole population: c₁ is that of independent draws from them.
        """
        p = self.probabilities(theta)
        scores = self.features - np.einsum("pk,pkd->pd", p, self.features)[:, None]
        norms = (scores**2).sum(-1)
        value = (p * self.rewards).sum(-1)
        g = np.einsum("pk,pkd->pd", p * (self.rewards - value[:, None]), scores)
        own = {"none": 0.0, "binary": self.rewards * (1 - self.rewards), "gaussian": self.deviation**2}[self.noise]
        second = self.rewards**2 + own  # E[Z² | arm]
        around = (self.rewards - value[:, None]) ** 2 + own  # E[(Z − V)² | arm]

        def mean(per_arm: np.ndarray) -> np.ndarray:
            return (p * per_arm).sum(-1)

        size, linear = mean(norms), mean(norms * self.rewards)
        gradient, whole = float((g**2).sum(-1).mean()), g.mean(0)
        return ErrorMoments(
            between=gradient - float(whole @ whole),
            gradient=gradient,
            mean=float(whole @ whole),
            spread=float(mean(norms * around).mean()),
            product=float((size * mean(around)).mean()),
            square=float(mean(norms * second).mean()),
            best=float((linear**2 / np.where(size > 0, size, 1.0)).mean()),
        )
