"""One metric over the steps of a log, made clean enough to be fitted; whatever was done to it is told."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from delphic.errors import UserError, nearest

CONSOLE_STEP = re.compile(r"(?<![\w/])step:(\d+) - ")
CONSOLE_PAIR = re.compile(r"([\w/@.-]+):(?:np\.\w+\()?(-?[\d.]+(?:e[+-]?\d+)?)")
STEPS = ("step", "_step", "global_step", "train/global_step", "training/global_step")
METRICS = ("reward_mean", "reward", "reward/mean", "critic/score/mean", "critic/rewards/mean", "env/all/reward/total")


@dataclass(frozen=True)
class Series:
    """steps [n] ascending, values [n] finite. end: the last step that was planned, where known. problems: sentences."""

    metric: str
    steps: np.ndarray
    values: np.ndarray
    end: int | None
    problems: tuple[str, ...]

    def until(self, share: float) -> Series:
        """What was there to see after a share of the steps."""
        last = self.steps[0] + share * (self.steps[-1] - self.steps[0])
        kept = self.steps <= last
        return replace(self, steps=self.steps[kept], values=self.values[kept])

    def last_tenth(self) -> float:
        """Mean over the last tenth of the steps."""
        late = self.steps > self.steps[-1] - 0.1 * (self.steps[-1] - self.steps[0] + 1)
        return float(self.values[late].mean())


def read_series(path: Path, metric: str | None = None, limits: tuple[float, float] | None = None) -> Series:
    """The metric (default: the mean reward) of a run folder, or of a JSONL or CSV file with a column of steps.

    Args:
        limits: lowest and highest value possible; a value outside is refused.

    Raises:
        UserError: no such file, no such column (with the nearest), or no number in it.
    """
    end = None
    if path.is_dir():
        file = path / "metrics.jsonl"
        if not file.exists():
            raise UserError(f"{path}: no metrics.jsonl there; name a run's folder, or a JSONL or CSV file")
        end = _planned(path / "config.json")
    else:
        file = path
    rows = list(_rows(file))
    names = sorted({name for row in rows for name in row})
    if not rows:
        raise UserError(f"{file}: there are no rows in it")
    step_name = next((name for name in STEPS if name in names), None)
    if step_name is None:
        raise UserError(f"{file}: no column of steps ({', '.join(STEPS)}); it has {', '.join(names[:12])}")
    if metric is None:
        metric = next((name for name in METRICS if name in names), None)
        if metric is None:
            raise UserError(f"{file}: no column of rewards ({', '.join(METRICS)}); name one with --metric")
    elif metric not in names:
        raise UserError(f'{file}: no column "{metric}"{nearest(metric, names)}')
    return _clean(file, metric, [(row.get(step_name), row.get(metric)) for row in rows], end, limits)


def _planned(config: Path) -> int | None:
    try:
        return int(json.loads(config.read_text(encoding="utf-8"))["config"]["train"]["steps"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    if file.suffix == ".csv":
        try:
            table = pl.read_csv(file, infer_schema_length=None, truncate_ragged_lines=True)
        except FileNotFoundError:
            raise UserError(f"{file}: no such file") from None
        except (pl.exceptions.PolarsError, OSError) as error:
            raise UserError(f"{file}: cannot be read as CSV ({str(error).splitlines()[0]})") from None
        yield from table.iter_rows(named=True)
        return
    if file.suffix not in (".jsonl", ".ndjson", ".json", ".log", ".txt"):
        raise UserError(f"{file}: a run folder, a .jsonl, .csv, .json or .log file is read")
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            if file.suffix == ".json":
                yield from _history(file, lines.read())
            elif file.suffix in (".log", ".txt"):
                yield from filter(None, map(_console, lines))
            else:
                yield from _objects(file, lines)
    except FileNotFoundError:
        raise UserError(f"{file}: no such file") from None
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None


def _objects(file: Path, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """One JSON object a line; {"step": …, "data": {…}} is one row."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            if number == 1:
                raise UserError(f"{file}: line 1 is no JSON object") from None
            continue  # a line that was cut off
        if isinstance(row, dict):
            inner = row.get("data")
            yield {**row, **inner} if isinstance(inner, dict) else row


def _history(file: Path, text: str) -> list[dict[str, Any]]:
    """The log_history of a trainer_state.json."""
    try:
        rows = json.loads(text)["log_history"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{file}: no JSON with a log_history") from None
    return [row for row in rows if isinstance(row, dict)]


def _console(line: str) -> dict[str, Any] | None:
    """A line such as `step:59 - critic/score/mean:np.float64(0.5) - …`."""
    found = CONSOLE_STEP.search(line)
    if found is None:
        return None
    pairs = CONSOLE_PAIR.findall(line[found.end() :])
    return {"step": int(found[1]), **{key: value for key, value in pairs}}


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _clean(
    file: Path, metric: str, pairs: list[tuple[Any, Any]], end: int | None, limits: tuple[float, float] | None
) -> Series:
    problems = []
    given = [(_number(step), _number(value)) for step, value in pairs if step is not None and value is not None]
    finite = [(step, value) for step, value in given if math.isfinite(step) and math.isfinite(value)]
    if not finite:
        raise UserError(f'{file}: column "{metric}" holds no numbers')
    if len(finite) < len(given):
        problems.append(f"{len(given) - len(finite)} values that are not finite were left out")
    if limits is not None:
        for step, value in finite:
            if not limits[0] <= value <= limits[1]:
                raise UserError(
                    f"{file}: {metric} is {value:g} at step {step:g}, outside {limits[0]:g} to {limits[1]:g}"
                )
    sessions, replaced = _sessions(finite)
    if replaced:
        problems.append(f"{replaced} steps were done again after a resume; the later ones count")
    chosen = max(sessions, key=len)
    if len(sessions) > 1:
        lengths = ", ".join(str(len(s)) for s in sessions)
        problems.append(f"the steps start again {len(sessions) - 1} times ({lengths} rows); the longest part is used")
    steps, values = np.array(chosen).T
    distinct, place = np.unique(steps, return_inverse=True)
    if len(distinct) < len(steps):
        problems.append(f"{len(steps) - len(distinct)} rows repeat a step; their mean is used")
        values = np.bincount(place, values) / np.bincount(place)
    return Series(metric, distinct, values, end, tuple(problems))


def _sessions(rows: list[tuple[float, float]]) -> tuple[list[list[tuple[float, float]]], int]:
    """Steps that go back behind the first of their session begin another one; that go back inside it are a resume, which
    replaces what it does again."""
    sessions: list[list[tuple[float, float]]] = [[]]
    replaced = 0
    for step, value in rows:
        now = sessions[-1]
        if now and step < now[-1][0]:
            if step <= now[0][0]:
                sessions.append([])
            else:
                kept = [row for row in now if row[0] < step]
                replaced += len(now) - len(kept)
                sessions[-1] = kept
        sessions[-1].append((step, value))
    return sessions, replaced
