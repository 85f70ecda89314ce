"""Logs that are text: JSON lines, a JSON document, CSV, consoles."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from pathlib import Path
from typing import Any

import polars as pl

from delphic.errors import UserError
from delphic.runs.console import read_console
from delphic.runs.jsonlines import FAILURES, read_lines
from delphic.runs.rows import Raw, raw_of_rows, raw_of_table

BLOCK = 65_536
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # what a redirect in PowerShell begins with


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
    if content[:2] in UTF_16:
        content = content.decode("utf-16", "replace").encode("utf-8", "replace")
    if not content[:BLOCK].strip() and not content.strip():
        raise UserError(f"{path}: the file is empty")
    head = content[:BLOCK].decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if "\x00" in head or not head:
        raise UserError(f"{path}: not a log (binary data)")
    if head[0] in "[{" and not head.startswith("{'"):
        return _json(path, content)
    name = path.name.removesuffix(".gz")
    first = head.splitlines()[0]
    separator = "\t" if name.endswith(".tsv") else max(",;\t", key=first.count)
    if name.endswith((".csv", ".tsv")) or (first.count(separator) >= 1 and _is_header(first, separator)):
        return _csv(path, content, separator)
    return read_console(path, content.decode("utf-8", "replace"))


def _is_header(line: str, separator: str) -> bool:
    cells = [cell.strip() for cell in line.split(separator)]
    return all(re.fullmatch(r"\"?[\w/@.: +()%-]{1,200}\"?", cell) and not _looks_number(cell) for cell in cells)


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
    return read_lines(path, content)


def _document(path: Path, found: Any) -> Raw:
    if isinstance(found, dict) and isinstance(found.get("log_history"), list):
        said = {"steps": found["max_steps"]} if _positive(found.get("max_steps")) else {}
        return raw_of_rows(path, found["log_history"], "trainer_state", said)
    if isinstance(found, dict):
        for key in ("history", "data", "rows", "metrics", "logs"):
            if isinstance(found.get(key), list):
                return raw_of_rows(path, found[key], "json")
        columns = {k: v for k, v in found.items() if isinstance(v, list)}
        if columns:
            longest = max(map(len, columns.values()))
            rows = [{k: v[i] for k, v in columns.items() if i < len(v)} for i in range(longest)]
            return raw_of_rows(path, rows, "json")
        return raw_of_rows(path, [found], "json")
    if isinstance(found, list):
        return raw_of_rows(path, found, "json")
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
    raw = raw_of_rows(path, rows, "trainer_state" if b'"log_history"' in content else "json")
    raw.problems.insert(0, "the JSON document is damaged or cut short; its whole rows are used")
    return raw


# -- CSV ------------------------------------------------------------------------------------------------------------


def _csv(path: Path, content: bytes, separator: str) -> Raw:
    for looked_at in (1000, None):  # rows from which types are inferred: all of them only where that does not hold
        try:
            table = pl.read_csv(
                io.BytesIO(content),
                separator=separator,
                infer_schema_length=looked_at,
                truncate_ragged_lines=True,
                encoding="utf8-lossy",
            )
        except FAILURES:
            continue
        if len(table):
            return raw_of_table(path, table, "csv")
    text = content.decode("utf-8", "replace").replace("\x00", "").lstrip("\ufeff")
    try:
        rows = list(csv.DictReader(io.StringIO(text), delimiter=separator))
    except csv.Error as error:
        raise UserError(f"{path}: cannot be read as CSV ({error})") from None
    if not rows:
        raise UserError(f"{path}: a header and no rows")
    return raw_of_rows(path, [{k: v for k, v in row.items() if isinstance(k, str)} for row in rows], "csv")
