"""Updates of a bandit's policy: sampled (the trainer's own objective, or a fast form of it), and expected.

An update is what an optimiser ascends: u(θ) = agg(coefficient · ∇ log π), theory section 2. Completions are one token, so
every aggregation is a mean over them. Samples come from a behaviour policy, which may be an older one.

| symbol | shape | meaning |
|---|---|---|
| `theta`, `behaviour` | [R, D] | the policy that learns, the policy that sampled; R replicas |
| `prompts` | [R, B] | prompt numbers of a step |
| `uniforms` | [R, B, G] | one uniform draw a completion: it decides the outcome by inversion of the distribution |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from delphic.dynamics.bandit import Bandit
from delphic.objective import Objective, StepInputs, coefficients, prepare
from delphic.objective.population import population_coefficient


@dataclass(frozen=True)
class Draws:
    """What a step sampled. prompts [R, B]; arms [R, B, G]; rewards [R, B, G]."""

    prompts: np.ndarray
    arms: np.ndarray
    rewards: np.ndarray


def draw(
    bandit: Bandit, chances: np.ndarray, prompts: np.ndarray, uniforms: np.ndarray, normals: np.ndarray | None = None
) -> Draws:
    """The completions that `uniforms` choose, each from its prompt's outcomes.

    Args:
        chances: [R, P, O] the sampling policy's outcomes. normals: [R, B, G] for gaussian rewards.
    """
    cdf = np.cumsum(np.take_along_axis(chances, prompts[..., None], axis=1), axis=-1)[..., :-1]
    outcome = (uniforms[..., None] > cdf[:, :, None, :]).sum(-1, dtype=np.int64)
    rewards = bandit.outcome_rewards[prompts[..., None], outcome]
    if bandit.noise == "gaussian":
        assert normals is not None
        rewards = rewards + bandit.deviation * normals
    return Draws(prompts, outcome // bandit.outcomes_per_arm, rewards)


def sampled_update(
    bandit: Bandit,
    objective: Objective,
    draws: Draws,
    probabilities: np.ndarray,
    behaviour: np.ndarray,
    reference: np.ndarray | None = None,
) -> np.ndarray:
    """[R, D] the objective's update from the draws, by the functions that the trainer calls.

    Args:
        probabilities, behaviour, reference: [R, P, K] of the policy that learns, of the one that sampled, and of the
            reference that a KL term of the objective needs.

    Raises:
        ValueError: advantages whitened over a batch would mix the replicas.
    """
    if objective.scale == "batch_whiten":
        raise ValueError('scale = "batch_whiten" looks at a whole step, and the replicas are steps of their own')
    R, B, G = draws.arms.shape
    P, K, _ = bandit.shape
    prepared = prepare(objective, StepInputs(draws.rewards.reshape(-1), np.arange(R * B).repeat(G)))
    place = ((np.arange(R)[:, None] * P + draws.prompts)[..., None] * K + draws.arms).reshape(-1)
    column = prepared.coefficient[:, None]
    same = probabilities is behaviour
    log_now = np.log(probabilities).reshape(-1)[place][:, None] if not same or reference is not None else 0.0
    log_ratio = np.zeros_like(column) if same else log_now - np.log(behaviour).reshape(-1)[place][:, None]
    against = None if reference is None else log_now - np.log(reference).reshape(-1)[place][:, None]
    penalised = prepared.penalised[:, None].astype(np.float64)
    factors = coefficients(objective, column, penalised, log_ratio, np.ones_like(column), against)
    weights = np.bincount(place, (factors.policy + factors.penalty)[:, 0], minlength=R * P * K)
    return bandit.pull(weights.reshape(R, P, K) / (B * G), probabilities)


def counted_update(
    bandit: Bandit,
    chances: np.ndarray,
    prompts: np.ndarray,
    uniforms: np.ndarray,
    probabilities: np.ndarray,
    leave_one_out: bool = False,
) -> np.ndarray:
    """[R, D] the plain update (group mean or leave-one-out baseline, no scale, ratio or penalty) from counts alone.

    A group of G with n_o of outcome o and mean z̄ pulls outcome o by n_o (z_o − z̄)/G, or over G−1 for leave-one-out.
    Equal to `sampled_update` on the same uniforms. chances: [R, P, O] the sampling policy's outcomes.
    """
    R, B, G = uniforms.shape
    P, K, _ = bandit.shape
    alone = P == 1 and B == 1
    chosen = chances[:, 0] if alone else np.take_along_axis(chances, prompts[..., None], axis=1).reshape(R * B, -1)
    counts = outcome_counts(chosen.T, uniforms.reshape(R * B, G).T)  # [O, R·B]: the long axis last is twice as fast
    values = bandit.outcome_rewards.T if alone else bandit.outcome_rewards[prompts.reshape(-1)].T
    pulls = counts * (values - (counts * values).sum(0) / G)
    pulls /= B * ((G - 1) if leave_one_out else G)
    per_arm = pulls.reshape(K, -1, R * B).sum(1) if bandit.outcomes_per_arm > 1 else pulls
    weights = per_arm.T.reshape(R, B, K)
    if not alone:
        place = ((np.arange(R)[:, None] * P + prompts)[..., None] * K + np.arange(K)).reshape(-1)
        weights = np.bincount(place, weights.reshape(-1), minlength=R * P * K).reshape(R, P, K)
    return bandit.pull(weights, probabilities)


def outcome_counts(chances_OM: np.ndarray, uniforms_GM: np.ndarray) -> np.ndarray:
    """[O, M] how many of each group's G uniforms fall on each outcome: M multinomial draws."""
    cdf = np.ascontiguousarray(chances_OM)[:-1].copy()
    for k in range(1, len(cdf)):
        cdf[k] += cdf[k - 1]
    size = len(uniforms_GM)
    above = np.zeros(cdf.shape, dtype=np.uint8 if size < 256 else np.int64)
    for row in np.ascontiguousarray(uniforms_GM):
        above += (row > cdf).view(np.uint8)
    counts = np.empty((len(cdf) + 1, cdf.shape[1]))
    counts[0], counts[-1] = float(size) - above[0], above[-1]
    np.subtract(above[:-1], above[1:], out=counts[1:-1], casting="unsafe", dtype=np.float64)
    return counts


