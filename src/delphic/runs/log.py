"""A run as anybody's log tells it: one row a step, columns by what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl


@dataclass(frozen=True)
class Column:
    """canonical: a name of `columns.CANONICAL`, or reward/<function>. kind: one of its kinds."""

    canonical: str
    source_key: str
    kind: str = ""


@dataclass(frozen=True)
class Session:
    """A part of the file between two starts, in steps; rows: how many there were."""

    first: int
    last: int
    rows: int


@dataclass(frozen=True)
class RunLog:
    """The last session of a log that is no stub (at least half the steps of the longest), cleaned.

    table: "step" (Int64, strictly ascending) and one Float64 column for each of `columns`; null where nothing (or nothing
    finite) was logged. non_finite: column → the steps at which it was. resumed: steps at which a resumed session went on.
    rollouts: one row a completion, where a dump has them: group (Int64), reward (Float64), and, where known, step, prompt,
    completion, length, truncated. settings: what the log says of the run, by delphic's names (learning_rate, group_size,
    kl_coefficient, sync_interval, steps (planned), max_new_tokens, optimizer, framework's own are left out).
    problems: sentences on what was wrong and what was done about it. unread: keys that have no meaning here.
    """

    path: Path
    framework: str
    version: str | None
    table: pl.DataFrame
    columns: tuple[Column, ...]
    sessions: tuple[Session, ...]
    rows: int
    problems: tuple[str, ...] = ()
    non_finite: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    resumed: tuple[int, ...] = ()
    rollouts: pl.DataFrame | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    @classmethod
    def from_table(cls, table: pl.DataFrame, framework: str = "delphic", **settings: Any) -> RunLog:
        """A run in memory: "step" and columns that have canonical names already, in any numeric type; not finite becomes null."""
        names = [name for name in table.columns if name != "step"]
        numbers = pl.col(names).cast(pl.Float64)
        bad = table.select(pl.col("step"), numbers.is_infinite() | numbers.is_nan())
        non_finite = {
            name: tuple(bad.filter(pl.col(name))["step"].to_list())
            for name in names
            if bad[name].fill_null(False).any()
        }
        clean = table.select(
            pl.col("step").cast(pl.Int64), pl.when(numbers.is_finite()).then(numbers).otherwise(None).name.keep()
        )
        steps = clean["step"]
        session = Session(int(steps[0]), int(steps[-1]), len(steps)) if len(steps) else Session(0, 0, 0)
        columns = tuple(Column(name, name) for name in names)
        return cls(
            Path(), framework, None, clean, columns, (session,), len(table), non_finite=non_finite, settings=settings
        )

    @property
    def steps(self) -> np.ndarray:
        return self.table["step"].to_numpy()

    @property
    def learning_rate(self) -> float | None:
        """As the settings say, else the highest that was logged; None where neither does."""
        rate = self.settings.get("learning_rate")
        if rate is None and self.has("learning_rate"):
            rates = self.series("learning_rate")[1]
            rate = rates.max() if len(rates) else None
        return float(rate) if rate else None

    def has(self, *names: str) -> bool:
        return all(name in self.table.columns for name in names)

    def kind(self, name: str) -> str:
        return next((column.kind for column in self.columns if column.canonical == name), "")

    def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(steps [n], values [n]) of a column, where it was logged."""
        part = self.table.select("step", name).drop_nulls()
        return part["step"].to_numpy(), part[name].to_numpy()
