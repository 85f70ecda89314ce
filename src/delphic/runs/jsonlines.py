"""JSON lines: by polars where that loses nothing, line by line where it would."""

from __future__ import annotations

import io
import json
from pathlib import Path

import polars as pl

from delphic.errors import UserError
from delphic.runs.rows import NESTED, Raw, raw_of_rows, raw_of_table

LONGEST = 1_000_000  # characters of a line; longer ones are left out and counted
FAILURES = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OverflowError, ValueError, RuntimeError)
NOT_FINITE = {
    b"NaN": b'"nan"',
    b"-Infinity": b'"-inf"',
    b"Infinity": b'"inf"',
}  # Python writes the keys; polars reads text


def read_lines(path: Path, content: bytes) -> Raw:
    """One object a line.

    Raises:
        UserError: no line is one, or there is no number in them.
    """
    whole, cut = _without_cut_line(content.removeprefix(b"\xef\xbb\xbf"))
    table = _fast(whole)
    if table is None:
        return _slow(path, content)
    raw = raw_of_table(path, table, "jsonl")
    raw.problems += [_bad(1)] if cut else []
    return raw


def _bad(count: int) -> str:
    return f"{count} lines are no JSON (cut off or damaged) and were left out"


def _without_cut_line(content: bytes) -> tuple[bytes, bool]:
    """(the whole lines, whether the last was not whole), as where a run was killed while it wrote."""
    tail = content[-LONGEST:].rstrip()  # the whole content is not copied
    if tail.endswith(b"}") or b"\n" not in tail:
        return content, False
    return content[: len(content) - len(content[-LONGEST:]) + tail.rfind(b"\n") + 1], True


def _fast(content: bytes) -> pl.DataFrame | None:
    """By polars; None where it refuses, or where a cell of the file is not in its table (a key that comes twice)."""
    for word, quoted in NOT_FINITE.items() if b"NaN" in content or b"Infinity" in content else ():
        if word in content:
            for before in (b":", b": "):
                content = content.replace(before + word, before + quoted)
    spaced = (
        b'" :' in content[: content.find(b"\n")]
    )  # if only later lines are, the count is wrong and the slow way taken
    cells = content.count(b'":') + (content.count(b'" :') if spaced else 0) - content.count(b"null")
    schema = _schema(content)
    for attempt in ([schema] if schema else []) + [None]:
        try:
            table = pl.read_ndjson(io.BytesIO(content), schema=attempt, infer_schema_length=None)
            filled = 0
            for name in [n for n in NESTED if n in table.columns and isinstance(table[n].dtype, pl.Struct)]:
                filled += table[name].count()
                table = table.unnest(name)
            filled += sum(column.count() for column in table)
        except FAILURES:
            continue
        if filled == cells:
            return table
    return None


def _schema(content: bytes) -> dict[str, pl.DataType] | None:
    """Every key of the first line a number: twice as fast as finding the types of all lines, where it holds."""
    try:
        first = json.loads(content[: content.find(b"\n")])
    except (ValueError, RecursionError):
        return None
    if isinstance(first, dict) and all(isinstance(value, int | float | None) for value in first.values()):
        return {key: pl.Float64() for key in first}
    return None


def _slow(path: Path, content: bytes) -> Raw:
    rows, bad, long = [], 0, 0
    for line in content.split(b"\n"):
        if not line.strip():
            continue
        if len(line) > LONGEST:
            long += 1
            continue
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError):
            bad += 1
    if not rows:
        raise UserError(f"{path}: no line of it is a JSON object")
    raw = raw_of_rows(path, rows, "jsonl")
    raw.problems += [_bad(bad)] if bad else []
    raw.problems += [f"{long} lines longer than a million characters were left out"] if long else []
    return raw
