"""What a task is: problems, and a reward for what the policy wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Prompt = str | Sequence[Mapping[str, Any]]
"""Plain text, or chat messages ({"role", "content", …}) for the model's chat template."""


@dataclass(frozen=True)
class Problem:
    """One prompt and what a reward function may know about it.

    `columns` are the extra values a reward function receives by name (the gold answer among them).
    `value` is V(x), the expected reward under the policy that will sample, where the task knows it (oracle baseline).
    `tools` are the function schemas that a chat template writes into the prompt.
    """

    prompt: Prompt
    columns: Mapping[str, Any] = field(default_factory=dict)
    value: float | None = None
    tools: Sequence[Mapping[str, Any]] | None = None


class Task(Protocol):
    """Problems and their reward. Nothing here knows of models or tensors."""

    name: str

    @property
    def train(self) -> Sequence[Problem]: ...

    @property
    def held_out(self) -> Sequence[Problem]: ...

    def reward(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[float | None]:
        """The task's own reward of each completion; `None` where it does not apply."""
        ...
