"""Logs that are text: JSON lines, a JSON document, CSV, console lines of verl and of transformers. Nothing is evaluated."""

from __future__ import annotations

import ast
import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from delphic.errors import UserError

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CONSOLE_STEP = re.compile(r"(?<![\w/])step:(\d{1,15}) - ")
CONSOLE_PAIR = re.compile(
    r"([\w/@.+-]+):(?:np\.\w+\()?(-?(?:nan|inf|[\d.]+(?:e[+-]?\d+)?))\)?(?= - |\s*$)", re.IGNORECASE
)
DICT = re.compile(r"\{'[\w/ .:()%-]+': .*?\}")
LONGEST = 1_000_000  # characters of a line; longer ones are left out and counted
BLOCK = 65_536


@dataclass
class Raw:
    """Rows as they stand in a source: numbers by key, in order. said: settings that the source tells. problems: sentences."""

    table: pl.DataFrame
    problems: list[str] = field(default_factory=list)
    said: dict[str, Any] = field(default_factory=dict)
    form: str = ""


def load(path: Path) -> bytes:
    """A file's bytes, unpacked where it is gzip.

    Raises:
        UserError: it cannot be read.
    """
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(content)) as packed:
                return _all_of(packed)
        return content
    except (OSError, MemoryError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _all_of(packed: Any) -> bytes:
    """What can be unpacked of a file that may be cut short."""
    parts = []
    try:
        while part := packed.read(1 << 20):
            parts.append(part)
    except (EOFError, zlib.error, OSError):
        pass
    return b"".join(parts)


def read_text(path: Path, content: bytes) -> Raw:
    """Whatever text log this is.

    Raises:
        UserError: it is none.
    """
    if not content.strip():
        raise UserError(f"{path}: the file is empty")
    head = content[:BLOCK].decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if "\x00" in head:
        raise UserError(f"{path}: not a log (binary data)")
    if head[0] in "[{" and not head.startswith("{'"):
        return _json(path, content)
    name = path.name.removesuffix(".gz")
    first = head.splitlines()[0]
    if name.endswith((".csv", ".tsv")) or (first.count(",") >= 1 and _is_header(first)):
        return _csv(path, content, "\t" if name.endswith(".tsv") else ",")
    return _console(path, content.decode("utf-8", "replace"))


def _is_header(line: str) -> bool:
    cells = line.split(",")
    return all(re.fullmatch(r"\"?[\w/@.: +()%-]{1,200}\"?", cell.strip()) and not _looks_number(cell) for cell in cells)


def _looks_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# -- JSON -----------------------------------------------------------------------------------------------------------


def _json(path: Path, content: bytes) -> Raw:
    """JSON lines, or one document: a trainer_state.json, a list of rows, a table of columns."""
    newline = content.find(b"\n")
    first = content[: newline if newline >= 0 else len(content)].strip()
    one_document = not first.endswith(b"}") or newline < 0 or path.name.removesuffix(".gz").endswith(".json")
    if one_document:
        try:
            return _document(path, json.loads(content))
        except (ValueError, RecursionError):
            if not first.endswith(b"}"):
                return _cut_document(path, content)
    return _lines(path, content)


def _document(path: Path, found: Any) -> Raw:
    if isinstance(found, dict) and isinstance(found.get("log_history"), list):
        said = {"steps": found["max_steps"]} if _positive(found.get("max_steps")) else {}
        return _raw(path, found["log_history"], "trainer_state", said)
    if isinstance(found, dict):
        for key in ("history", "data", "rows", "metrics", "logs"):
            if isinstance(found.get(key), list):
                return _raw(path, found[key], "json")
        columns = {k: v for k, v in found.items() if isinstance(v, list)}
        if columns:
            longest = max(map(len, columns.values()))
            return _raw(path, [{k: v[i] for k, v in columns.items() if i < len(v)} for i in range(longest)], "json")
        return _raw(path, [found], "json")
    if isinstance(found, list):
        return _raw(path, found, "json")
    raise UserError(f"{path}: JSON without rows")


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _cut_document(path: Path, content: bytes) -> Raw:
    """What whole rows there are in a document that is cut short: the flat objects in it."""
    rows = []
    for match in re.finditer(r"\{[^{}]{2,100000}\}", content.decode("utf-8", "replace")):
        try:
            row = json.loads(match[0])
        except (ValueError, RecursionError):
            continue
        rows.append(row)
    if not rows:
        raise UserError(f"{path}: neither JSON lines nor a JSON document")
    raw = _raw(path, rows, "trainer_state" if b'"log_history"' in content else "json")
    raw.problems.insert(0, "the JSON document is damaged or cut short; its whole rows are used")
    return raw


def _lines(path: Path, content: bytes) -> Raw:
    """One object a line: by polars where all is clean, line by line where not."""
    if b"NaN" not in content and b"Infinity" not in content:
        try:
            table = pl.read_ndjson(io.BytesIO(content), infer_schema_length=None)
            if all(dtype.is_numeric() or dtype == pl.Boolean for dtype in table.dtypes):
                return Raw(table.cast(pl.Float64), form="jsonl")
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OverflowError, ValueError, RuntimeError):
            pass
    rows, bad, long = [], 0, 0
    for line in content.split(b"\n"):
        if not line.strip():
            continue
        if len(line) > LONGEST:
            long += 1
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            bad += 1
            continue
        rows.append(row)
    if not rows:
        raise UserError(f"{path}: no line of it is a JSON object")
    raw = _raw(path, rows, "jsonl")
    raw.problems += [f"{bad} lines are no JSON (cut off or damaged) and were left out"] if bad else []
    raw.problems += [f"{long} lines longer than a million characters were left out"] if long else []
    return raw


