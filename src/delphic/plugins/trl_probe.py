"""Step responses of a TRL run while it trains: the learning rate raised for a few steps, and put back exactly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from transformers import TrainerCallback
from trl import GRPOTrainer

from delphic.dynamics.response import raised_slope
from delphic.errors import UserError
from delphic.statistics.interval import Interval

FIGURES = {"reward": "reward", "grad_norm": "log_grad_norm"}  # TRL's key → what is fitted


class DelphicProbeCallback(TrainerCallback):
    """Every `every` steps the learning rate is `factor` times its own for `steps` steps.

        DelphicProbeCallback(every=50, steps=4, factor=4).attach(trainer)

    After each such window (as many steps before and after it count), over all windows so far, the log gets
    `delphic/probe_reward` and `delphic/probe_log_grad_norm`: change per raised step beyond the trend, each with `_low` and
    `_high` (95 %); `result` holds the last, `verdict` a sentence. A reward that falls is an overshoot: the rate is near its
    limit. The scheduler never sees the raised rate.

    Raises:
        UserError: windows that would overlap, a factor of 1 or less, or (at `attach`) a trainer that does not log each step.
    """

    def __init__(self, every: int = 50, steps: int = 4, factor: float = 4.0) -> None:
        if steps < 2 or every < 3 * steps:
            raise UserError(f"probe: needs steps >= 2 and every >= 3 × steps, got steps = {steps}, every = {every}")
        if not factor > 1:
            raise UserError(f"probe: factor must be above 1, got {factor:g}")
        self.every, self.steps, self.factor = every, steps, factor
        self.rows: dict[str, dict[int, float]] = {name: {} for name in FIGURES.values()}
        self.result: dict[str, Interval] = {}
        self._rates: list[float] | None = None
        self._new: dict[str, float] = {}

    def attach(self, trainer: GRPOTrainer) -> DelphicProbeCallback:
        """Register with a trainer; returns itself."""
        if trainer.args.logging_steps != 1:
            raise UserError(
                f"probe: needs the figures of every step; set logging_steps = 1 (now {trainer.args.logging_steps:g})"
            )
        self.trainer = trainer
        trainer.add_callback(self)
        return self

    def raises(self, update: int) -> bool:
        """Whether update number `update` (from 0) is made at the raised rate."""
        return update >= self.every and update % self.every < self.steps

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        for name, value in self._new.items():  # not when they are found: TRL empties its figures after each log
            self.trainer._metrics["train"][name].append(value)
        self._new = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if self.raises(state.global_step):
            self._rates = [group["lr"] for group in optimizer.param_groups]
            for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * self.factor

    def on_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        # before the scheduler's own step: some schedules go on from the rate that they find
        if self._rates is not None:
            for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate
            self._rates = None

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        for key, name in FIGURES.items():
            value = (logs or {}).get(key)
            if value is not None and math.isfinite(value) and (key == "reward" or value > 0):
                # logged after the update, but of the policy before it
                self.rows[name][state.global_step - 1] = float(value) if key == "reward" else math.log(value)
        last = state.global_step - 1
        if last >= self.every and last % self.every == 2 * self.steps:
            self._fit(last)

    def _fit(self, last: int) -> None:
        for name, rows in self.rows.items():
            windows = []
            for start in range(self.every, last, self.every):
                seen = [u for u in range(start - self.steps, start + 2 * self.steps + 1) if u in rows]
                if seen:
                    raised = np.array([min(max(u - start, 0), self.steps) for u in seen], dtype=np.float64)
                    windows.append((np.array(seen, dtype=np.float64), raised, np.array([rows[u] for u in seen])))
            found = raised_slope(windows) if windows else None
            if found is not None:
                self.result[name] = found
                for suffix, value in (("", found.value), ("_low", found.low), ("_high", found.high)):
                    self._new[f"delphic/probe_{name}{suffix}"] = value

    @property
    def verdict(self) -> str:
        """What the windows so far say of the raised rate."""
        reward, norm = self.result.get("reward"), self.result.get("log_grad_norm")
        if reward is None or norm is None:
            return "no window is complete yet"
        if reward.high < 0:
            return f"at {self.factor:g} × the learning rate the reward falls: the limit is near"
        if norm.low > 0:
            return f"at {self.factor:g} × the learning rate the gradient grows: the limit may be near"
        if reward.low > 0:
            return f"at {self.factor:g} × the learning rate the reward rises faster: there is room"
        return "cannot tell: the intervals include no change; more windows, steps or a larger factor"
