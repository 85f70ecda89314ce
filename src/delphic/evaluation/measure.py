"""A policy's completions of an exam, and what is kept of them."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from delphic.config import RunConfig
from delphic.errors import UserError
from delphic.evaluation.specs import Exam
from delphic.policy.model import Policy
from delphic.statistics.evaluation import (
    Difference,
    Estimate,
    accuracies,
    correct_counts,
    estimate,
    majority,
    paired_difference,
    pass_at_k,
    problem_means,
)
from delphic.tasks.base import Prompt
from delphic.training.evaluate import sample_held_out
from delphic.training.sampler import LocalSampler


@dataclass(frozen=True)
class Measured:
    """One task's result. `correct` and `counted` [P] are all that a later comparison needs."""

    label: str
    spec: str
    prompts_hash: str
    correct: np.ndarray
    counted: np.ndarray
    samples: int
    settings: Mapping[str, Any]
    reward: Estimate
    majority: Estimate
    truncated_share: float
    mean_length: float
    seconds: float
    tokens_per_second: float

    @property
    def accuracy(self) -> Estimate:
        return estimate(accuracies(self.correct, self.counted))

    def pass_at(self, k: int) -> Estimate:
        return estimate(pass_at_k(self.correct, self.counted, k))

    @property
    def left_out(self) -> int:
        """Completions without a finite reward."""
        return int(len(self.counted) * self.samples - self.counted.sum())

    def to_json(self, ks: Sequence[int]) -> dict[str, Any]:
        return {
            "spec": self.spec,
            "prompts_hash": self.prompts_hash,
            "problems": len(self.correct),
            "samples": self.samples,
            "settings": dict(self.settings),
            "accuracy": interval_json(self.accuracy),
            "reward": interval_json(self.reward),
            "pass_at": {str(k): interval_json(self.pass_at(k)) for k in ks},
            "majority": interval_json(self.majority),
            "left_out": self.left_out,
            "truncated_share": self.truncated_share,
            "mean_length": self.mean_length,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "correct": self.correct.tolist(),
            "counted": self.counted.tolist(),
        }


def interval_json(value: Estimate) -> dict[str, Any]:
    """An estimate as JSON, where NaN is null; a difference also says whether its interval excludes 0."""
    out: dict[str, Any] = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(value).items()}
    return {**out, "excludes_zero": value.excludes_zero} if isinstance(value, Difference) else out


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """Hash of the prompts in their order."""
    return hashlib.sha256(json.dumps(list(prompts)).encode()).hexdigest()[:16]


def measure(policy: Policy, exam: Exam, samples: int, advance: Callable[[int], None]) -> Measured:
    """Sample every problem of the exam and score the completions.

    A batch at a time, and the same completions as all at once: `advance(problems)` is called after each.

    Raises:
        UserError: the model's probabilities are not finite, or no completion has a reward.
    """
    sampler = LocalSampler(policy, RunConfig(seed=exam.seed), settings=exam.settings)
    at_once = max(1, exam.settings.batch_rows // samples)
    started = time.perf_counter()
    codes: dict[str, int] = {}
    reward: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    truncated: list[np.ndarray] = []
    answers: list[int] = []
    for first in range(0, len(exam.problems), at_once):
        part = exam.problems[first : first + at_once]
        rollouts = sample_held_out(sampler, exam.rewards, part, samples, first)
        if not all(np.isfinite(logp).all() for logp in rollouts.behaviour_logp):
            raise UserError(f"{exam.label}: the model's log-probs are not finite; its weights are damaged")
        reward.append(rollouts.reward)
        lengths.append(rollouts.lengths)
        truncated.append(rollouts.truncated)
        for text in rollouts.completion:
            found = _answer(exam, text)
            answers.append(-1 if found is None else codes.setdefault(found, len(codes)))
        advance(len(part))
    seconds = time.perf_counter() - started
    shape = len(exam.problems), samples
    reward_PS = np.concatenate(reward).reshape(shape)
    if not np.isfinite(reward_PS).any():
        raise UserError(f"{exam.label}: no completion has a reward; every reward function gave None or NaN")
    correct, counted = correct_counts(reward_PS)
    length = np.concatenate(lengths)
    return Measured(
        label=exam.label,
        spec=exam.spec,
        prompts_hash=prompts_hash(exam.prompts),
        correct=correct,
        counted=counted,
        samples=samples,
        settings={**{k: v for k, v in asdict(exam.settings).items() if k != "batch_rows"}, "seed": exam.seed},
        reward=estimate(problem_means(reward_PS)),
        majority=estimate(majority(np.array(answers).reshape(shape), reward_PS)),
        truncated_share=float(np.concatenate(truncated).mean()),
        mean_length=float(length.mean()),
        seconds=seconds,
        tokens_per_second=float(length.sum() / seconds),
    )


def _answer(exam: Exam, text: str) -> str | None:
    """What a completion answers, by the task's own `answer(text)` where it has one."""
    extract = getattr(exam.task, "answer", None)
    if callable(extract):
        found = extract(text)
        return None if found is None else str(found)
    return text.strip()


def difference(after: Measured, correct: np.ndarray, counted: np.ndarray) -> Difference:
    """After − before of the accuracy, paired by problem."""
    return paired_difference(accuracies(after.correct, after.counted), accuracies(correct, counted))
