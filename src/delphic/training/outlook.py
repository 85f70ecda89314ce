"""What a run says of its own future, and what follows: forecasts and stability margins as metrics, an early end, a controller.

Everything here is a function of the config and of the rows so far (and of a measured K in `stability.json`), so that a
resumed run decides as the uninterrupted one. docs/live.md says what was measured of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from delphic.config import RunConfig
from delphic.dynamics.forecast import FEWEST, Forecast, forecast, likely_limits
from delphic.dynamics.stability import Lag, dominant_mode, exact_limit, gain_from_decay, gain_from_swing
from delphic.runs.measured import MEASURED, read_measured
from delphic.training.lag import Schedule, recurrence
from delphic.training.metrics import REGIMES

OVERSHOOT = 0.1  # share of the way that a curve must swing past its plateau to be called oscillatory
DECISIVE = 4.0  # by which AICc must prefer it
STUBBORN = 0.05  # weight of the wandering level above which no law is trusted to end a run


class Outlook:
    """Follows a run. `look` after every step; `schedule` and `rate_scale` hold from the next step on; `ended` is why the
    run is over before its planned end ("" while it is not); `news` is what the last step has to tell.

    Args:
        rows: metrics rows so far. folder: where a measured K may turn up. same: one process's result, at every process.
    """

    def __init__(
        self,
        config: RunConfig,
        rows: Sequence[Mapping[str, Any]],
        folder: Path,
        same: Callable[[Callable[[], Any]], Any] = lambda make: make(),
    ) -> None:
        self.config, self.train, self.folder, self._same = config, config.train, folder, same
        every = config.train.forecast_every
        self.every = max(10, math.ceil(config.train.steps / 10)) if every is None else every
        self.schedule = Schedule(config.train.sync_offset, ((0, config.train.sync_interval),))
        self.rate_scale, self.ended = 1.0, ""
        self.news: list[str] = []
        self._steps: list[int] = []
        self._rewards: list[float] = []
        self._rates: list[float] = []
        self._last: Mapping[str, float] = {}  # the row of the last look
        for row in rows:
            self._remember(int(row["step"]), row)
            self._apply(int(row["step"]), row)

    def look(self, step: int, row: Mapping[str, float]) -> dict[str, float]:
        """The row of a finished step with what a look adds to it, where one is due."""
        self.news = []
        self._remember(step, row)
        if not (self.every and step % self.every == 0 and step < self.train.steps and len(self._steps) >= FEWEST):
            return dict(row)
        seen, self.news = self._same(lambda: self._see(step, row))
        found = {**row, **seen}
        self._apply(step, found)
        if self.ended:
            self.news.append(self.ended)
        return found

    @property
    def departs(self) -> bool:
        """Whether what a crashed process sampled ahead may be another policy's: a K measured since can have changed what
        the controller did when those steps are learned again."""
        return self.train.controller != "none" and self._same((self.folder / MEASURED).exists)

    def _remember(self, step: int, row: Mapping[str, Any]) -> None:
        if "reward_mean" in row:
            self._steps.append(step)
            self._rewards.append(row["reward_mean"])
        if "learning_rate" in row:
            self._rates.append(row["learning_rate"])

    def _apply(self, step: int, row: Mapping[str, Any]) -> None:
        """What a row decided."""
        if "forecast_refused" in row:
            self._last = row
        if "control_sync_interval" in row:
            self.schedule = self.schedule.change(step, int(row["control_sync_interval"]))
        self.rate_scale = row.get("control_learning_rate", self.rate_scale)
        if "steps_saved" in row:
            self.ended = (
                f"ended at step {step} of {self.train.steps}: the rest was expected to gain less than "
                f"{self.train.stop_at_plateau:g} (at most {row['forecast_gain_high']:+.3g}, twice in a row); "
                f"{row['steps_saved']:g} steps saved"
            )

    # -- what is seen ------------------------------------------------------------------------------------------

    def _see(self, step: int, row: Mapping[str, float]) -> tuple[dict[str, float], list[str]]:
        values = np.array(self._rewards)
        found = forecast(np.array(self._steps), values, self.train.steps, limits=likely_limits(values))
        out, news = _forecast_figures(found), list[str]()
        rate = row.get("learning_rate", 0.0)
        if rate > 0:
            out |= self._stability(found, rate)
        if self.train.stop_at_plateau > 0:
            reached = plateau_reached(found, self.train.stop_at_plateau)
            out["plateau_reached"] = float(reached)
            if reached and self._last.get("plateau_reached") == 1:
                out["steps_saved"] = float(self.train.steps - step)
        if self.train.controller == "stability":
            changes, text = self._control(step, rate, out)
            out |= changes
            news += text
        return out, news

    def _stability(self, found: Forecast, rate: float) -> dict[str, float]:
        """Margin and regime: of a measured K's upper end, else of the K that the reward curve shows."""
        lag = recurrence(self.config, self.schedule.interval)
        limit = exact_limit(lag)  # of η·K
        measured = read_measured(self.folder)
        if measured is not None and measured["certified"]:
            low, stiffness = measured["low"], measured["high"]
            mode = dominant_mode(rate, replace(lag, stiffness=stiffness))
            return {
                "stability_margin": limit / (rate * stiffness),
                "stability_margin_high": limit / (rate * low),
                "stability_certified": 1.0,
                "stability_stiffness": stiffness,
                "stability_regime": float(REGIMES.index(mode.regime)),
            }
        swing = swinging(found)
        gain = fitted_gain(found, lag, self.train.updates_per_step)
        out = {"stability_certified": 0.0, "stability_regime": float(swing is not None)}
        if gain is None:
            return out
        usual = float(np.mean(self._rates)) * (1 - lag.momentum if lag.averaged else 1)
        return {"stability_margin": limit * usual / (gain * rate), "stability_stiffness": gain / usual, **out}

    # -- what follows ------------------------------------------------------------------------------------------

    def _control(self, step: int, rate: float, seen: Mapping[str, float]) -> tuple[dict[str, float], list[str]]:
        """Halve the interval, then the learning rate, until the margin is enough. A margin that is not certified must be
        too small at two looks in a row: the fit of a swing may be noise."""
        bound, margin = self.train.controller_margin, seen.get("stability_margin", math.inf)
        before = self._last.get("stability_margin", math.inf)
        if margin >= bound or (not seen["stability_certified"] and before >= bound):
            return {}, []
        interval, scale = self.schedule.interval, self.rate_scale
        limit = margin * rate  # largest stable learning rate at the present interval
        unit = limit / exact_limit(recurrence(self.config, interval))
        while margin < bound and interval > 1 and recurrence(self.config, interval).largest > 0:
            interval //= 2
            margin = unit * exact_limit(recurrence(self.config, interval)) / rate
        while margin < bound:
            scale, margin = scale / 2, margin * 2
        out, text = {}, []
        if interval != self.schedule.interval:
            out["control_sync_interval"] = float(interval)
            text.append(f"sync interval {self.schedule.interval} → {interval}")
        if scale != self.rate_scale:
            out["control_learning_rate"] = scale
            text.append(f"learning rate × {scale:g}")
        certified = "" if seen["stability_certified"] else ", not certified"
        why = f"margin {seen['stability_margin']:.3g} below {bound:g}{certified}"
        return out, [f"step {step}: {why}: {', '.join(text)} (margin now {margin:.3g})"]


