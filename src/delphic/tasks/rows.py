"""Rows of data as dictionaries: JSONL, JSON, CSV, Parquet, or a dataset of the Hugging Face hub."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delphic.errors import UserError, nearest

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz", ".json.gz", ".csv.gz")
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class Row:
    """One row, and where it came from ("data.jsonl, row 3") for messages about it."""

    where: str
    fields: Mapping[str, Any]


def read(path: Path | str, split: str = "train", subset: str | None = None) -> list[Row]:
    """The rows of a file, or of a hub dataset where no such file is there and the name reads `org/name`.

    A row's number is that of its line (JSONL) or of its record (JSON, CSV, Parquet; from 1, without the header).
    CSV cells are texts: "025" stays what it is. A `.json` file may hold a list, or one object a line.

    Raises:
        UserError: no such file, not readable as what its name says, or no rows.
    """
    file = Path(path)
    if not file.exists() and looks_like_hub(str(path)):
        return _hub(str(path), split, subset)
    name = file.name.lower()
    if file.is_dir():
        raise UserError(f'task.path: "{file}" is a folder; name a file in it')
    if not file.exists():
        raise UserError(f'task.path: there is no file "{file}"')
    try:
        if name.endswith(".parquet"):
            rows = _parquet(file)
        elif name.endswith((".csv", ".csv.gz")):
            rows = _csv(file)
        else:
            rows = _json(file, may_be_list=name.endswith((".json", ".json.gz")))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f'task.path: "{file}" cannot be read ({error})') from None
    if not rows:
        raise UserError(f'task.path: "{file}" has no rows')
    return rows


def looks_like_hub(path: str) -> bool:
    """Whether a name could be `org/name` on the hub rather than a file that is missing."""
    return bool(_HUB.fullmatch(path)) and not path.lower().endswith((*SUFFIXES, ".gz"))


def _bytes(file: Path) -> bytes:
    data = file.read_bytes()
    return gzip.decompress(data) if file.name.lower().endswith(".gz") else data


def _json(file: Path, may_be_list: bool) -> list[Row]:
    text = _bytes(file).decode("utf-8-sig")
    if may_be_list and text.lstrip()[:1] == "[":
        try:
            content = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise UserError(f"{file}: not valid JSON ({error})") from None
        records = [(f"{file}, row {number}", record) for number, record in enumerate(content, 1)]
    else:
        records = []
        for number, line in enumerate(text.split("\n"), 1):  # splitlines would cut at U+2028 inside a string
            where = f"{file}, row {number}"
            if line.strip():
                try:
                    records.append((where, json.loads(line)))
                except (json.JSONDecodeError, RecursionError) as error:
                    reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
                    raise UserError(f"{where}: not valid JSON ({reason})") from None
    for where, record in records:
        if not isinstance(record, dict):
            raise UserError(f"{where}: expected a JSON object, got {type(record).__name__}")
    return [Row(where, record) for where, record in records]


def _csv(file: Path) -> list[Row]:
    import polars as pl

    try:
        frame = pl.read_csv(io.BytesIO(_bytes(file)), infer_schema=False)
    except pl.exceptions.NoDataError:
        return []
    except pl.exceptions.PolarsError as error:
        raise UserError(f'task.path: "{file}" is not readable as CSV ({str(error).splitlines()[0]})') from None
    return [Row(f"{file}, row {number}", record) for number, record in enumerate(frame.iter_rows(named=True), 1)]


def _parquet(file: Path) -> list[Row]:
    import polars as pl

    try:
        frame = pl.read_parquet(file)
    except pl.exceptions.PolarsError as error:
        raise UserError(f'task.path: "{file}" is not readable as Parquet ({str(error).splitlines()[0]})') from None
    return [Row(f"{file}, row {number}", record) for number, record in enumerate(frame.iter_rows(named=True), 1)]


def _hub(name: str, split: str, subset: str | None) -> list[Row]:
    try:
        import datasets
    except ModuleNotFoundError:
        raise UserError(
            f'task.path: there is no file "{name}", and datasets (pip install datasets) is not there to ask the hub for it'
        ) from None
    try:
        records = datasets.load_dataset(name, subset, split=split)
        rows = [Row(f"{name} ({split}), row {number}", dict(record)) for number, record in enumerate(records, 1)]
    except Exception as error:  # the network, the hub, a wrong subset or split: whatever it is, it has one cause
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f'task.path: there is no file "{name}", and the hub gave no dataset of that name '
            f"(split {split!r}, subset {subset!r}): {type(error).__name__}: {reason}"
        ) from None
    if not rows:
        raise UserError(f'task.path: dataset "{name}" has no rows in split "{split}"')
    return rows


def find(row: Row, path: str) -> Any:
    """The value at a column name or a dotted path (`reward_model.ground_truth.target`, `final_answer.0`).

    Raises:
        UserError: there is no such column, with the nearest one.
    """
    if path in row.fields:
        return row.fields[path]
    value: Any = row.fields
    walked: list[str] = []
    for part in path.split("."):
        if isinstance(value, Mapping):
            if part not in value:
                raise UserError(
                    f'{row.where}: there is no column "{path}"'
                    f"{nearest(path, ['.'.join([*walked, str(key)]) for key in value])}"
                )
            value = value[part]
        elif isinstance(value, Sequence) and not isinstance(value, str) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise UserError(
                f'{row.where}: there is no column "{path}": "{".".join(walked)}" holds {kind(value)}, without "{part}"'
            )
        walked.append(part)
    return value


def kind(value: Any) -> str:
    """What a value is, in a user's words; whole and other numbers are one kind."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a table" if isinstance(value, Mapping) else "a list"


