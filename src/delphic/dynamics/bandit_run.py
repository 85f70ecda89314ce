"""Training runs of a bandit: many replicas at once, on-policy or lagged, with the optimisers that people use.

One step: rollouts from the policy version that the lag schedule names, an update (bandit_update.py), an anchor's pull, an
optimiser. Replicas are independent runs that differ in their draws alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from delphic.dynamics.bandit import Bandit
from delphic.dynamics.bandit_update import can_count, counted_update, draw, expected_update, sampled_update
from delphic.dynamics.schedule import source_step
from delphic.objective import Objective


@dataclass(frozen=True)
class Anchor:
    """A pull −weight · ∇KL(π‖π_anchor), exact (summed over arms, mean over prompts).

    to: "reference", a fixed policy · "behaviour", the one that sampled the step's rollouts (OPMD, AsymRE).
    lagged: the pull is the sampling policy's, not the learning one's (a KL in the reward of stale rollouts).
    """

    weight: float
    to: Literal["reference", "behaviour"] = "reference"
    lagged: bool = False

    def __post_init__(self) -> None:
        if self.to == "behaviour" and self.lagged:
            raise ValueError("a policy does not pull towards itself: the behaviour anchor cannot be lagged")

    def pull(self, bandit: Bandit, theta: np.ndarray, behaviour: np.ndarray, reference: np.ndarray) -> np.ndarray:
        """[..., D]"""
        other = reference if self.to == "reference" else behaviour
        return -self.weight * bandit.kl_gradient(behaviour if self.lagged else theta, other)


@dataclass(frozen=True)
class Optimiser:
    """Ascends: θ += rate · v. sgd: v = momentum · v + u (heavy-ball). adam: betas, bias-corrected, no weight decay.

    rate: one for all, or [R, 1], each replica's own.
    """

    kind: Literal["sgd", "adam"] = "sgd"
    rate: float | np.ndarray = 0.1
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    def start(self, theta: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """A function from updates [R, D] to steps of θ that holds the optimiser's state."""
        first, second, count = np.zeros_like(theta), np.zeros_like(theta), 0

        def sgd(update: np.ndarray) -> np.ndarray:
            nonlocal first
            if self.momentum == 0:
                return self.rate * update
            first = self.momentum * first + update
            return self.rate * first

        def adam(update: np.ndarray) -> np.ndarray:
            nonlocal first, second, count
            count += 1
            b1, b2 = self.betas
            first = b1 * first + (1 - b1) * update
            second = b2 * second + (1 - b2) * update**2
            return self.rate * (first / (1 - b1**count)) / (np.sqrt(second / (1 - b2**count)) + self.epsilon)

        return sgd if self.kind == "sgd" else adam


@dataclass(frozen=True)
class Plan:
    """What a run does at every step. prompts B, completions G; interval m, offset n of the lag schedule."""

    objective: Objective
    prompts: int = 1
    completions: int = 16
    order: Literal["independent", "epochs"] = "independent"
    optimiser: Optimiser = field(default_factory=Optimiser)
    interval: int = 1
    offset: int = 0
    anchor: Anchor | None = None


@dataclass(frozen=True)
class Trace:
    """steps [S] finished updates at each record; reward [S, R] exact J; theta [S, R, D] (None unless asked for)."""

    steps: np.ndarray
    reward: np.ndarray
    theta: np.ndarray | None
    last: np.ndarray  # [R, D]


