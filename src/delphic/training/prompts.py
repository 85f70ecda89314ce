"""Which problems a step trains on: independent draws or reshuffled epochs, both functions of the seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from delphic.config import SamplingConfig
from delphic.errors import UserError
from delphic.policy.model import Policy
from delphic.randomness import Purpose, stream
from delphic.tasks import Problem, Task


class PromptOrder:
    """Draws problem indices. `cursor` counts problems drawn so far: it is all the state there is.

    Args:
        size: number of problems; order: "independent" or "epochs".
    """

    def __init__(self, size: int, order: str, seed: int) -> None:
        self.size, self.order, self.seed = size, order, seed

    def draw(self, cursor: int, count: int) -> np.ndarray:
        """[count] the problems number cursor, cursor + 1, … of the sequence."""
        places = np.arange(cursor, cursor + count)
        if self.order == "independent":
            return np.array(
                [stream(self.seed, Purpose.PROMPT_INDEPENDENT, int(i)).integers(self.size) for i in places],
                dtype=np.int64,
            )
        epochs = {
            int(e): stream(self.seed, Purpose.PROMPT_EPOCH, int(e)).permutation(self.size)
            for e in np.unique(places // self.size)
        }
        return np.array([epochs[int(i) // self.size][int(i) % self.size] for i in places], dtype=np.int64)


@dataclass
class Fitting:
    """The problems of a task whose prompts the model can take; `left_out` counts the others. `longest`: tokens of the
    longest prompt."""

    name: str
    train: Sequence[Problem]
    held_out: Sequence[Problem]
    task: Task
    left_out: int
    longest: int

    def reward(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[float | None]:
        return self.task.reward(problems, completions)


def fitting(task: Task, policy: Policy, sampling: SamplingConfig) -> Fitting:
    """Read every prompt as the model will, before anything is sampled.

    Raises:
        UserError: a prompt without tokens; one that leaves no room in the model's context, unless
            `sampling.max_prompt_tokens` leaves it out; or nothing is left to train on.
    """
    room = None if policy.context is None else policy.context - sampling.max_new_tokens
    left_out = longest = 0

    def fits(problem: Problem, number: int, side: str) -> bool:
        nonlocal left_out, longest
        length = len(policy.encode(problem.prompt, problem.tools))
        where = f"{side} problem {number}"
        if length == 0:
            raise UserError(f"{where} has a prompt without tokens; a prompt must not be empty")
        if sampling.max_prompt_tokens and length > sampling.max_prompt_tokens:
            left_out += 1
            return False
        if room is not None and length > room:
            raise UserError(
                f"{where}: its prompt of {length} tokens and {sampling.max_new_tokens} new ones exceed the model's "
                f"context of {policy.context}; lower sampling.max_new_tokens"
                + (f", or leave such problems out with sampling.max_prompt_tokens = {room}" if room > 0 else "")
                + f": {policy.render(problem.prompt, problem.tools)[:60]!r}…"
            )
        longest = max(longest, length)
        return True

    train, held_out = (
        [problem for number, problem in enumerate(problems, 1) if fits(problem, number, side)]
        for side, problems in (("training", task.train), ("held-out", task.held_out))
    )
    if task.train and not train:
        raise UserError(f"sampling.max_prompt_tokens = {sampling.max_prompt_tokens} leaves no training problem")
    return Fitting(task.name, train, held_out, task, left_out, longest)
