"""AdamW or SGD on the policy's parameters: schedule, clipping, state without pickle."""

from __future__ import annotations

import math

import torch
from torch import nn

from delphic.config import TrainConfig


class Optimiser:
    """A torch optimiser over named parameters."""

    def __init__(self, parameters: dict[str, nn.Parameter], train: TrainConfig) -> None:
        self.parameters, self.train = parameters, train
        values = list(parameters.values())
        if train.optimizer == "adamw":
            self.torch: torch.optim.Optimizer = torch.optim.AdamW(
                values, lr=train.learning_rate, betas=train.betas, weight_decay=train.weight_decay
            )
        else:
            self.torch = torch.optim.SGD(
                values, lr=train.learning_rate, momentum=train.momentum, weight_decay=train.weight_decay
            )

    def zero(self) -> None:
        """Zero gradients, not None: a step of silent groups must still decay the moments, as it would had the skipped
        rows been computed."""
        for parameter in self.parameters.values():
            parameter.grad = torch.zeros_like(parameter)

    def clip(self) -> float:
        """Clip the global gradient norm; returns what it was, finite or not."""
        return float(nn.utils.clip_grad_norm_(list(self.parameters.values()), self.train.max_grad_norm))

    def step(self, number: int) -> tuple[float, float]:
        """Update number `number` (from 0) with the gradients as they are; (norm of the change, learning rate)."""
        rate = self.learning_rate(number)
        for group in self.torch.param_groups:
            group["lr"] = rate
        before = [p.detach().clone() for p in self.parameters.values()]
        self.torch.step()
        changes = zip(self.parameters.values(), before, strict=True)
        return math.sqrt(sum(float((p.detach() - b).double().square().sum()) for p, b in changes)), rate

    def learning_rate(self, number: int) -> float:
        """Learning rate of update `number`: linear warm-up, then the schedule, which reaches 0 at the run's end."""
        train = self.train
        if number < train.warmup_steps:
            return train.learning_rate * (number + 1) / train.warmup_steps
        span = max(train.steps * train.updates_per_step - train.warmup_steps, 1)
        done = min((number - train.warmup_steps) / span, 1.0)
        if train.schedule == "linear":
            return train.learning_rate * (1 - done)
        if train.schedule == "cosine":
            return train.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
        return train.learning_rate

    def state(self) -> dict[str, torch.Tensor]:
        """Every state tensor as `parameter/key`."""
        return {
            f"{name}/{key}": value.detach().clone().contiguous()
            for name, parameter in self.parameters.items()
            for key, value in self.torch.state.get(parameter, {}).items()
            if value is not None
        }

    def restore(self, state: dict[str, torch.Tensor]) -> None:
        for name, value in state.items():
            parameter, _, key = name.rpartition("/")
            self.torch.state[self.parameters[parameter]][key] = value
