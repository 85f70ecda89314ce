"""A learned V(x): a linear head on the prompt's last hidden state, regressed on the rewards (A2C in arXiv 2603.01162)."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from delphic.policy.logprobs import prompt_states
from delphic.policy.model import Policy
from delphic.rollouts import Rollouts
from delphic.training.metrics import Meter

TOKEN_BUDGET = 16384


class Critic:
    """The value head and its own AdamW. Starts at V = 0; its features carry no gradient into the policy."""

    def __init__(self, policy: Policy, learning_rate: float) -> None:
        self.policy = policy
        self.head = nn.Linear(policy.model.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.optimizer = torch.optim.AdamW(self.head.parameters(), lr=learning_rate, weight_decay=0.0)
        self._states: torch.Tensor | None = None

    def values(self, rollouts: Rollouts) -> np.ndarray:
        """[N] V(x) of each completion's prompt; keeps the prompt states for `update`."""
        _, first, inverse = np.unique(rollouts.group, return_index=True, return_inverse=True)
        states = prompt_states(self.policy, [rollouts.prompt_tokens[i] for i in first], TOKEN_BUDGET)
        self._states = states[torch.from_numpy(inverse)]
        with torch.no_grad():
            return self.head(self._states)[:, 0].double().numpy()

    def update(self, rollouts: Rollouts, meter: Meter) -> None:
        """One step of least squares on the finite rewards, after the values were used."""
        assert self._states is not None
        finite = torch.from_numpy(np.isfinite(rollouts.reward))
        target = torch.from_numpy(np.nan_to_num(rollouts.reward)).float()
        self.optimizer.zero_grad()
        error = (self.head(self._states)[:, 0] - target)[finite].square()
        if error.numel():
            error.mean().backward()
            self.optimizer.step()
            meter.add("value_loss", float(error.detach().double().sum()), error.numel())
        self._states = None

    def state(self) -> dict[str, torch.Tensor]:
        out = {f"critic/{name}": p.detach().clone() for name, p in self.head.named_parameters()}
        for name, p in self.head.named_parameters():
            for key, value in self.optimizer.state.get(p, {}).items():
                out[f"critic/{name}/{key}"] = value.detach().clone()
        return out

    @torch.no_grad()
    def restore(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Take own entries; return the others."""
        named = dict(self.head.named_parameters())
        for name, value in state.items():
            if name.startswith("critic/"):
                parameter, _, key = name.removeprefix("critic/").partition("/")
                if key:
                    self.optimizer.state[named[parameter]][key] = value
                else:
                    named[parameter].copy_(value)
        return {name: value for name, value in state.items() if not name.startswith("critic/")}
