"""AdamW or SGD on the policy's parameters: schedule, clipping, state without pickle."""

from __future__ import annotations

import math

import torch
from torch import nn

from delphic.config import TrainConfig


class Optimiser:
    """A torch optimiser over named parameters, each with its own: so an update needs one parameter's copy at a time,
    and its size is known without a second set of weights.

    Parameters in half precision are updated through float32 copies (`train.master_weights`).
    """

    def __init__(self, parameters: dict[str, nn.Parameter], train: TrainConfig) -> None:
        self.parameters, self.train = parameters, train
        self.scale = 1.0  # a controller's factor on every learning rate
        self.masters = {
            name: nn.Parameter(p.detach().float())
            for name, p in parameters.items()
            if train.master_weights and p.dtype != torch.float32
        }
        self.each = {name: self._make(self.masters.get(name, p)) for name, p in parameters.items()}

    def _make(self, parameter: nn.Parameter) -> torch.optim.Optimizer:
        train = self.train
        if train.optimizer == "adamw":
            return torch.optim.AdamW(
                [parameter], lr=train.learning_rate, betas=train.betas, weight_decay=train.weight_decay
            )
        return torch.optim.SGD(
            [parameter], lr=train.learning_rate, momentum=train.momentum, weight_decay=train.weight_decay
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
        rate = self.scale * self.learning_rate(number)
        squares = 0.0
        for name, parameter in self.parameters.items():
            optimiser, master = self.each[name], self.masters.get(name)
            optimiser.param_groups[0]["lr"] = rate
            updated = parameter if master is None else master
            if master is not None and parameter.grad is not None:
                master.grad = parameter.grad.float()
            before = updated.detach().clone()
            optimiser.step()
            squares += float((updated.detach() - before).double().square().sum())
            if master is not None:
                master.grad = None
                with torch.no_grad():
                    parameter.copy_(master)
        return math.sqrt(squares), rate

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

    def second_moments(self) -> dict[str, torch.Tensor] | None:
        """v̂ of adamw, bias-corrected, of every parameter; None before its first update and for sgd."""
        out = {}
        for name, optimiser in self.each.items():
            for state in optimiser.state.values():
                if "exp_avg_sq" in state:
                    out[name] = state["exp_avg_sq"] / (1 - self.train.betas[1] ** float(state["step"]))
        return out if len(out) == len(self.each) else None

    def state(self) -> dict[str, torch.Tensor]:
        """Every state tensor as `parameter/key`; a float32 copy of a parameter as `parameter/master`."""
        out = {f"{name}/master": master.detach().clone() for name, master in self.masters.items()}
        for name, optimiser in self.each.items():
            for state in optimiser.state.values():
                out |= {f"{name}/{k}": v.detach().clone().contiguous() for k, v in state.items() if v is not None}
        return out

    @torch.no_grad()
    def restore(self, state: dict[str, torch.Tensor]) -> None:
        for name, value in state.items():
            parameter, _, key = name.rpartition("/")
            updated = self.masters.get(parameter, self.parameters[parameter])
            if key == "master":
                updated.copy_(value)
            else:  # Adam's step count stays where torch keeps it
                place = value.device if key == "step" else updated.device
                self.each[parameter].state[updated][key] = value.to(place)
