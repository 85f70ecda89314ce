"""One run of a trackio project: a SQLite file whose table `metrics` has a JSON object a row."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from delphic.errors import UserError, nearest

_TRAINER_STEPS = ("train/global_step", "global_step")
_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def read_trackio(path: Path, run: str | None = None) -> tuple[list[dict[str, float]], list[str]]:
    """The rows {"step": …, key: value, …} of a run, in the order in which they were written, and sentences on problems.

    The step is the trainer's own where it was logged (trackio's counts calls of log when none is given). The file is opened
    for reading only, and never changed.

    Args:
        run: its name or id; the run that was written to last where None.

    Raises:
        UserError: no such file, not a database, no table of metrics, no such run (with the nearest).
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    problems: list[str] = []
    try:
        with closing(_open(path, problems)) as database:
            columns = [str(row[1]) for row in database.execute("PRAGMA table_info(metrics)")]
            name = "run_name" if "run_name" in columns else "run"
            if not {name, "step", "metrics"} <= set(columns):
                has = ", ".join(columns) or "no such table"
                raise UserError(f"{path}: not trackio's: its table metrics needs run_name, step, metrics ({has})")
            where = _choose(database, columns, name, run, path, problems)
            rows = list(_rows(database, *where, problems))
    except (sqlite3.Error, UnicodeDecodeError) as error:  # names of tables and columns are decoded strictly
        raise UserError(f"{path}: not a readable SQLite database ({error})") from None
    if not rows:
        raise UserError(f"{path}: the run holds no numbers" + "".join(f"; {p}" for p in problems[-1:]))
    return rows, problems


def _open(path: Path, problems: list[str]) -> sqlite3.Connection:
    """Without a write-ahead log beside it the file is immutable, so that nothing is created next to it. With one, the
    newest rows are there, and SQLite must be let at it."""
    place = path.resolve().as_uri()
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        database = sqlite3.connect(f"{place}?mode=ro", uri=True)
        try:
            database.execute("SELECT count(*) FROM sqlite_master")
            return _lenient(database)
        except sqlite3.OperationalError:
            database.close()
            problems.append(f"{log.name} cannot be read: the newest rows may be missing")
    return _lenient(sqlite3.connect(f"{place}?mode=ro&immutable=1", uri=True))


def _lenient(database: sqlite3.Connection) -> sqlite3.Connection:
    database.text_factory = lambda data: data.decode("utf-8", errors="replace")
    return database


def _choose(
    database: sqlite3.Connection, columns: list[str], name: str, run: str | None, path: Path, problems: list[str]
) -> tuple[str, Any]:
    """(column, value) that tell the run; newer files have an id beside the name, which may repeat."""
    key = "run_id" if "run_id" in columns else name
    newest = "max(timestamp), max(rowid)" if "timestamp" in columns else "max(rowid), 0"
    query = f"SELECT {key}, {name}, {newest} FROM metrics GROUP BY {key} ORDER BY 3 DESC, 4 DESC"
    found = [(identity, str(title)) for identity, title, *_ in database.execute(query)]
    if not found:
        raise UserError(f"{path}: there are no runs in it")
    matching = [row for row in found if run is None or run in (row[1], str(row[0]))]
    if not matching:
        raise UserError(f'{path}: no run "{run}"{nearest(str(run), {title for _, title in found})}')
    others = [title for identity, title in found if identity != matching[0][0]]
    if others and (run is None or len(matching) > 1):
        shown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        problems.append(f'the newest run "{matching[0][1]}" is read; there are also {shown}')
    return key, matching[0][0]


def _rows(database: sqlite3.Connection, key: str, value: Any, problems: list[str]) -> Iterator[dict[str, float]]:
    broken = 0
    for step, text in database.execute(f"SELECT step, metrics FROM metrics WHERE {key} IS ? ORDER BY rowid", (value,)):
        try:
            metrics = json.loads(text)
            row = {_whole(k): number for k, v in metrics.items() if (number := _number(v)) is not None}
            own = next((row[k] for k in _TRAINER_STEPS if k in row), None)
            row["step"] = float(step) if own is None else own
        except (ValueError, TypeError, AttributeError, RecursionError):
            broken += 1
            continue
        if len(row) > 1:
            yield row
    if broken:
        problems.append(f"{broken} rows are no JSON objects with a step, and were left out")


def _whole(key: str) -> str:
    """JSON may hold half a character, which no table takes as a name."""
    return key.encode("utf-8", "replace").decode()


def _number(value: Any) -> float | None:
    """None for what is no number: text, tables, pictures."""
    if isinstance(value, str):
        return _NOT_FINITE.get(value)
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None
