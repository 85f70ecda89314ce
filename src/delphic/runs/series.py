"""One metric over the steps of a log, made clean enough to be fitted; whatever was done to it is told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from delphic.errors import UserError, nearest
from delphic.runs.clean import clean
from delphic.runs.detect import recognise
from delphic.runs.exports import one_run
from delphic.runs.file import planned, raw_of
from delphic.runs.read import read_run
from delphic.runs.steps import step_column


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
    """The metric (default: the mean reward) of a run's folder or of any log that `runs.read` knows.

    Args:
        metric: a column of the log by its own name. limits: lowest and highest value possible; a value outside is refused.

    Raises:
        UserError: no such file, no such column (with the nearest), or no number in it.
    """
    if metric is None:
        log = read_run(path)
        steps, values = log.series("reward_mean")
        name = next(column.source_key for column in log.columns if column.canonical == "reward_mean")
        left_out = log.non_finite.get("reward_mean", ())
        problems, end = log.problems, log.settings.get("steps")
    else:
        file = path / "metrics.jsonl" if path.is_dir() else path
        steps, values, left_out, problems = _column(file, metric)
        name, end = metric, planned(path / "config.json").get("steps") if path.is_dir() else None
    if not len(values):
        raise UserError(f'{path}: column "{name}" holds no numbers')
    if left_out:
        problems = (f"{len(left_out)} values that are not finite were left out", *problems)
    if limits is not None:
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            if not limits[0] <= value <= limits[1]:
                raise UserError(f"{path}: {name} is {value:g} at step {step:g}, outside {limits[0]:g} to {limits[1]:g}")
    return Series(name, steps.astype(np.float64), values, None if end is None else int(end), tuple(problems))


def _column(file: Path, metric: str) -> tuple[np.ndarray, np.ndarray, tuple[int, ...], tuple[str, ...]]:
    """(steps, values, the steps at which it was not finite, problems) of one column by its own name."""
    if not file.exists():
        raise UserError(f"{file}: no such file")
    raw = raw_of(file)
    if raw is None:
        raise UserError(f"{file}: completions, not a log of steps")
    raw = one_run(raw)
    if metric not in raw.table.columns:
        raise UserError(f'{file}: no column "{metric}"{nearest(metric, raw.table.columns)}')
    problems: list[str] = []
    table, step = step_column(raw, recognise(raw.table.columns, raw.form), None, problems, metric)
    table = table.filter(pl.col(metric).is_not_null())
    if step == metric or not len(table):
        raise UserError(f'{file}: column "{metric}" holds no numbers')
    found = clean(table.select(step, pl.col(metric)), step)
    if metric not in found.table.columns:
        raise UserError(f'{file}: column "{metric}" holds no numbers')
    kept = found.table.drop_nulls()
    said = (*raw.problems, *problems, *found.problems)
    return kept["step"].to_numpy(), kept[metric].to_numpy(), found.non_finite.get(metric, ()), said
