"""What stability, forecast and backtest do, between the command line's words and the packages' functions."""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

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
from delphic.runs.measured import about, read_measured
from delphic.runs.series import Series, read_series


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def stability_report(rate: float, lag: Lag, margin: float = 1.0) -> dict[str, Any]:
    """The keys of `delphic stability --json`; unbounded or undefined is None."""
    mode = dominant_mode(rate, lag)
    limit = exact_limit(lag)
    return {
        "learning_rate": rate,
        "gain": rate * lag.stiffness * lag.largest,
        "closed_form_limit": _finite(closed_form_limit(lag)),
        "exact_limit": _finite(limit),
        "oscillation_onset": _finite(oscillation_onset(lag)),
        "regime": mode.regime,
        "damping_ratio": mode.damping_ratio,
        "period": mode.period,
        "spectral_radius": mode.spectral_radius,
        "max_learning_rate": _finite(limit / margin),
        "max_sync_interval": max_interval(rate, lag, margin),
    }


def run_stability(options: argparse.Namespace) -> int:
    """Limits from the settings, or from a run's settings and its fitted decay rate."""
    from delphic.report.dynamics import print_stability

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


def _lag(options: argparse.Namespace, **known: Any) -> Lag:
    values = {
        "interval": options.sync_interval,
        "offset": options.sync_offset,
        "momentum": options.momentum,
        "fresh": options.fresh_stiffness,
        "anchor": options.fresh_anchor,
        "averaged": None if options.optimizer is None else options.optimizer == "adam",
    }
    given = {k: v for k, v in values.items() if v is not None}
    try:
        return Lag(**{**known, **given})
    except ValueError as error:
        raise UserError(f"stability: {error}") from None


def _from_settings(options: argparse.Namespace) -> dict[str, Any]:
    if not options.learning_rate > 0:
        raise UserError(f"stability: --learning-rate must be positive, got {options.learning_rate:g}")
    if not options.margin >= 1:
        raise UserError(f"stability: --margin must be 1 or more, got {options.margin:g}")
    defaults: dict[str, Any] = {"momentum": 0.9} if options.optimizer == "adam" else {}
    lag = _lag(options, stiffness=options.stiffness, **defaults)
    lag, notes = _weighted(lag, options.objective)
    result = stability_report(options.learning_rate, lag, options.margin)
    if lag.largest > 0:
        notes.append("K is taken as given: the stiffest direction decides, not the one that the reward curve shows")
    return {**result, "notes": notes}


def _weighted(lag: Lag, objective: str | None) -> tuple[Lag, list[str]]:
    """The lag that counts under an objective, and what to say of it."""
    if objective is None:
        return lag, []
    from delphic.objective import build

    goal = build(objective)
    if goal.cancels_lag:
        return replace(lag, interval=1, offset=0), [f"{goal.name}: full importance weights, so the lag does not count"]
    if goal.importance != "none" and lag.largest > 0:
        return lag, [
            f"{goal.name}: importance weights cancel the lag only while nothing is clipped; not counted on here"
        ]
    return lag, []


def _from_run(options: argparse.Namespace) -> dict[str, Any]:
    series = read_series(options.run, options.metric)
    settings, known = _run_settings(options)
    rate = options.learning_rate if options.learning_rate is not None else settings.get("learning_rate")
    if rate is None:
        raise UserError(f"stability: {options.run} does not say its learning rate; give --learning-rate")
    lag, notes = _weighted(_lag(options, **known), options.objective or settings.get("objective"))
    notes = [*notes, *series.problems]
    measured = read_measured(options.run) if options.stiffness is None else None
    certified = options.stiffness is not None or (measured is not None and measured["certified"])
    if options.stiffness is not None:
        lag = replace(lag, stiffness=options.stiffness)
    elif measured is not None:
        lag = replace(lag, stiffness=measured["high"])
        notes.append(about(measured))
    else:
        lag = replace(lag, stiffness=_fitted_stiffness(series, rate, lag))
        notes.append(
            "not certified: K is read off the reward curve, which shows the slow directions; the stiffest one decides, so "
            "the true limit is lower (delphic probe measures it)"
        )
    result = stability_report(rate, lag, options.margin)
    return {**result, "stiffness": lag.stiffness, "certified": certified, "what_if": what_if(rate, lag), "notes": notes}


