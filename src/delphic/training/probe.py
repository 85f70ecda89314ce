"""Probing a checkpoint: the stiffness of its update, and how it answers to a raised learning rate. Nothing of the run is
opened for writing, and every branch trains a model of its own in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from delphic.config import RunConfig
from delphic.dynamics.response import Branch, Response, fit_response, reward_change
from delphic.errors import UserError
from delphic.policy.curvature import Curvature, Part, Stiffness, measure_stiffness
from delphic.randomness import Purpose, stream
from delphic.rollouts import Rollouts
from delphic.statistics.interval import Interval
from delphic.training.generate import Generator, rollout
from delphic.training.learner import LocalLearner
from delphic.training.loop import Parts, build_parts
from delphic.training.metrics import Meter
from delphic.training.stiffness import make_curvature

RECENT = 20  # steps over which clipping is averaged


@dataclass(frozen=True)
class Look:
    """What the rollouts of one measurement were. reward: mean; seconds: of the measurement, sampling included."""

    stiffness: Stiffness
    direction: np.ndarray  # [d] the preconditioned update: which way the next steps go
    reward: float
    completions: int
    seconds: float


def measure(
    config: RunConfig,
    folder: Path,
    checkpoint: Path,
    prompts: int,
    completions: int,
    part: Part,
    say: Callable[[str], None],
) -> Look:
    """K at a checkpoint, in the units of the config's learning rate, before clipping."""
    began = time.perf_counter()
    parts = _parts(config, folder, checkpoint)
    batch = sample(parts, prompts, completions, 0)
    say(f"{len(batch)} completions sampled; Lanczos")
    curvature = make_curvature(_learner(parts), batch, part, config.train.optimizer == "adamw")
    if curvature.update.prompts < 4:
        raise UserError(f"probe: needs 4 prompts at least, there are {curvature.update.prompts}")
    if not curvature.alive.any():
        raise UserError(
            "probe: every group has equal rewards, so the update has no derivative to measure; more prompts"
        )
    found = measure_stiffness(curvature, config.seed)
    everyone = np.arange(curvature.update.prompts)
    direction = curvature.root**2 * curvature.gradient(everyone)
    finite = batch.reward[np.isfinite(batch.reward)]
    return Look(found, direction, float(finite.mean()), completions, time.perf_counter() - began)


def step_response(
    config: RunConfig,
    folder: Path,
    checkpoint: Path,
    direction: np.ndarray,
    steps: int,
    factor: float,
    say: Callable[[str], None],
) -> tuple[Response, Interval]:
    """(the gain, what the raised rate does to the reward): a few steps at the run's learning rate and at `factor` times it, each from the checkpoint, with fresh rollouts of the
    policy as it is (the lag enters by the exact limits instead); the update's component along `direction` is followed."""
    branches, rewards = [], []
    for number, raised in enumerate((1.0, factor)):
        train = config.train.model_copy(
            update={"learning_rate": config.train.learning_rate * raised, "schedule": "constant", "warmup_steps": 0}
        )
        parts = _parts(config.model_copy(update={"train": train}), folder, checkpoint)
        learner = _learner(parts)
        values, earned = [], []
        for step in range(1, steps + 1):
            say(f"step {step} of {steps} at {raised:g} × the learning rate")
            parts.sampler.sync(learner)
            batch = sample(parts, config.sampling.prompts, config.sampling.completions, number * steps + step)
            curvature: Curvature = make_curvature(learner, batch, "delayed", adam=False)
            values.append(curvature.slopes(direction, np.arange(curvature.update.prompts)))
            finite, ids = np.isfinite(batch.reward), curvature.update.prompt
            seen = np.bincount(ids, finite)
            earned.append(np.bincount(ids, np.where(finite, batch.reward, 0.0))[seen > 0] / seen[seen > 0])
            learner.learn(batch, step, Meter(), Meter())
        branches.append(Branch(raised, values))
        rewards.append(earned)
    adam = config.train.optimizer == "adamw"
    momentum = config.train.betas[0] if adam else config.train.momentum
    return fit_response(branches, momentum, adam, seed=config.seed), reward_change(*rewards)


def clip_factor(rows: list[dict[str, float]], config: RunConfig) -> float | None:
    """Mean of min(1, max_grad_norm/‖g‖) over the last steps of a run's metrics: what clipping leaves of an update, and so of
    its derivative. None where no norm was logged."""
    norms = np.array([row["gradient_norm"] for row in rows if "gradient_norm" in row][-RECENT:])
    if not len(norms):
        return None
    return float(np.minimum(1.0, config.train.max_grad_norm / np.maximum(norms, 1e-300)).mean())


def _parts(config: RunConfig, folder: Path, checkpoint: Path) -> Parts:
    if config.train.offline is not None:
        raise UserError("probe: train.offline samples nothing, so there is no sampling policy to differentiate")
    parts = build_parts(config, folder, checkpoint)
    parts.sampler.sync(parts.learner)
    return parts


def _learner(parts: Parts) -> LocalLearner:
    assert isinstance(parts.learner, LocalLearner)
    return parts.learner


def sample(parts: Parts, prompts: int, completions: int, step: int) -> Rollouts:
    """Distinct training problems where there are enough, others in each step, with the value that the task knows."""
    source = parts.source
    assert isinstance(source, Generator)
    problems = source.task.train
    order = stream(parts.config.seed, Purpose.PROBE, step).permutation(len(problems))[:prompts]
    rows = np.arange(len(order) * completions)
    chosen = [problems[i] for i in order]
    batch = rollout(source.sampler, source.rewards, chosen, completions, Purpose.PROBE, step, rows)
    known = [np.nan if problem.value is None else problem.value for problem in chosen]
    return batch.with_(value=np.repeat(np.array(known, dtype=np.float64), completions))
