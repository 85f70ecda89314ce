"""The sampler in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from delphic.config import RunConfig
from delphic.policy.model import Messages, Policy
from delphic.policy.sampling import Completions, SamplingSettings, sample
from delphic.randomness import Purpose
from delphic.training.protocols import Learner
from delphic.training.team import Team


class LocalSampler:
    """Samples from a policy of this process: the learner's own (no copy is made), or a second one. Of several processes,
    each samples its share of the prompts. `settings` are the config's, unless others are given."""

    def __init__(
        self,
        policy: Policy,
        config: RunConfig,
        team: Team | None = None,
        settings: SamplingSettings | None = None,
    ) -> None:
        self.team = team or Team()
        self.policy, self.seed, self.version = policy, config.seed, 0
        s = config.sampling
        self.settings = settings or SamplingSettings(s.temperature, s.top_p, s.max_new_tokens, s.stop, s.batch_rows)

    @torch.no_grad()
    def sync(self, learner: Learner) -> None:
        """Copy the learner's weights unless they are the same memory, and compare fingerprints.

        Raises:
            RuntimeError: the weights did not arrive (a missing adapter or a stale copy would look like lag).
        """
        own, copied = self.policy.parameters(), False
        for name, value in learner.weights().items():
            if own[name].data_ptr() != value.data_ptr():
                own[name].copy_(value)
                copied = True
        if copied and self.policy.fingerprint() != learner.fingerprint():
            raise RuntimeError(
                f"the sampler's weights differ from the learner's after the sync at version {learner.version}"
            )
        self.version = learner.version

    def encode(self, prompt: str | Messages, tools: Any = None) -> np.ndarray:
        return self.policy.encode(prompt, tools)

    def sample(
        self, prompts: Sequence[np.ndarray], count: int, purpose: Purpose, step: int, rows: np.ndarray
    ) -> Completions:
        def work(prompts: Sequence[np.ndarray], rows: np.ndarray) -> Completions:
            return sample(
                self.policy, prompts, count, self.settings, seed=self.seed, purpose=purpose, step=step, rows=rows
            )

        return self.team.sample(prompts, count, rows, work)
