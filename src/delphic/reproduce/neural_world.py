"""The language model of the study's neural runs: where they start, K there, and the way of the weights along K's direction.

The objective is anchored by a strong KL term in the reward: the whole update is that of the sampling policy, and all of it waits for
the next sync. With importance weights the anchor is in the loss, weighted too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from delphic.config import RunConfig, make_config
from delphic.dynamics.stability import Lag
from delphic.policy.curvature import Part as Share
from delphic.policy.curvature import Stiffness, flatten, measure_stiffness
from delphic.reproduce.runs import NO_CLIPPING, train_steps
from delphic.training.learner import LocalLearner, NonFiniteError
from delphic.training.loop import Parts, build_parts
from delphic.training.probe import sample
from delphic.training.stiffness import adam_preconditioner, make_curvature

ANCHOR = 1.0  # strong: the limit comes before the rate at which noise alone ruins a run
PROMPTS, COMPLETIONS = 64, 2  # curvature differs by prompt more than a hundredfold, so many prompts a step
WARM_STEPS, WARM_RATE = 60, 1e-6  # before Adam's runs: enough for its second moments, and next to no movement
Row = dict[str, Any]


@dataclass(frozen=True)
class World:
    """Where all runs of an optimiser start; None: at the built-in model."""

    optimiser: str
    weighted: bool
    start: Path | None

    def config(self, rate: float, interval: int, seed: int, steps: int) -> RunConfig:
        objective: dict[str, Any] = {"preset": "rloo", "aggregation": "sequence_sum", "kl_coefficient": ANCHOR}
        if self.weighted:
            weights = {"importance": "ratio", "ratio_level": "completion", "mask": "none"}
            objective |= {**weights, "kl": "k2", "kl_corrected": True}
        else:
            objective |= {"kl": "k1", "kl_place": "reward"}
        content: dict[str, Any] = {
            "seed": seed,
            "objective": objective,
            "model": {"threads": 1},
            "sampling": {"prompts": PROMPTS, "completions": COMPLETIONS, "max_new_tokens": 6},
            "train": {
                "steps": steps,
                "optimizer": self.optimiser,
                "learning_rate": rate,
                "schedule": "constant",
                "warmup_steps": 0,
                "sync_interval": interval,
                "max_grad_norm": NO_CLIPPING,
                "reference_every": 0,
                "estimate": False,
            },
        }
        return make_config(content, "reproduce")

    def parts(self, rate: float, interval: int, seed: int, steps: int) -> Parts:
        return build_parts(self.config(rate, interval, seed, steps), Path(), self.start)

    def lag(self, interval: int, stiffness: float) -> Lag:
        adam = self.optimiser == "adamw"
        return Lag(1 if self.weighted else interval, 0, 0.9 if adam else 0.0, stiffness, averaged=adam)

    def share(self, interval: int) -> Share:
        """The part of the derivative that decides: all of it without a lag."""
        return "total" if self.weighted or interval == 1 else "delayed"


def warm(optimiser: str, weighted: bool, folder: Path) -> World:
    """SGD starts at the built-in model, Adam after some steps that fill its second moments."""
    cold = World(optimiser, weighted, None)
    if optimiser == "sgd":
        return cold
    start = folder / f"start_{optimiser}_{'weighted' if weighted else 'plain'}"
    if not (start / "optimizer.safetensors").exists():
        parts = cold.parts(WARM_RATE, 1, 0, WARM_STEPS)
        for _ in train_steps(parts):
            pass
        start.mkdir(parents=True, exist_ok=True)
        parts.learner.save(start)
    return World(optimiser, weighted, start)


@dataclass(frozen=True)
class Measured:
    """K with its interval, and what takes a change of the weights [d] to its component along K's direction."""

    stiffness: Stiffness
    along: np.ndarray


def measured(world: World, part: Share, folder: Path, sizes: tuple[int, int]) -> Measured:
    """Kept as a file of numbers."""
    path = folder / f"K_{world.optimiser}_{'weighted' if world.weighted else 'plain'}_{part}_{sizes[0]}.npz"
    if not path.exists():
        parts = world.parts(WARM_RATE, 1, 0, 1)
        parts.sampler.sync(parts.learner)
        learner = parts.learner
        assert isinstance(learner, LocalLearner)
        adam = world.optimiser == "adamw"
        found = measure_stiffness(make_curvature(learner, sample(parts, *sizes, 0), part, adam))
        root = np.sqrt(adam_preconditioner(learner)) if adam else 1.0
        numbers = np.array(
            [found.value, found.confirmed, found.low, found.high, found.prompts, found.products], dtype=float
        )
        np.savez(path, numbers=numbers, vector=found.vector, along=found.vector / root)
    with np.load(path, allow_pickle=False) as kept:
        value, confirmed, low, high, prompts, products = kept["numbers"]
        stiffness = Stiffness(value, confirmed, low, high, int(prompts), int(products), kept["vector"])
        return Measured(stiffness, kept["along"])


def followed(world: World, along: np.ndarray, rate: float, interval: int, seed: int, steps: int) -> Row:
    """The weights' component along a direction after every step, and the mean reward; a run that ends in numbers that are not
    finite ends there."""
    parts = world.parts(rate, interval, seed, steps)
    learner = parts.learner
    assert isinstance(learner, LocalLearner)

    def weights() -> np.ndarray:
        return flatten(learner.policy.parameters().values())

    origin, path, reward = weights(), [], []
    try:
        for _, rollouts, _ in train_steps(parts):
            path.append(float(along @ (weights() - origin)))
            reward.append(float(rollouts.reward.mean()))
    except NonFiniteError:
        path.append(math.inf)
    return {"path": path, "reward": reward}