# -- CSV ------------------------------------------------------------------------------------------------------------


def _csv(path: Path, content: bytes, separator: str) -> Raw:
    try:
        table = pl.read_csv(
            io.BytesIO(content),
            separator=separator,
            infer_schema_length=None,
            truncate_ragged_lines=True,
            encoding="utf8-lossy",
        )
        if all(dtype.is_numeric() or dtype == pl.Boolean for dtype in table.dtypes):
            return Raw(table.cast(pl.Float64), form="csv")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError, RuntimeError):
        pass
    text = content.decode("utf-8", "replace").replace("\x00", "").lstrip("\ufeff")
    try:
        rows = list(csv.DictReader(io.StringIO(text), delimiter=separator))
    except csv.Error as error:
        raise UserError(f"{path}: cannot be read as CSV ({error})") from None
    if not rows:
        raise UserError(f"{path}: a header and no rows")
    return _raw(path, [{k: v for k, v in row.items() if isinstance(k, str)} for row in rows], "csv")


# -- consoles -------------------------------------------------------------------------------------------------------


def _console(path: Path, text: str) -> Raw:
    lines = [line for line in ANSI.sub("", text).replace("\r", "\n").split("\n") if len(line) <= LONGEST]
    if any("│" in line or "┃" in line for line in lines[:5000]):
        from delphic.runs.areal import areal_rows

        if rows := areal_rows(lines):
            return _raw(path, rows, "areal-console")
    if rows := list(_verl_rows(lines)):
        return _raw(path, rows, "verl-console", _verl_settings(text))
    if rows := list(_dict_rows(lines)):
        raw = _raw(path, rows, "transformers-console")
        return raw
    raise UserError(
        f"{path}: not a log that is known: no JSON, no CSV, and no line of steps in it (docs/logs.md lists what is read)"
    )


def _verl_rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """`step:59 - critic/score/mean:np.float64(0.5) - …`; a line of evaluations alone belongs to its step, too."""
    for line in lines:
        found = CONSOLE_STEP.search(line)
        if found is not None:
            pairs = CONSOLE_PAIR.findall(line[found.end() :])
            if pairs:
                yield {"step": float(found[1]), **{key: value for key, value in pairs}}


def _verl_settings(text: str) -> dict[str, Any]:
    """Settings on the command line that a console shows."""
    wanted = {
        "learning_rate": r"actor\.optim\.lr=([\d.e+-]+)",
        "group_size": r"rollout\.n=(\d+)",
        "max_new_tokens": r"data\.max_response_length=(\d+)",
        "steps": r"trainer\.total_training_steps=(\d+)",
    }
    out = {}
    for name, pattern in wanted.items():
        if found := re.search(pattern, text):
            try:
                out[name] = float(found[1])
            except ValueError:
                continue
    return out


def _dict_rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Python dicts as transformers prints them, anywhere in a line, numbers as text included."""
    for line in lines:
        if "{'" not in line:
            continue
        for found in DICT.finditer(line):
            try:
                row = ast.literal_eval(re.sub(r"\b(nan|inf)\b", "None", found[0]))  # literals only: nothing is run
            except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
                continue
            if isinstance(row, dict):
                yield row


# -- rows to a table ------------------------------------------------------------------------------------------------


def _raw(path: Path, rows: Iterable[Any], form: str, said: dict[str, Any] | None = None) -> Raw:
    """Rows of anything → columns of numbers; text that is no number is left out."""
    said, problems = dict(said or {}), []
    columns: dict[str, list[float | None]] = {}
    count = strange = 0
    for row in rows:
        if not isinstance(row, dict):
            strange += 1
            continue
        for key, value in _flat(row, said):
            number = _number(value)
            if number is None:
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
    if strange:
        problems.append(f"{strange} rows are no objects and were left out")
    table = pl.DataFrame({key: pl.Series(values, dtype=pl.Float64) for key, values in columns.items()})
    return Raw(table, problems, said, form)


def _flat(row: dict[Any, Any], said: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if not isinstance(key, str) or len(key) > 300:
            continue
        if key == "global_step/max_steps" and isinstance(value, str):  # ms-swift: "1/3820"
            now, _, most = value.partition("/")
            yield "step", now
            if most.isdigit():
                said["steps"] = int(most)
        elif isinstance(value, dict) and key in ("data", "metrics"):
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
