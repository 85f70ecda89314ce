"""The pilot: a few prompts × many completions of the user's model and task, and what they cost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from delphic.config import RunConfig
from delphic.errors import UserError
from delphic.policy.load import resolve
from delphic.policy.scores import GroupScores
from delphic.randomness import Purpose, stream
from delphic.rollouts import Rollouts
from delphic.statistics.group_size import Pilot
from delphic.training.estimate import learn_nothing
from delphic.training.generate import Generator, is_silent, rollout
from delphic.training.loop import Parts, build_parts
from delphic.training.noise import adam_moments, score_groups
from delphic.training.optimiser import Optimiser


@dataclass(frozen=True)
class Measured:
    """What the pilot saw. prompt_seconds, completion_seconds: what one more of each costs a training step.

    pilot: in the units of the optimiser. plain: in those of the gradient; the same object for sgd. moments: where Adam's
    second moments come from, "checkpoint" or "pilot"; None for sgd, or where there are none.
    """

    pilot: Pilot
    plain: Pilot
    moments: str | None
    rewards: np.ndarray  # [B, G₀]
    left_out: int  # prompts with a reward that is not finite
    seconds: float
    prompt_seconds: float = math.nan
    completion_seconds: float = math.nan


def run_pilot(
    config: RunConfig,
    folder: Path,
    prompts: int,
    completions: int,
    advance: Callable[[int], None],
    keep: Callable[[Rollouts, GroupScores], None] | None = None,
) -> Measured:
    """A pilot of `prompts` distinct training problems, and what one more prompt and completion cost. `keep` sees every group
    that counts, and its scores.

    Raises:
        UserError: nothing to sample from, too few prompts, or a layer whose score is not known.
    """
    if config.train.offline is not None:
        raise UserError("plan: train.offline samples nothing; use --rewards-only on the recorded rollouts")
    parts = build_parts(config, folder)
    assert isinstance(parts.source, Generator)
    problems = len(parts.source.task.train)
    chosen = stream(config.seed, Purpose.PILOT, 0).permutation(problems)[: min(prompts, problems)]
    pilot = take_pilot(parts, folder, chosen, completions, advance, keep)
    prompt_seconds, completion_seconds = _costs(parts, config, [int(i) for i in chosen[:4]])
    return replace(pilot, prompt_seconds=prompt_seconds, completion_seconds=completion_seconds)


def take_pilot(
    parts: Parts,
    folder: Path,
    chosen: np.ndarray,
    completions: int,
    advance: Callable[[int], None],
    keep: Callable[[Rollouts, GroupScores], None] | None = None,
) -> Measured:
    """Sample and reward these training problems, then score them; `advance(1)` for each, both times.

    A prompt with a non-finite reward is left out as a whole: its group has another size.
    """
    began, groups, config = time.perf_counter(), [], parts.config
    together = max(1, config.sampling.batch_rows // completions)
    for start in range(0, len(chosen), together):
        part = _sample(parts, chosen[start : start + together], completions, start)
        groups += [part.select(slots) for slots in np.arange(len(part)).reshape(-1, completions)]
        advance(len(part) // completions)
    groups = [group for group in groups if np.isfinite(group.reward).all()]
    if not groups:
        raise UserError("plan: every prompt of the pilot has a reward that is not finite")
    moments, source = _moments(parts, groups, config, folder)
    plain, scaled = score_groups(parts.policy, groups, config, moments, advance, keep=keep)
    return Measured(
        pilot=plain if scaled is None else scaled,
        plain=plain,
        moments=source,
        rewards=np.array([group.reward for group in groups]),
        left_out=len(chosen) - len(groups),
        seconds=time.perf_counter() - began,
    )


def _moments(
    parts: Parts, groups: Sequence[Rollouts], config: RunConfig, folder: Path
) -> tuple[Mapping[str, torch.Tensor] | None, str | None]:
    """Adam's second moments, and where they come from: the run's own where the model is a checkpoint of one."""
    if config.train.optimizer != "adamw" or len(groups) < 2 or all(is_silent(part.reward) for part in groups):
        return None, None
    file = Path(resolve(config.model.path, folder)) / "optimizer.safetensors"
    if file.is_file():
        saved = {name: value for name, value in load_file(file).items() if name.endswith(("/exp_avg_sq", "/step"))}
        own = Optimiser(parts.policy.parameters(), config.train)
        if {name.rpartition("/")[0] for name in saved} == set(own.parameters):
            own.restore(saved)
            return adam_moments(parts.policy, groups, config, own.second_moments()), "checkpoint"
    return adam_moments(parts.policy, groups, config, None), "pilot"


def _sample(parts: Parts, indices: np.ndarray, completions: int, first: int) -> Rollouts:
    """Of the pilot's prompts number `first` and on."""
    source = parts.source
    assert isinstance(source, Generator)
    rows = np.arange(first * completions, (first + len(indices)) * completions)
    problems = [source.task.train[int(index)] for index in indices]
    return rollout(source.sampler, source.rewards, problems, completions, Purpose.PILOT, 0, rows)


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
