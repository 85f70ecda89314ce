"""What `--tasks` names: a task with its defaults, a benchmark's file, or the sections of a config file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delphic.config import SamplingConfig, TaskConfig, load_config, make_sampling
from delphic.errors import UserError, nearest
from delphic.policy.sampling import SamplingSettings
from delphic.tasks import Problem, RewardFunction, Task, load_rewards, make_task
from delphic.tasks.base import Prompt
from delphic.tasks.benchmarks import benchmark

DEFAULT_PROBLEMS = 200
BENCHMARK_TOKENS = 256  # a benchmark's answer follows some reasoning; the config's default of 8 would cut it
BATCH_ROWS = 64  # a batch is what progress is told by


@dataclass(frozen=True)
class Exam:
    """The held-out problems of one task, and how completions of them are drawn."""

    label: str
    spec: str
    task: Task
    rewards: Sequence[RewardFunction]
    problems: Sequence[Problem]
    settings: SamplingSettings
    seed: int  # of the samples

    @property
    def prompts(self) -> list[Prompt]:
        return [problem.prompt for problem in self.problems]


def read_exams(
    specs: Sequence[str], problems: int, sampling: Mapping[str, Any], greedy: bool, seed: int | None
) -> list[Exam]:
    """Every SPEC of `--tasks`.

    Args:
        problems: how many held-out ones of each; 0 = all. sampling: what to change of each task's own settings.

    Raises:
        UserError: what `read_exam` raises, or two tasks of one name.
    """
    exams = [read_exam(spec, problems, sampling, greedy, seed) for spec in specs]
    labels = [exam.label for exam in exams]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise UserError(f'--tasks: two tasks are called "{twice}"; name one of them: label=config.toml')
    return exams


def read_exam(spec: str, problems: int, sampling: Mapping[str, Any], greedy: bool, seed: int | None) -> Exam:
    """One SPEC: `arithmetic`, `benchmark=PATH`, `config.toml` or `label=config.toml`.

    A config's own seed decides which problems are held out, as in its run; `seed` (None: that one) their samples.

    Raises:
        UserError: no such task, file or benchmark; a bad setting; no held-out problems.
    """
    if problems < 0:
        raise UserError(f"--problems must be 0 (all) or more, got {problems}")
    label, equals, path = spec.partition("=")
    if not equals:
        path = spec
    folder, own_seed = Path(), 0
    if path.endswith(".toml"):
        config = load_config(Path(path))
        label = label if equals else Path(path).stem
        folder, own_seed = Path(path).resolve().parent, config.seed
        task_config, base = config.task, config.sampling
    elif equals:
        task_config, base = benchmark(label, path), SamplingConfig(max_new_tokens=BENCHMARK_TOKENS)
    elif spec == "arithmetic":
        task_config, base = TaskConfig(), SamplingConfig()
    else:
        hint = nearest(spec, ["arithmetic", "config.toml", "name=PATH"])
        raise UserError(f'--tasks: there is no task "{spec}"{hint}')
    if not label:
        raise UserError(f'--tasks: "{spec}" has no name before "="')
    # a task that makes its problems has no "all": it makes the default number
    task = make_task(task_config, problems or DEFAULT_PROBLEMS, own_seed, folder)
    rewards = load_rewards(task, task_config.rewards, task_config.reward_weights, folder)
    chosen = list(task.held_out[: problems or None])
    if not chosen:
        raise UserError(f'--tasks: "{spec}" has no held-out problems; raise task.held_out_share')
    own = {**base.model_dump(), "batch_rows": min(base.batch_rows, BATCH_ROWS)}
    s = make_sampling({**own, **sampling}, "eval: sampling")
    temperature, top_p = (0.0, 1.0) if greedy else (s.temperature, s.top_p)
    settings = SamplingSettings(temperature, top_p, s.max_new_tokens, s.stop, s.batch_rows)
    return Exam(label, spec, task, rewards, chosen, settings, own_seed if seed is None else seed)