def _run_settings(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """(learning rate and objective, the lag's settings) of a delphic run; empty for a foreign log."""
    try:
        config = json.loads((options.run / "config.json").read_text(encoding="utf-8"))["config"]
        return {"learning_rate": config["train"]["learning_rate"]}, run_lag(config)
    except (OSError, ValueError, KeyError, TypeError):
        return {}, {}


def run_lag(config: Mapping[str, Any]) -> dict[str, Any]:
    """The lag's settings of a delphic config, as `Lag` takes them."""
    train = config["train"]
    adam = train["optimizer"] == "adamw"
    return {
        "interval": train["sync_interval"],
        "offset": train["sync_offset"],
        "momentum": train["betas"][0] if adam else train["momentum"],
        "averaged": adam,
    }


def _fitted_stiffness(series: Series, rate: float, lag: Lag) -> float:
    from delphic.dynamics.forecast import decay_rate

    decay = decay_rate(series.steps, series.values)
    if decay is None:
        raise UserError(
            f"stability: {series.metric} shows no approach to a plateau, so no decay rate; give --stiffness"
        )
    gain = gain_from_decay(decay.value, lag)
    if gain is None:
        raise UserError(
            f"stability: {series.metric} decays by {decay.value:.3g} a step, faster than a lag of {lag.largest} steps lets "
            "it without swinging; give --stiffness"
        )
    scale = rate * (1 - lag.momentum) if lag.averaged else rate
    return gain / scale


def what_if(rate: float, lag: Lag) -> list[dict[str, Any]]:
    """The same run with the learning rate, the interval or the momentum changed."""
    changes = [(f"learning rate × {f:g}", rate * f, lag) for f in (0.5, 2, 4, 8)]
    changes += [
        (f"sync interval {m}", rate, replace(lag, interval=m)) for m in sorted({1, 2 * lag.interval, 8 * lag.interval})
    ]
    changes += [(f"momentum {mu:g}", rate, replace(lag, momentum=mu)) for mu in (0.0, 0.9, 0.95) if mu != lag.momentum]
    out = []
    for text, new_rate, new_lag in changes:
        mode, limit = dominant_mode(new_rate, new_lag), exact_limit(new_lag)
        share = new_rate / limit if math.isfinite(limit) else None
        out.append(
            {"change": text, "regime": mode.regime, "share_of_limit": share, "damping_ratio": mode.damping_ratio}
        )
    return out


def run_forecast(options: argparse.Namespace) -> int:
    """Forecast a run's metric; with --at, from a part of it, beside what came."""
    from delphic.dynamics.forecast import forecast
    from delphic.report.dynamics import draw_forecast, print_forecast

    if not 0 < options.level < 1:
        raise UserError(f"forecast: --level must be inside (0, 1), got {options.level:g}")
    if options.at is not None and not 0 < options.at < 1:
        raise UserError(f"forecast: --at must be inside (0, 1), got {options.at:g}")
    limits = _limits(options.range)
    series = read_series(options.path, options.metric, limits)
    problems = list(series.problems)
    if limits is None and series.values.min() >= 0 and series.values.max() <= 1:
        limits = (0.0, 1.0)
        problems.append("all values are between 0 and 1, taken as the reward's range; --range says otherwise")
    seen = series if options.at is None else series.until(options.at)
    end = options.end or (series.end if options.at is None else None) or float(series.steps[-1])
    if options.at is None and options.end is None and (series.end or 0) <= series.steps[-1]:
        end = float(2 * series.steps[-1] - series.steps[0])
        problems.append(
            f"the planned end is not known or reached; taken as step {end:g}, twice the steps so far (--end)"
        )
    found = forecast(seen.steps, seen.values, end, level=options.level, limits=limits)
    result = {key: value for key, value in asdict(found).items() if key != "band"}
    result = {"metric": series.metric, "end": end, **result, "problems": problems}
    if options.at is not None:
        result["actual"] = series.last_tenth()
    if options.html is not None:
        try:
            draw_forecast(result, series.steps, series.values, len(seen.steps), found.band, options.html)
        except OSError as error:
            raise UserError(f"forecast: cannot write to {options.html}: {error.strerror}") from None
    if options.json:
        print(json.dumps(result, allow_nan=False))
    else:
        print_forecast(result, seen.values.tolist())
    return 0


def _limits(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f'--range reads two numbers such as 0,1, got "{text}"') from None
    if not low < high:
        raise UserError(f"--range: {low:g} is not below {high:g}")
    return low, high


def run_backtest(options: argparse.Namespace) -> int:
    """Score forecasts from 25, 50 and 75 % of every readable run in a folder; files of one folder count as a pool."""
    from rich.console import Console
    from rich.progress import track

    from delphic.dynamics.backtest import summarise, trial
    from delphic.report.dynamics import print_backtest

    if not options.folder.is_dir():
        raise UserError(f"backtest: {options.folder} is no folder")
    trials, left_out = [], []
    listed = _manifest(options.folder)
    known = {".jsonl", ".csv", ".log", ".txt", ".json"}
    paths = sorted(p for p in options.folder.rglob("*") if p.suffix in known and p.name != "MANIFEST.csv")
    console = Console(stderr=True)
    for path in track(paths, "forecasts", console=console, transient=True, disable=not console.is_terminal):
        pool, metric = listed.get(path.name, (str(path.parent), None))
        try:
            series = read_series(path, options.metric or metric)
        except UserError as error:
            left_out.append(str(error))
            continue
        if len(series.steps) < 40 or np.ptp(series.values) == 0:
            left_out.append(
                f"{path}: {len(series.steps)} steps" if len(series.steps) < 40 else f"{path}: constant reward"
            )
            continue
        limits = (0.0, 1.0) if series.values.min() >= 0 and series.values.max() <= 1 else None
        trials += [trial(str(path), pool, series.steps, series.values, at, limits) for at in (0.25, 0.5, 0.75)]
    if not trials:
        raise UserError(
            f"backtest: no run in {options.folder} could be read" + (f" ({left_out[0]})" if left_out else "")
        )
    rows = [
        {
            "file": t.name,
            "at": t.at,
            "actual": t.actual,
            "final": None if t.forecast.final is None else asdict(t.forecast.final),
        }
        for t in trials
    ]
    result = {"summary": summarise(trials), "trials": rows, "left_out": left_out}
    print(json.dumps(result, allow_nan=False)) if options.json else print_backtest(result)
    return 0


def _manifest(folder: Path) -> dict[str, tuple[str, str]]:
    """Pool and metric of the files that a MANIFEST.csv there lists (columns file, repo, reward_key)."""
    path = folder / "MANIFEST.csv"
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    missing = [name for name in ("file", "repo", "reward_key") if rows and name not in rows[0]]
    if missing:
        raise UserError(f"{path}: no column {missing[0]}; file, repo and reward_key say what each file is")
    return {row["file"]: (row["repo"], row["reward_key"]) for row in rows}
