"""Making a step's rollouts: draw prompts, sample, reward; refill silent groups; or take recorded ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from delphic.config import RunConfig
from delphic.errors import UserError
from delphic.objective import group_slots
from delphic.policy.model import Messages
from delphic.randomness import Purpose
from delphic.rollouts import Rollouts
from delphic.statistics.informative import expected_silent_share, finite_groups, silent_share
from delphic.tasks import Problem, RewardFunction, Task, evaluate
from delphic.training.metrics import Meter
from delphic.training.prompts import PromptOrder
from delphic.training.protocols import Sampler
from delphic.training.team import join

GROUP_STRIDE = 1 << 20  # group ids are step · stride + number: distinct over the whole run


@dataclass(frozen=True)
class Generated:
    rollouts: Rollouts
    cursor: int  # problems drawn so far, after this step
    refill_rounds: int
    dropped_groups: int


class Generator:
    """Samples and rewards the rollouts of a step. All its state is the cursor."""

    def __init__(self, config: RunConfig, task: Task, rewards: Sequence[RewardFunction], sampler: Sampler) -> None:
        if not task.train:
            raise UserError("task: there are no training problems")
        self.config, self.task, self.rewards, self.sampler = config, task, rewards, sampler
        self.order = PromptOrder(len(task.train), config.sampling.order, config.seed)

    def generate(self, step: int, cursor: int) -> Generated:
        """Rollouts of `step`; with `sampling.dynamic`, silent groups make room for fresh prompts."""
        wanted, count = self.config.sampling.prompts, self.config.sampling.completions
        kept: list[Rollouts] = []
        spare: list[Rollouts] = []
        groups = rounds = 0
        while True:
            missing = wanted - len(kept)
            indices = self.order.draw(cursor, missing)
            cursor += missing
            batch = self._sample(step, indices, first_group=groups, first_row=groups * count)
            groups += missing
            parts = [batch.select(slots[slots >= 0]) for slots in group_slots(batch.group)]
            if not self.config.sampling.dynamic:
                kept = parts
                break
            for part in parts:
                (spare if is_silent(part.reward) else kept).append(part)
            if len(kept) == wanted or rounds + 1 >= self.config.sampling.dynamic_attempts:
                break
            rounds += 1
        # nothing informative at all: go on with the silent ones, so that penalties and metrics still see the step
        chosen = kept or spare[:wanted]
        return Generated(Rollouts.concat(chosen), cursor, rounds, len(spare) if kept else 0)

    def probe(self, groups: int) -> Rollouts:
        """Some groups of the first step, sampled for a look; nothing remembers them."""
        return self._sample(1, self.order.draw(0, groups), first_group=0, first_row=0)

    def _sample(self, step: int, indices: np.ndarray, first_group: int, first_row: int) -> Rollouts:
        sampling = self.config.sampling
        problems = [self.task.train[i] for i in indices]
        rows = np.arange(first_row, first_row + len(indices) * sampling.completions)
        rollouts = rollout(self.sampler, self.rewards, problems, sampling.completions, Purpose.TRAIN_SAMPLE, step, rows)
        number = np.repeat(np.arange(len(indices)), sampling.completions)
        known = [math.nan if problem.value is None else problem.value for problem in problems]
        value = np.array(known, dtype=np.float64)[number]
        if sampling.oracle_samples > 0:
            extra_rows = np.arange(
                first_group * sampling.oracle_samples, (first_group + len(problems)) * sampling.oracle_samples
            )
            extra = rollout(
                self.sampler, self.rewards, problems, sampling.oracle_samples, Purpose.ORACLE_SAMPLE, step, extra_rows
            )
            value = np.nanmean(extra.reward.reshape(len(problems), -1), axis=1)[number]
        return rollouts.with_(
            group=step * GROUP_STRIDE + first_group + number, problem=np.asarray(indices)[number], value=value
        )


def rollout(
    sampler: Sampler,
    rewards: Sequence[RewardFunction],
    problems: Sequence[Problem],
    count: int,
    purpose: Purpose,
    step: int,
    rows: np.ndarray,
) -> Rollouts:
    """`count` rewarded completions of each problem; group ids 0, 1, … in the problems' order."""
    prompts = [sampler.encode(problem.prompt, problem.tools) for problem in problems]
    sampled = sampler.sample(prompts, count, purpose, step, rows)
    repeated = [problem for problem in problems for _ in range(count)]
    reward, components = join().same(lambda: evaluate(rewards, repeated, sampled.text, sampled.tokens))
    n = len(rows)
    return Rollouts(
        group=np.repeat(np.arange(len(problems)), count),
        prompt_tokens=sampled.prompt_tokens,
        tokens=sampled.tokens,
        loss_mask=[np.ones(len(t), dtype=bool) for t in sampled.tokens],
        behaviour_logp=sampled.logp,
        entropy=sampled.entropy,
        reward=reward,
        version=np.full(n, sampler.version, dtype=np.int64),
        truncated=sampled.truncated,
        problem=np.full(n, -1, dtype=np.int64),
        row=rows.astype(np.int64),
        value=np.full(n, np.nan),
        prompt=[text_of(problem.prompt) for problem in repeated],
        completion=sampled.text,
        components=components,
    )


