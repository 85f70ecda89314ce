"""Accuracy on held-out problems, with an interval clustered by problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from delphic.config import RunConfig
from delphic.randomness import Purpose
from delphic.rollouts import Rollouts
from delphic.statistics.evaluation import estimate, problem_means
from delphic.tasks import Problem, RewardFunction, Task
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
    rollouts = sample_held_out(sampler, rewards, problems, samples)
    reward_PS = rollouts.reward.reshape(len(problems), samples)
    means = problem_means(reward_PS)
    counted = np.isfinite(means)
    if not counted.any():
        return None
    accuracy = estimate(means)
    solved = float((np.nan_to_num(reward_PS[counted]).max(axis=1) > 0).mean())
    return Evaluation(accuracy.mean, accuracy.low, accuracy.high, solved, accuracy.problems, samples)


def sample_held_out(
    sampler: Sampler, rewards: Sequence[RewardFunction], problems: Sequence[Problem], samples: int, first: int = 0
) -> Rollouts:
    """`samples` rewarded completions of each problem, which are numbers `first`, `first` + 1, … of all held-out ones.

    A completion's random numbers depend on the seed and on its own number alone: two policies are paired, and so are
    parts of the problems with the whole.
    """
    rows = np.arange(first * samples, (first + len(problems)) * samples)
    return rollout(sampler, rewards, problems, samples, Purpose.EVALUATE, 0, rows)