class NoAnswerError(UserError):
    """A row whose gold answer is not there; `task.unparsable = "skip"` leaves it out."""


def is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, (str, list, dict)) and not value) or str(value).strip() == ""


def refuse_mixed(rows: Sequence[Row], values: Sequence[Any], column: str) -> None:
    """Refuse a column whose rows hold different kinds of values: compared as text, "1" and 1.0 would differ.

    Raises:
        UserError: names the first row that departs from the first one.
    """
    for row, value in zip(rows, values, strict=True):
        if kind(value) != kind(values[0]):
            raise UserError(
                f'{row.where}: column "{column}" holds {kind(value)} ({value!r:.40}) where row one holds '
                f"{kind(values[0])} ({values[0]!r:.40}); give every row one type"
            )


def messages(value: Any, where: str) -> list[dict[str, Any]]:
    """Chat messages in a model's own shape: role and content; ShareGPT's from/value are renamed.

    Parquet gives every message the keys of all others: those that hold nothing are dropped.

    Raises:
        UserError: not a list of messages, or one without a role.
    """
    if not isinstance(value, (list, tuple)) or not value:
        raise UserError(f"{where}: expected chat messages, a list of role and content, got {kind(value)}")
    out = []
    for number, message in enumerate(value, 1):
        if not isinstance(message, Mapping):
            raise UserError(f"{where}: message {number} is {kind(message)}, not a table with role and content")
        plain = {key: part for key, part in message.items() if part is not None}
        role = plain.pop("role", None) or SHAREGPT.get(str(plain.get("from")), plain.get("from"))
        if "from" in plain and "value" in plain:
            plain = {key: part for key, part in plain.items() if key not in ("from", "value")} | {
                "content": plain["value"]
            }
        if not isinstance(role, str) or ("content" not in plain and "tool_calls" not in plain):
            raise UserError(
                f"{where}: message {number} lacks role or content, it has {', '.join(message) or 'nothing'}"
            )
        out.append({"role": role, "content": "", **plain})
    return out


SHAREGPT = {
    "human": "user",
    "gpt": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
}
