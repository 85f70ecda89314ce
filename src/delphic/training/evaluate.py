"""Accuracy on held-out problems, with an interval clustered by problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from delphic.config import RunConfig
from delphic.randomness import Purpose
from delphic.tasks import RewardFunction, Task
from delphic.training.generate import rollout
from delphic.training.protocols import Sampler


@dataclass(frozen=True)
class Evaluation:
    accuracy: float
    low: float
    high: float
    pass_at_k: float
    problems: int
    samples: int

    def metrics(self) -> dict[str, float]:
        return {
            "eval_accuracy": self.accuracy,
            "eval_accuracy_low": self.low,
            "eval_accuracy_high": self.high,
            "eval_pass_at_k": self.pass_at_k,
        }


def evaluate_policy(
    config: RunConfig, task: Task, rewards: Sequence[RewardFunction], sampler: Sampler
) -> Evaluation | None:
    """Sample the held-out problems at the training temperature; None where there are none.

    Every evaluation of a run draws the same random numbers, so that two of them are paired. pass_at_k counts
    problems with a completion of reward > 0.
    """
    problems = list(task.held_out[: config.evaluation.problems])
    if not problems:
        return None
    samples = config.evaluation.samples
    rows = np.arange(len(problems) * samples)
    rollouts = rollout(sampler, rewards, problems, samples, Purpose.EVALUATE, 0, rows)
    reward_PS = rollouts.reward.reshape(len(problems), samples)
    counted = np.isfinite(reward_PS).any(axis=1)
    if not counted.any():
        return None
    means = np.nanmean(reward_PS[counted], axis=1)
    low, high = clustered_interval(means)
    solved = float((np.nan_to_num(reward_PS[counted]).max(axis=1) > 0).mean())
    return Evaluation(float(means.mean()), low, high, solved, int(counted.sum()), samples)


def clustered_interval(means: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of independent per-problem means.

    Means within [0, 1]: Wilson's interval at the effective sample size p(1 − p)/se², which stays honest at 0 and 1.
    Otherwise the normal one. A single problem gives the value itself.
    """
    n, centre, z = len(means), float(means.mean()), 1.96
    error2 = float(means.var(ddof=1)) / n if n > 1 else math.inf
    if means.min() >= 0 and means.max() <= 1:
        effective = centre * (1 - centre) / error2 if 0 < error2 < math.inf else float(n)
        middle = (centre + z**2 / (2 * effective)) / (1 + z**2 / effective)
        half = z / (1 + z**2 / effective) * math.sqrt(centre * (1 - centre) / effective + z**2 / (4 * effective**2))
        return max(0.0, middle - half), min(1.0, middle + half)
    half = z * math.sqrt(error2) if n > 1 else 0.0
    return centre - half, centre + half
