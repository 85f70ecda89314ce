"""Forecasting a run, and scoring forecasts."""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from delphic.dynamics.forecast import forecast, likely_limits
from delphic.errors import UserError
from delphic.runs.series import read_series


def run_forecast(options: argparse.Namespace) -> int:
    """Forecast a run's metric; with --at, from a part of it, beside what came."""
    from delphic.report.dynamics import draw_forecast, print_forecast

    if not 0 < options.level < 1:
        raise UserError(f"forecast: --level must be inside (0, 1), got {options.level:g}")
    if options.at is not None and not 0 < options.at < 1:
        raise UserError(f"forecast: --at must be inside (0, 1), got {options.at:g}")
    limits = _limits(options.range)
    series = read_series(options.path, options.metric, limits)
    problems = list(series.problems)
    if limits is None and likely_limits(series.values) is not None:
        limits = likely_limits(series.values)
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
        limits = likely_limits(series.values)
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
