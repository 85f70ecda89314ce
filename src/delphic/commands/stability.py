"""Limits of the learning rate and of the lag, from settings or from a run."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from delphic.config import RunConfig, make_config
from delphic.dynamics.forecast import forecast
from delphic.dynamics.stability import (
    Lag,
    closed_form_limit,
    dominant_mode,
    exact_limit,
    gain_from_decay,
    max_interval,
    oscillation_onset,
)
from delphic.errors import UserError
from delphic.objective import Objective, build
from delphic.runs.measured import about, read_measured
from delphic.runs.read import read_run
from delphic.runs.series import Series, read_series
from delphic.statistics.interval import number
from delphic.training.lag import recurrence


def stability_report(rate: float, lag: Lag, margin: float = 1.0, updates: int = 1) -> dict[str, Any]:
    """The keys of `delphic stability --json`; unbounded or undefined is None.

    Args:
        updates: of a step, in which the lag counts; the largest sync interval is in steps.
    """
    mode = dominant_mode(rate, lag)
    limit = exact_limit(lag)
    return {
        "learning_rate": rate,
        "gain": rate * lag.stiffness * lag.largest,
        "closed_form_limit": number(closed_form_limit(lag)),
        "exact_limit": number(limit),
        "oscillation_onset": number(oscillation_onset(lag)),
        "regime": mode.regime,
        "damping_ratio": mode.damping_ratio,
        "period": mode.period,
        "spectral_radius": mode.spectral_radius,
        "max_learning_rate": number(limit / margin),
        "max_sync_interval": max_interval(rate, lag, margin, updates),
    }


def run_stability(options: argparse.Namespace) -> int:
    """Limits from the settings, or from a run's settings and its stiffness, measured or fitted."""
    from delphic.report.dynamics import print_stability

    if options.learning_rate is not None and not options.learning_rate > 0:
        raise UserError(f"stability: --learning-rate must be positive, got {options.learning_rate:g}")
    if not options.margin >= 1:
        raise UserError(f"stability: --margin must be 1 or more, got {options.margin:g}")
    if options.run is None:
        missing = [name for name in ("learning_rate", "stiffness") if getattr(options, name) is None]
        if missing:
            wanted = " and ".join("--" + name.replace("_", "-") for name in missing)
            raise UserError(f"stability: give {wanted}, or a run to read them from")
        result = _from_settings(options)
    else:
        result = _from_run(options)
    print(json.dumps(result, allow_nan=False)) if options.json else print_stability(result)
    return 0


def _lag(options: argparse.Namespace, known: Lag, updates: int = 1) -> Lag:
    """What is known, with what the options say instead; options count steps."""
    values = {
        "interval": None if options.sync_interval is None else options.sync_interval * updates,
        "offset": None if options.sync_offset is None else options.sync_offset * updates,
        "momentum": options.momentum,
        "stiffness": options.stiffness,
        "fresh": options.fresh_stiffness,
        "anchor": options.fresh_anchor,
        "averaged": None if options.optimizer is None else options.optimizer == "adam",
    }
    try:
        return replace(known, **{k: v for k, v in values.items() if v is not None})
    except ValueError as error:
        raise UserError(f"stability: {error}") from None


def _from_settings(options: argparse.Namespace) -> dict[str, Any]:
    known = Lag(momentum=0.9) if options.optimizer == "adam" else Lag()
    lag, notes = _weighted(_lag(options, known), options.objective)
    result = stability_report(options.learning_rate, lag, options.margin)
    if lag.largest > 0:
        notes.append("K is taken as given: the stiffest direction decides, not the one that the reward curve shows")
    return {**result, "notes": notes}


def _weighted(lag: Lag, objective: str | Objective | None) -> tuple[Lag, list[str]]:
    """The lag that counts under an objective, and what to say of it."""
    if objective is None:
        return lag, []
    goal = build(objective) if isinstance(objective, str) else objective
    if goal.cancels_lag:
        return replace(lag, interval=1, offset=0), [f"{goal.name}: full importance weights, so the lag does not count"]
    if goal.importance != "none" and lag.largest > 0:
        return lag, [
            f"{goal.name}: importance weights cancel the lag only as the whole completion's ratio, unclipped, without std and KL term; not counted on here"
        ]
    return lag, []


def _from_run(options: argparse.Namespace) -> dict[str, Any]:
    series = read_series(options.run, options.metric)
    config = _run_config(options.run)
    updates = 1 if config is None else config.train.updates_per_step
    rate = options.learning_rate or (
        read_run(options.run).learning_rate if config is None else config.train.learning_rate
    )
    if not rate:
        raise UserError(f"stability: {options.run} does not say its learning rate; give --learning-rate")
    lag = _lag(options, Lag() if config is None else recurrence(config), updates)
    lag, notes = _weighted(lag, options.objective or (None if config is None else config.objective))
    notes += series.problems
    if updates > 1:
        notes.append(f"{updates} updates a step: lags, periods and the damping count updates")
    measured = read_measured(options.run) if options.stiffness is None else None
    certified = options.stiffness is not None or (measured is not None and measured["certified"])
    if measured is not None:
        lag = replace(lag, stiffness=measured["high"])
        notes.append(about(measured))
    elif options.stiffness is None:
        lag = replace(lag, stiffness=_fitted_stiffness(series, rate, lag, updates))
        notes.append(
            "not certified: K is read off the reward curve, which shows the slow directions; the stiffest one decides, so "
            "the true limit is lower (delphic probe measures it)"
        )
    result = stability_report(rate, lag, options.margin, updates)
    rows = what_if(rate, lag, updates)
    return {**result, "stiffness": lag.stiffness, "certified": certified, "what_if": rows, "notes": notes}


def _run_config(run: Path) -> RunConfig | None:
    """A delphic run's config; None for a foreign log."""
    path = run / "config.json"
    if not path.is_file():
        return None
    try:
        return make_config(json.loads(path.read_text(encoding="utf-8"))["config"], str(path))
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"stability: {path} cannot be read as a run's config") from None


def _fitted_stiffness(series: Series, rate: float, lag: Lag, updates: int) -> float:
    decay = forecast(series.steps, series.values, float(series.steps[-1])).decay
    if decay is None:
        raise UserError(
            f"stability: {series.metric} shows no approach to a plateau, so no decay rate; give --stiffness"
        )
    gain = gain_from_decay(decay.value / updates, lag)
    if gain is None:
        raise UserError(
            f"stability: {series.metric} decays by {decay.value:.3g} a step, faster than its lag lets it without swinging; "
            "give --stiffness"
        )
    scale = rate * (1 - lag.momentum) if lag.averaged else rate
    return gain / scale


def what_if(rate: float, lag: Lag, updates: int = 1) -> list[dict[str, Any]]:
    """The same run with the learning rate, the sync interval (in steps) or the momentum changed."""
    changes = [(f"learning rate × {f:g}", rate * f, lag) for f in (0.5, 2, 4, 8)]
    steps = max(lag.interval // updates, 1)
    for interval in sorted({1, 2 * steps, 8 * steps}):
        changes.append((f"sync interval {interval}", rate, replace(lag, interval=interval * updates)))
    changes += [(f"momentum {mu:g}", rate, replace(lag, momentum=mu)) for mu in (0.0, 0.9, 0.95) if mu != lag.momentum]
    out = []
    for text, new_rate, new_lag in changes:
        mode = dominant_mode(new_rate, new_lag)
        share = number(new_rate / exact_limit(new_lag))
        out.append(
            {"change": text, "regime": mode.regime, "share_of_limit": share, "damping_ratio": mode.damping_ratio}
        )
    return out