def can_count(bandit: Bandit, objective: Objective) -> bool:
    """Whether `counted_update` is the objective's update (on-policy, where ratios are 1, the clip does nothing)."""
    plain = objective.baseline in ("mean", "leave_one_out") and objective.scale == "none"
    bare = objective.importance == "none" and objective.mask == "none" and objective.selection == "all"
    unshaped = objective.data_weight == "none" and objective.baseline_shift == 0 and objective.multiplier == 1
    return plain and bare and unshaped and not objective.has_penalty and bandit.noise != "gaussian"


def expected_update(
    bandit: Bandit,
    objective: Objective,
    theta: np.ndarray,
    behaviour: np.ndarray | None = None,
    reference: np.ndarray | None = None,
) -> np.ndarray:
    """[D] E of the update in the limit of infinite groups: the baseline is V, the scale the prompt's own σ.

    Mean baseline, no ratio: ∇J(behaviour)'s weights on today's scores; with ρ: ∇J(θ) (theory section 2, fact b).

    Args:
        theta, behaviour (None: the same), reference: [D].

    Raises:
        ValueError: gaussian rewards under an objective that is not linear in them, or a limit that is not known.
    """
    linear = objective.data_weight == "none" and objective.scale == "none" and objective.baseline != "log_mean_exp"
    if bandit.noise == "gaussian" and not linear:
        raise ValueError("with gaussian rewards only an advantage that is linear in them has its limit here")
    now = bandit.probabilities(theta)
    old = now if behaviour is None else bandit.probabilities(behaviour)
    chances, each = bandit.outcome_chances(old), bandit.outcomes_per_arm
    column = population_coefficient(objective, bandit.outcome_rewards, chances).reshape(-1, 1)

    def per_outcome(values: np.ndarray) -> np.ndarray:
        return np.repeat(values, each, axis=-1).reshape(-1, 1)

    against = None if reference is None else per_outcome(np.log(now / bandit.probabilities(reference)))
    ones = np.ones_like(column)
    factors = coefficients(objective, column, ones, per_outcome(np.log(now / old)), ones, against)
    force = chances * (factors.policy + factors.penalty).reshape(chances.shape)
    P, K, _ = bandit.shape
    return bandit.pull(force.reshape(P, K, each).sum(-1) / P, now)
