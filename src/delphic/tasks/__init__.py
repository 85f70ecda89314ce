"""Problems and verifiable rewards; one file a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from delphic.config import TaskConfig, locate
from delphic.errors import UserError
from delphic.tasks.answers import last_number, strict_number
from delphic.tasks.arithmetic import Arithmetic
from delphic.tasks.base import Problem, Prompt, Task
from delphic.tasks.benchmarks import BENCHMARKS, benchmark
from delphic.tasks.file import FileTask, GoldCheck
from delphic.tasks.rewards import RewardFunction, evaluate, load_rewards
from delphic.tasks.rows import looks_like_hub


def make_task(config: TaskConfig, held_out: int, seed: int, folder: Path) -> Task:
    """The configured task. Paths are looked up beside the config file (`folder`) first.

    `held_out` is how many held-out problems a generating task makes; files hold out a share.
    """
    task = _make(config, held_out, seed, folder)
    task.reward_timeout = config.reward_timeout  # load_rewards gives it to the functions
    return task


def _make(config: TaskConfig, held_out: int, seed: int, folder: Path) -> Any:
    if config.name == "arithmetic":
        try:
            return Arithmetic(config.low, config.high, config.size, held_out, seed)
        except ValueError as error:
            raise UserError(str(error)) from None
    if config.name == "reasoning_gym":
        from delphic.tasks.reasoning import ReasoningGym

        return ReasoningGym(
            str(config.generator),
            config.parameters,
            config.size,
            held_out,
            seed,
            config.template,
            config.shots,
            config.answer_format == "strict",
            config.reward_timeout,
        )
    if config.name == "tool_call":
        from delphic.tasks.tool_task import ToolCallTask

        return ToolCallTask(
            _source(config.path, folder) or "",
            config.prompt_column,
            config.answer_column,
            config.tools_column,
            config.template,
            config.held_out_share,
            seed,
            held_out_path=_source(config.held_out_path, folder),
            split=config.split,
            held_out_split=config.held_out_split,
            subset=config.subset,
        )
    return _from_rows(config, seed, folder)


def _from_rows(config: TaskConfig, seed: int, folder: Path) -> FileTask:
    """The tasks that are rows with a gold answer: file, gsm8k, math."""
    from delphic.tasks import gsm8k, mathematics

    checks: list[GoldCheck] = [gsm8k.NUMERIC[name] for name in config.rewards if name in gsm8k.NUMERIC]
    if "math_verify" in config.rewards or (config.name == "math" and not config.rewards):
        verifier = mathematics.MathVerifier(config.reward_timeout)
        checks.append(verifier.check())
    source = _source(config.path, folder)
    options: dict[str, Any] = {
        "path": source,
        "held_out_path": _source(config.held_out_path, folder),
        "split": config.split,
        "held_out_split": config.held_out_split,
        "subset": config.subset,
        "unparsable": config.unparsable,
        "value_column": config.value_column,
    }
    prompt_column, answer_column = config.prompt_column, config.answer_column
    if config.name == "gsm8k":
        strict = config.answer_format == "strict"
        reward_name = "strict_number" if strict else "last_number"
        if not config.rewards:
            checks.append(gsm8k.NUMERIC[reward_name])
        prompt_column, answer_column = prompt_column or "question", answer_column or "answer"
        column = answer_column
        options |= {key: value for key, value in gsm8k.sources(source, config.split).items() if value is not None}
        options |= {
            "gold": lambda row: gsm8k.read_gold(row, column),
            "own": strict_number if strict else last_number,
            "name": "gsm8k",
            "reward_name": reward_name,
        }
    elif config.name == "math":
        prompt_column = prompt_column or "problem"
        options |= {
            "gold": lambda row: mathematics.read_gold(row, config.answer_column),
            "own": mathematics.MathVerifier(config.reward_timeout).reward,
            "name": "math",
            "reward_name": "math_verify",
        }
    return FileTask(
        prompt_column=prompt_column or "prompt",
        answer_column=answer_column,
        template=config.template,
        held_out_share=config.held_out_share,
        seed=seed,
        checks=checks,
        **options,
    )


def _source(path: str | None, folder: Path) -> Path | str | None:
    """A file's path, looked up beside the config file; a hub dataset's name stays a text."""
    if path is None:
        return None
    found = locate(path, folder)
    return path if not found.exists() and looks_like_hub(path) else found


__all__ = [
    "BENCHMARKS",
    "Arithmetic",
    "FileTask",
    "Problem",
    "Prompt",
    "RewardFunction",
    "Task",
    "benchmark",
    "evaluate",
    "load_rewards",
    "make_task",
]
