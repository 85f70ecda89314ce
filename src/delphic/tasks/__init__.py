"""Problems and verifiable rewards; one file a task."""

from __future__ import annotations

from pathlib import Path

from delphic.config import TaskConfig, locate
from delphic.errors import UserError
from delphic.tasks.arithmetic import Arithmetic
from delphic.tasks.base import Problem, Task
from delphic.tasks.file import FileTask
from delphic.tasks.rewards import RewardFunction, evaluate, load_rewards


def make_task(config: TaskConfig, held_out: int, seed: int, folder: Path) -> Task:
    """The configured task. Paths are looked up beside the config file (`folder`) first."""
    if config.name == "file":
        path = locate(str(config.path), folder)
        return FileTask(
            path,
            config.prompt_column,
            config.answer_column,
            config.template,
            config.held_out_share,
            seed,
            config.value_column,
        )
    try:
        return Arithmetic(config.low, config.high, config.size, held_out, seed)
    except ValueError as error:
        raise UserError(str(error)) from None


__all__ = ["Arithmetic", "FileTask", "Problem", "RewardFunction", "Task", "evaluate", "load_rewards", "make_task"]