def _forecast_figures(found: Forecast) -> dict[str, float]:
    out = {"forecast_refused": float(found.refused)}
    parts = {
        "final": ("forecast_final", "forecast_low", "forecast_high"),
        "gain": ("forecast_gain", "forecast_gain_low", "forecast_gain_high"),
        "plateau": ("forecast_plateau", "forecast_plateau_low", "forecast_plateau_high"),
        "steps_to_95_percent": ("forecast_step_95", "forecast_step_95_low", "forecast_step_95_high"),
    }
    for field, names in parts.items():
        interval = getattr(found, field)
        if interval is not None:
            out |= dict(zip(names, (interval.value, interval.low, interval.high), strict=True))
    return {name: value for name, value in out.items() if math.isfinite(value)}


def plateau_reached(found: Forecast, bound: float) -> bool:
    """Whether less than `bound` is left to gain, by the upper end of the forecast's interval. A curve that a wandering level
    describes as well as a law has shown no plateau: it may not have begun to rise."""
    if found.refused or found.gain is None or found.plateau is None:
        return False
    wander = next(row["weight"] for row in found.laws if row["name"] == "last_value")
    return found.gain.high < bound and wander < STUBBORN


def swinging(found: Forecast) -> tuple[float, float] | None:
    """(decay, angular frequency) per step of a curve that swings past its plateau; None where it does not."""
    if not found.laws or found.laws[0]["name"] != "three_phase":
        return None
    decay, q = found.laws[0]["parameters"]["decay"], found.laws[0]["parameters"]["swing"]
    others = [row["aicc"] for row in found.laws if row["name"] != "three_phase"]
    if q <= 0 or math.exp(-math.pi / math.sqrt(q)) < OVERSHOOT or min(others) < found.laws[0]["aicc"] + DECISIVE:
        return None
    return decay, decay * math.sqrt(q)


def fitted_gain(found: Forecast, lag: Lag, updates: int) -> float | None:
    """ηK per update that the curve shows: its swing's where it swings, else its decay rate's, the lag inverted. None where
    there is neither, or where the lag cannot make a swing of that period (within a factor of two): it has another cause."""
    swing = swinging(found)
    if swing is None:
        return None if found.decay is None else gain_from_decay(found.decay.value / updates, lag)
    decay, frequency = swing
    gain = gain_from_swing(decay / updates, lag)
    if gain is None:
        return None
    period = dominant_mode(gain, replace(lag, averaged=False)).period
    own = 2 * math.pi * updates / frequency
    return gain if period is not None and own / 2 < period < own * 2 else None
