"""Rows as they stand in a source → a table of numbers; what holds text is named."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from delphic.errors import UserError

NESTED = ("data", "metrics")  # keys that hold the figures of a row, as verl's file logger and trackio write them
OF_MOST = "global_step/max_steps"  # ms-swift: "1/3820"


@dataclass
class Raw:
    """Numbers by key, in the order of the file. said: settings that the source tells. problems: sentences. text: keys without
    any number."""

    table: pl.DataFrame
    problems: list[str] = field(default_factory=list)
    said: dict[str, Any] = field(default_factory=dict)
    form: str = ""
    text: tuple[str, ...] = ()


def raw_of_rows(path: Path, rows: Iterable[Any], form: str, said: dict[str, Any] | None = None) -> Raw:
    """Rows of anything → columns of numbers; text that is no number is left out.

    Raises:
        UserError: there is no number in them.
    """
    said, text = dict(said or {}), dict[str, None]()
    columns: dict[str, list[float | None]] = {}
    count = strange = 0
    for row in rows:
        if not isinstance(row, dict):
            strange += 1
            continue
        for key, value in _flat(row, said):
            number = _number(value)
            if number is None:
                if value is not None and value != "":
                    text[key] = None
                continue
            column = columns.setdefault(key, [])
            column.extend([None] * (count - len(column)))
            if len(column) == count:
                column.append(number)
            else:
                column[count] = number  # a key that comes twice: the later counts
        count += 1
    if not columns:
        raise UserError(f"{path}: there are rows, but no numbers in them")
    for column in columns.values():
        column.extend([None] * (count - len(column)))
    problems = [f"{strange} rows are no objects and were left out"] if strange else []
    table = pl.DataFrame({key: pl.Series(values, dtype=pl.Float64) for key, values in columns.items()})
    return Raw(table, problems, said, form, tuple(key for key in text if key not in columns))


def raw_of_table(path: Path, table: pl.DataFrame, form: str) -> Raw:
    """The same of columns: numbers written as text are numbers.

    Raises:
        UserError: there is no number in them.
    """
    said: dict[str, Any] = {}
    if OF_MOST in table.columns and table[OF_MOST].dtype == pl.String:
        now, most = (table[OF_MOST].str.extract(r"^(\d+)/(\d+)$", k) for k in (1, 2))
        table = table.drop(OF_MOST, "step", strict=False).with_columns(now.alias("step"))
        ends = most.drop_nulls().cast(pl.Int64, strict=False).drop_nulls()
        said = {"steps": int(ends[-1])} if len(ends) else {}
    written = [name for name, dtype in table.schema.items() if dtype == pl.String]
    numeric = [name for name, dtype in table.schema.items() if dtype.is_numeric() or dtype == pl.Boolean]
    floats = table.select(
        pl.col(numeric).cast(pl.Float64), pl.col(written).str.strip_chars().cast(pl.Float64, strict=False)
    )
    numbers = set(numeric) | {name for name, count in _counts(floats.select(written)).items() if count}
    if not numbers:
        raise UserError(f"{path}: there are rows, but no numbers in them")
    text = tuple(name for name, count in _counts(table).items() if count and name not in numbers)
    return Raw(floats.select(name for name in table.columns if name in numbers), [], said, form, text)


def _counts(table: pl.DataFrame) -> dict[str, int]:
    """How many values each column has."""
    return table.select(pl.all().count()).row(0, named=True) if table.columns else {}


def _flat(row: dict[Any, Any], said: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if not isinstance(key, str) or len(key) > 300:
            continue
        if key == OF_MOST and isinstance(value, str):
            now, _, most = value.partition("/")
            yield "step", now
            if most.isdecimal() and len(most) < 16:
                said["steps"] = int(most)
        elif isinstance(value, dict) and key in NESTED:
            yield from _flat(value, said)
        elif not isinstance(value, dict | list):
            yield key, value


def _number(value: Any) -> float | None:
    """As a float; None where it is none. Numbers beyond float are infinite."""
    if value is None or isinstance(value, bool):
        return None if value is None else float(value)
    if isinstance(value, str):
        text = value.strip()
        if not text or len(text) > 40:
            return None
        value = text
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return None
