"""All that the loop knows of a sampler, a learner and a display; the first two can live in other processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from delphic.config import RunConfig
from delphic.policy.model import Messages
from delphic.policy.sampling import Completions
from delphic.randomness import Purpose
from delphic.rollouts import Rollouts
from delphic.training.metrics import Meter


class Learner(Protocol):
    """Holds the weights that are trained. `version` counts its optimiser updates."""

    version: int

    def learn(self, rollouts: Rollouts, step: int, meter: Meter, timing: Meter) -> None:
        """All optimiser updates of one step; adds its figures to the meters."""
        ...

    def scale_learning_rate(self, factor: float) -> None:
        """From now on every learning rate is the config's times this."""
        ...

    def weights(self) -> Mapping[str, Any]:
        """Parameters by name, for a sampler to take."""
        ...

    def fingerprint(self) -> int:
        """Checksum of the weights."""
        ...

    def save(self, folder: Path) -> None:
        """Write weights and optimiser state into an existing folder."""
        ...


class Display(Protocol):
    """What the loop tells whoever is watching."""

    def start(self, config: RunConfig, done: int) -> None: ...
    def step(self, row: dict[str, float], timing: dict[str, float]) -> None: ...
    def message(self, text: str) -> None: ...
    def close(self) -> None: ...


class Mute:
    """The display of a process that is not the first."""

    def start(self, config: RunConfig, done: int) -> None: ...
    def step(self, row: dict[str, float], timing: dict[str, float]) -> None: ...
    def message(self, text: str) -> None: ...
    def close(self) -> None: ...


class Sampler(Protocol):
    """Samples completions with the weights it was last given; `version` is theirs."""

    version: int

    def sync(self, learner: Learner) -> None:
        """Take the learner's weights, and make sure that they arrived."""
        ...

    def encode(self, prompt: str | Messages, tools: Any = None) -> np.ndarray:
        """Token ids of a prompt, as the model reads it."""
        ...

    def sample(
        self, prompts: Sequence[np.ndarray], count: int, purpose: Purpose, step: int, rows: np.ndarray
    ) -> Completions:
        """`count` completions of each prompt; `rows` [prompts × count] key the randomness."""
        ...
