"""The pilot: a few prompts × many completions of the user's model and task, and what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from delphic.config import RunConfig
from delphic.errors import UserError
from delphic.policy.scores import GroupScores, group_scores
from delphic.randomness import Purpose, stream
from delphic.rollouts import Rollouts
from delphic.statistics.group_size import Pilot
from delphic.statistics.ustatistic import baseline_weights, prompt_moments
from delphic.training.estimate import learn_nothing
from delphic.training.generate import Generator, rollout
from delphic.training.loop import Parts, build_parts

SKETCH = 4096


@dataclass(frozen=True)
class Measured:
    """What the pilot saw. prompt_seconds, completion_seconds: what one more of each costs a training step."""

    pilot: Pilot
    rewards: np.ndarray  # [B, G₀]
    left_out: int  # prompts with a reward that is not finite
    prompt_seconds: float
    completion_seconds: float
    seconds: float


def run_pilot(
    config: RunConfig,
    folder: Path,
    prompts: int,
    completions: int,
    advance: Callable[[int], None],
    keep: Callable[[Rollouts, GroupScores], None] | None = None,
) -> Measured:
    """Sample, reward and score `prompts` distinct training problems; `advance(1)` after each, and `keep` sees the group
    and its scores (those that count).

    A prompt with a non-finite reward is left out as a whole: its group has another size.

    Raises:
        UserError: nothing to sample from, too few prompts, or a layer whose score is not known.
    """
    if config.train.offline is not None:
        raise UserError("plan: train.offline samples nothing; use --rewards-only on the recorded rollouts")
    parts = build_parts(config, folder)
    assert isinstance(parts.source, Generator)
    problems = parts.source.task.train
    count = min(prompts, len(problems))
    chosen = stream(config.seed, Purpose.PILOT, 0).permutation(len(problems))[:count]
    began = time.perf_counter()
    moments, sketches, rewards, left_out = [], [], [], 0
    for number, index in enumerate(chosen):
        part = _sample(parts, int(index), completions, number)
        advance(1)
        if not np.isfinite(part.reward).all():
            left_out += 1
            continue
        weights = baseline_weights(part.reward, "loo")
        scores = group_scores(
            parts.policy,
            part.prompt_tokens[0],
            part.tokens,
            part.loss_mask,
            config.sampling.temperature,
            weights=weights,
            sketch=SKETCH,
            seed=config.seed,
        )
        moments.append(prompt_moments(scores.gram, part.reward))
        sketches.append(scores.sketch)
        rewards.append(part.reward)
        if keep is not None:
            keep(part, scores)
    if not moments:
        raise UserError("plan: every prompt of the pilot has a reward that is not finite")
    sketch = np.array(sketches)
    seconds = time.perf_counter() - began
    prompt_seconds, completion_seconds = _costs(parts, config, [int(i) for i in chosen[:4]])
    pilot = Pilot(moments, sketch @ sketch.T)
    return Measured(pilot, np.array(rewards), left_out, prompt_seconds, completion_seconds, seconds)


def _sample(parts: Parts, index: int, completions: int, number: int) -> Rollouts:
    source = parts.source
    assert isinstance(source, Generator)
    rows = np.arange(number * completions, (number + 1) * completions)
    problem = source.task.train[index]
    return rollout(source.sampler, source.rewards, [problem], completions, Purpose.PILOT, 0, rows)


def _costs(parts: Parts, config: RunConfig, indices: list[int]) -> tuple[float, float]:
    """(seconds of one more prompt, of one more completion) of a training step: the same prompts with few completions and
    with three times as many, sampled and learned (without an update); the shorter of two tries each."""
    source = parts.source
    assert isinstance(source, Generator)
    problems = [source.task.train[i] for i in indices]
    few, many = 4, 12
    took = []
    for count in (few, many):
        tries = []
        for attempt in range(3):  # the first one warms up
            began = time.perf_counter()
            rows = np.arange(len(problems) * count)
            batch = rollout(source.sampler, source.rewards, problems, count, Purpose.PILOT, 1 + attempt, rows)
            learn_nothing(parts.policy, batch, config)
            tries.append(time.perf_counter() - began)
        took.append(min(tries[1:]) / len(problems))
    completion = max((took[1] - took[0]) / (many - few), 1e-9)
    return max(took[0] - few * completion, 0.0), completion
