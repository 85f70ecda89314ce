"""Bandits with a wanted best group size, and pilots of them: known truths for what `delphic plan` estimates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from delphic.dynamics.bandit import Bandit
from delphic.dynamics.bandit_update import draw
from delphic.statistics.group_size import best_group_size
from delphic.statistics.ustatistic import moment_columns


@dataclass(frozen=True)
class WorldSize:
    """prompts P, arms K, parameters D; steepness: how much an arm's quality moves its log-odds of success."""

    prompts: int
    arms: int
    dimensions: int
    steepness: float


SIZES = {3: WorldSize(96, 3, 48, 10.0), 12: WorldSize(96, 12, 24, 1.5), 48: WorldSize(96, 16, 24, 1.0)}
"""Worlds by their best group at the start. A small best group needs prompts that want different things and rewards that the
arm decides; a large one, prompts that want nearly the same and rewards that are mostly chance."""


def world(star: int, seed: int = 0, size: WorldSize | None = None) -> Bandit:
    """Binary rewards, prompts of mixed difficulty, exactly `star` as G* of the uniform policy θ = 0.

    Features and qualities are a mixture of what all prompts share and what is a prompt's own; the share of its own is
    solved for.

    Raises:
        ValueError: no mixture of this size has that best group.
    """
    size = size or SIZES[star]
    rng = np.random.default_rng(seed)
    P, K, D = size.prompts, size.arms, size.dimensions
    features, qualities = rng.normal(size=(K, D)) / np.sqrt(D), rng.normal(size=K)
    own_features, own_qualities = rng.normal(size=(P, K, D)) / np.sqrt(D), rng.normal(size=(P, K))
    difficulty = rng.normal(size=(P, 1))

    def mixed(own: float) -> Bandit:
        rest = np.sqrt(1 - own**2)
        odds = size.steepness * (rest * qualities + own * own_qualities) + difficulty * min(1.0, 4 * own)
        return Bandit(rest * features + own * own_features, expit(odds), "binary")

    def excess(own: float) -> float:
        c1, _, c3 = mixed(own).moments(np.zeros(D)).constants
        return float(np.log(best_group_size(c1, c3) / star))

    if excess(1.0) > 0 or excess(1e-3) < 0:
        raise ValueError(f"no world of {size} has the best group size {star}")
    return mixed(float(brentq(excess, 1e-3, 1.0)))


@dataclass(frozen=True)
class Pilots:
    """M simulated pilots of B prompts × G₀ completions. columns: the fields of PromptMoments, each [M, B]."""

    columns: dict[str, np.ndarray]
    cross: np.ndarray  # [M, B, B] ĝ_b · ĝ_b′ of the leave-one-out gradients
    rewards: np.ndarray  # [M, B, G₀]


def simulate_pilots(
    bandit: Bandit, theta: np.ndarray, pilots: int, prompts: int, completions: int, seed: int, distinct: bool = True
) -> Pilots:
    """Pilots of the policy `theta` [D]. distinct: prompts are drawn without repeating one, as `delphic plan` does."""
    rng = np.random.default_rng(seed)
    P = len(bandit.rewards)
    if distinct:
        chosen = rng.permuted(np.broadcast_to(np.arange(P), (pilots, P)), axis=1)[:, :prompts]
    else:
        chosen = rng.integers(P, size=(pilots, prompts))
    p = bandit.probabilities(theta)
    chances = np.broadcast_to(bandit.outcome_chances(p), (pilots, P, bandit.outcome_rewards.shape[1]))
    drawn = draw(bandit, chances, chosen, rng.random((pilots, prompts, completions)))
    centred = bandit.features - np.einsum("pk,pkd->pd", p, bandit.features)[:, None]
    parts = [_measure(centred, drawn.prompts[m], drawn.arms[m], drawn.rewards[m]) for m in range(pilots)]
    columns = {name: np.array([part[0][name] for part in parts]) for name in parts[0][0]}
    return Pilots(columns, np.array([part[1] for part in parts]), drawn.rewards)


def _measure(
    centred: np.ndarray, prompts: np.ndarray, arms: np.ndarray, rewards: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Moments of each prompt of a pilot and the inner products of their gradients."""
    scores = centred[prompts[:, None], arms]  # [B, G₀, D]
    total, weighted = scores.sum(1), np.einsum("bgd,bg->bd", scores, rewards)
    columns = moment_columns(
        (scores**2).sum(-1),
        np.einsum("bgd,bd->bg", scores, total),
        np.einsum("bgd,bd->bg", scores, weighted),
        rewards,
    )
    count = rewards.shape[1]
    gradients = (weighted - rewards.mean(1)[:, None] * total) / (count - 1)
    return columns, gradients @ gradients.T
