"""Reward functions: the task's own, and a user's with TRL's signature `f(prompts, completions, **columns)`."""

from __future__ import annotations

import importlib
import inspect
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from delphic.errors import UserError, nearest
from delphic.tasks.answers import exact_match, last_number, strict_number
from delphic.tasks.base import Problem, Task
from delphic.tasks.mathematics import MathVerifier


@dataclass(frozen=True)
class RewardFunction:
    name: str
    weight: float
    call: Callable[..., Any]
    columns: frozenset[str] | None = None  # names it takes; None = all (it has **kwargs)
    own: Callable[[Sequence[Problem], Sequence[str]], Any] | None = None  # a reward of ours, which sees whole problems
    limit: float | None = None  # seconds per completion, measured after the call


def load_rewards(task: Task, specs: Sequence[str], weights: Sequence[float], folder: Path) -> list[RewardFunction]:
    """The configured reward functions, or the task's own where none is configured.

    Raises:
        UserError: a module or function that is not there (with the nearest one that is).
    """
    limit: float | None = getattr(task, "reward_timeout", None)  # make_task sets it
    own_name: str = getattr(task, "reward_name", "exact_match")
    out = []
    for spec, weight in zip(specs or [own_name], weights or [1.0] * max(1, len(specs)), strict=True):
        if spec in BUILT_IN or not specs:
            if not all("answer" in problem.columns for problem in (*task.train, *task.held_out)):
                raise UserError(f'task.rewards: "{spec}" compares with the gold answer; set task.answer_column')
            own = task.reward if spec == own_name else _built_in(spec, limit)
            out.append(RewardFunction(spec, weight, own, own=own))
            continue
        function = _find(spec, folder)
        taken = inspect.signature(function).parameters
        any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values())
        name = spec.partition(":")[2]
        out.append(RewardFunction(name, weight, function, None if any_name else frozenset(taken), limit=limit))
    names = [reward.name for reward in out]
    if len(set(names)) != len(names):
        raise UserError(f"task.rewards: two reward functions have the same name, {names}; rename one")
    return out


BUILT_IN = ("exact_match", "last_number", "strict_number", "math_verify")


def _built_in(name: str, limit: float | None) -> Callable[[Sequence[Problem], Sequence[str]], Any]:
    if name == "math_verify":
        return MathVerifier(limit or DEFAULT_LIMIT).reward
    return {"exact_match": exact_match, "last_number": last_number, "strict_number": strict_number}[name]


def _close(spec: str) -> str:
    hint = nearest(spec, BUILT_IN)
    return "" if hint.startswith("; valid") else hint


DEFAULT_LIMIT = 10.0  # seconds, where a task was made without a config


def _find(spec: str, folder: Path) -> Callable[..., Any]:
    module_name, _, function_name = spec.partition(":")
    if not function_name:
        raise UserError(
            f'task.rewards: "{spec}" must read "module:function", or be one of {", ".join(BUILT_IN)}{_close(spec)}'
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            beside = [path.stem for path in folder.glob("*.py")]
            raise UserError(f'task.rewards: there is no module "{module_name}"{nearest(module_name, beside)}') from None
        raise UserError(f'task.rewards: module "{module_name}" cannot be imported: {error}') from None
    except Exception as error:  # whatever a user's module does at import
        raise UserError(f'task.rewards: module "{module_name}" cannot be imported: {error!r}') from None
    function = getattr(module, function_name, None)
    if not callable(function):
        found = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UserError(
            f'task.rewards: module "{module_name}" has no function "{function_name}"{nearest(function_name, found)}'
        )
    return function


def evaluate(
    rewards: Sequence[RewardFunction], problems: Sequence[Problem], completions: Sequence[str], tokens: Sequence[Any]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Weighted sum [N] of the reward functions, and each one's values.

    `None` means "does not apply" (as in TRL): the others still count; a row where none applies, or where any value
    is NaN or infinite, has reward NaN and is left out of learning. Rewards of ours get texts; a user's function gets the
    completions of chat prompts as TRL gives them, each a list with one message of the assistant.

    Raises:
        UserError: a function raises, takes longer than its limit (it is measured, never interrupted), returns the wrong number of values, or something that is not a number.
    """
    names = {name for problem in problems for name in problem.columns}
    offered: dict[str, Any] = {
        **{name: [problem.columns.get(name) for problem in problems] for name in names},
        "prompts": [problem.prompt for problem in problems],
        "completions": [
            text if isinstance(problem.prompt, str) else [{"role": "assistant", "content": text}]
            for problem, text in zip(problems, completions, strict=True)
        ],
        "completion_ids": [t.tolist() for t in tokens],
    }
    total, applies = np.zeros(len(problems)), np.zeros(len(problems), dtype=bool)
    components: dict[str, np.ndarray] = {}
    for reward in rewards:
        taken = {k: v for k, v in offered.items() if reward.columns is None or k in reward.columns}
        began = time.monotonic()
        try:
            values = reward.own(problems, completions) if reward.own else reward.call(**taken)
        except UserError:
            raise
        except Exception as error:  # whatever a user's function does
            raise UserError(f'reward function "{reward.name}" raised {type(error).__name__}: {error}') from error
        seconds = time.monotonic() - began
        if reward.limit is not None and seconds > reward.limit * len(problems):
            raise UserError(
                f'reward function "{reward.name}" took {seconds:.1f} s for {len(problems)} completions, more than '
                f"task.reward_timeout = {reward.limit:g} s each"
            )
        try:
            listed = list(values)
            if isinstance(values, (str, Mapping)) or any(isinstance(v, str) for v in listed):
                raise TypeError  # "10" would count as two rewards
            numbers = np.array([math.nan if v is None else float(v) for v in listed])
        except (TypeError, ValueError):
            raise UserError(
                f'reward function "{reward.name}" must return a list of numbers, got {values!r:.80}'
            ) from None
        if len(listed) != len(problems):
            raise UserError(
                f'reward function "{reward.name}" returned {len(listed)} values for {len(problems)} completions'
            )
        absent = np.array([v is None for v in listed])
        total = total + reward.weight * np.where(absent, 0.0, numbers)
        applies |= ~absent
        components[reward.name] = numbers
    total[~applies | ~np.isfinite(total)] = math.nan
    return total, components