def text_of(prompt: str | Messages) -> str:
    """A prompt for people: plain text as it is, messages with their roles."""
    return prompt if isinstance(prompt, str) else "\n".join(f"{m['role']}: {m.get('content') or ''}" for m in prompt)


def is_silent(reward: np.ndarray) -> bool:
    """Whether the finite rewards are all equal (by equality, never by a small spread)."""
    return bool(np.unique(reward[np.isfinite(reward)]).size <= 1)


class Recorded:
    """Steps drawn from recorded rollouts, group by group; nothing is sampled. Fully offline learning.

    Raises:
        UserError: no Parquet file there, (group-relative objectives) only groups of one completion, no log-probs where
            the objective needs them, or tokens that the model (of `vocabulary` tokens) does not have.
    """

    def __init__(self, config: RunConfig, source: Path, vocabulary: int) -> None:
        files = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
        if not files or not files[0].exists():
            raise UserError(f"train.offline: there are no recorded rollouts (*.parquet) at {source}")
        self.config = config
        self.rollouts = Rollouts.concat([_fill(Rollouts.read(file)[0], k) for k, file in enumerate(files)])
        self.groups = [slots[slots >= 0] for slots in group_slots(self.rollouts.group)]
        if not self.groups:
            raise UserError(f"train.offline: the files at {source} hold no rollouts")
        if config.objective.group_relative and max(len(g) for g in self.groups) < 2:
            raise UserError(f"train.offline: every group at {source} has one completion; nothing can be compared")
        if config.objective.needs_behaviour and not self.rollouts.has_behaviour:
            raise UserError(
                f'train.offline: objective "{config.objective.name}" needs behaviour_logp, which the rollouts at {source} '
                "do not have; take one without importance weight, mask and quadratic term"
            )
        for prompt, tokens in zip(self.rollouts.prompt_tokens, self.rollouts.tokens, strict=True):
            if not len(prompt):
                raise UserError(f"train.offline: a prompt at {source} has no tokens")
            highest = int(max(prompt.max(), tokens.max(initial=0)))
            if highest >= vocabulary or min(prompt.min(), tokens.min(initial=0)) < 0:
                raise UserError(
                    f"train.offline: token {highest} at {source} is none of the model's {vocabulary}; "
                    "were they sampled with another tokenizer?"
                )
        self.order = PromptOrder(len(self.groups), config.sampling.order, config.seed)

    def generate(self, step: int, cursor: int) -> Generated:
        count = self.config.sampling.prompts
        chosen = self.order.draw(cursor, count)
        parts = []
        for number, index in enumerate(chosen):
            part = self.rollouts.select(self.groups[index])
            # version 0: the data are those of the policy before training, so lag counts the updates since
            parts.append(
                part.with_(
                    group=np.full(len(part), step * GROUP_STRIDE + number), version=np.zeros(len(part), dtype=np.int64)
                )
            )
        return Generated(Rollouts.concat(parts), cursor + count, 0, 0)


def _fill(rollouts: Rollouts, file: int) -> Rollouts:
    """Group ids made distinct between files."""
    _, numbers = np.unique(rollouts.group, return_inverse=True)
    return rollouts.with_(group=file * GROUP_STRIDE + numbers)


def add_batch(meter: Meter, rollouts: Rollouts) -> None:
    """What a step's rollouts alone tell, into the meter."""
    for name, (total, count) in batch_metrics(rollouts).items():
        meter.add(name, total, count)
    meter.add("silent_share", silent_share(rollouts.reward, rollouts.group))
    expected = expected_silent_share(rollouts.reward, rollouts.group)
    if expected == expected:
        meter.add("silent_share_expected", expected)


def batch_metrics(rollouts: Rollouts) -> dict[str, tuple[float, float]]:
    """(sum, count) of the figures that rewards, lengths and entropies give; all completions."""
    finite = np.isfinite(rollouts.reward)
    lengths = rollouts.lengths
    out = {
        "reward_mean": (float(rollouts.reward[finite].sum()), float(finite.sum())),
        "length_mean": (float(lengths.sum()), float(len(lengths))),
        "length_mean_terminated": (float(lengths[~rollouts.truncated].sum()), float((~rollouts.truncated).sum())),
        "truncated_share": (float(rollouts.truncated.sum()), float(len(rollouts))),
    }
    spreads = [r.std(ddof=1) for r in finite_groups(rollouts.reward, rollouts.group) if len(r) > 1]
    out["reward_std_within"] = (float(np.sum(spreads)), float(len(spreads)))
    for name, values in rollouts.components.items():
        applies = np.isfinite(values)
        out[f"reward/{name}"] = (float(values[applies].sum()), float(applies.sum()))
    known = [e[m] for e, m in zip(rollouts.entropy, rollouts.loss_mask, strict=True) if len(e) == len(m)]
    out["entropy"] = (float(sum(e.sum(dtype=np.float64) for e in known)), float(sum(len(e) for e in known)))
    return out