def train(
    bandit: Bandit,
    plan: Plan,
    start: np.ndarray,
    steps: int,
    seed: int,
    every: int = 0,
    keep_theta: bool = False,
    reference: np.ndarray | None = None,
    counted: bool = True,
) -> Trace:
    """Run all replicas; records before the first step, after every `every` steps (0: none between) and after the last.

    Args:
        start: [R, D]. reference: [D] or [R, D] of the anchor and of a KL term of the objective (None: `start`).
        counted: use the form from counts where it is the same update; the draws are the same either way.
    """
    R = len(start)
    rng = np.random.Generator(np.random.SFC64(seed))
    theta, reference = start.copy(), start if reference is None else np.broadcast_to(reference, start.shape)
    order = prompt_order(len(bandit.rewards), R, plan.prompts, plan.order, rng)
    advance = plan.optimiser.start(theta)
    fast = counted and can_count(bandit, plan.objective)
    reference_policy = bandit.probabilities(reference) if plan.objective.needs_reference else None
    versions = {0: theta.copy()}
    records: list[tuple[int, np.ndarray, np.ndarray]] = [(0, bandit.expected_reward(theta), theta.copy())]
    for step in range(1, steps + 1):
        source = source_step(step, plan.interval, plan.offset)
        behaviour = versions[source]
        now = bandit.probabilities(theta)
        old = now if source == step - 1 else bandit.probabilities(behaviour)
        prompts, uniforms = order(), rng.random((R, plan.prompts, plan.completions))
        if fast:
            loo = plan.objective.baseline == "leave_one_out"
            update = counted_update(bandit, bandit.outcome_chances(old), prompts, uniforms, now, loo)
        else:
            normals = rng.standard_normal(uniforms.shape) if bandit.noise == "gaussian" else None
            draws = draw(bandit, bandit.outcome_chances(old), prompts, uniforms, normals)
            update = sampled_update(bandit, plan.objective, draws, now, old, reference_policy)
        if plan.anchor is not None:
            update = update + plan.anchor.pull(bandit, theta, behaviour, reference)
        theta = theta + advance(update)
        if step % plan.interval == 0:  # only a refreshed sampler's version is sampled from
            versions[step] = theta
        versions = {v: t for v, t in versions.items() if v >= source_step(step + 1, plan.interval, plan.offset)}
        if step == steps or (every and step % every == 0):
            records.append((step, bandit.expected_reward(theta), theta if keep_theta else start))
    return Trace(
        np.array([r[0] for r in records]),
        np.array([r[1] for r in records]),
        np.array([r[2] for r in records]) if keep_theta else None,
        theta,
    )


def prompt_order(
    size: int, replicas: int, count: int, order: str, rng: np.random.Generator
) -> Callable[[], np.ndarray]:
    """A function that gives each step's prompts [R, B]: independent draws, or the next of endless reshuffled epochs."""
    if size == 1:
        nothing = np.zeros((replicas, count), dtype=np.int64)
        return lambda: nothing
    if order == "independent":
        return lambda: rng.integers(size, size=(replicas, count))
    queue = np.empty((replicas, 0), dtype=np.int64)
    every = np.broadcast_to(np.arange(size), (replicas, size))

    def following() -> np.ndarray:
        nonlocal queue
        while queue.shape[1] < count:
            queue = np.concatenate([queue, rng.permuted(every, axis=1)], axis=1)
        taken, queue = queue[:, :count], queue[:, count:]
        return taken

    return following


def mean_step(bandit: Bandit, plan: Plan, theta: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """[D] the expected update on-policy in the limit of infinite groups, with the anchor's pull. theta, reference: [D]."""
    update = expected_update(
        bandit, plan.objective, theta, reference=reference if plan.objective.needs_reference else None
    )
    return update if plan.anchor is None else update + plan.anchor.pull(bandit, theta, theta, reference)


def stiffness(
    bandit: Bandit, plan: Plan, theta: np.ndarray, reference: np.ndarray, distance: float = 1e-5
) -> np.ndarray:
    """[D] eigenvalues K of −d(mean update)/dθ at `theta`, by central differences; largest real part first.

    At a fixed point the largest decides the stability (theory section 3), the small ones what the reward curve shows.
    Directions that change no probability have K = 0. Complex where the update is not a gradient.
    """
    shifts = distance * np.eye(len(theta))
    columns = [
        (mean_step(bandit, plan, theta + h, reference) - mean_step(bandit, plan, theta - h, reference)) / (2 * distance)
        for h in shifts
    ]
    values = np.linalg.eigvals(-np.array(columns).T)
    return values[np.argsort(-values.real)]
