"""Files of completions, whatever framework wrote them, one completion at a time."""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from delphic.errors import UserError, nearest
from delphic.runs.synonyms import COMPLETIONS, GROUPS, REWARDS

_STEPS = ("step", "iteration", "global_step", "training_step")
_PROMPTS = ("prompt", "input", "question")
_LENGTHS = ("completion_length", "response_length", "length")
_TRUNCATED = ("truncated", "is_truncated", "overlong")
_UNREADABLE = (
    pa.ArrowException,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    OSError,
    ValueError,
    MemoryError,
)
_ADVANTAGES = ("advantage", "advantages")
_STEP_IN_NAME = re.compile(r"(?:completions_|(?:train_data_|global_)?step_?|iteration_)(\d+)(?:\.\w+)*")
_READ = (*GROUPS, *REWARDS, *_STEPS, *_PROMPTS, *COMPLETIONS, *_LENGTHS, *_TRUNCATED, *_ADVANTAGES)


@dataclass(frozen=True)
class Completion:
    """step, key (of its group), prompt (text), length (tokens), truncated, advantage: None where the file has none. scope:
    where a key or a prompt means one group, if there is no step. reward: NaN where it was not judged."""

    scope: int
    step: int | None
    key: str | None
    prompt: str | None
    text: str | None
    reward: float
    length: float | None = None
    truncated: bool | None = None
    advantage: float | None = None


@dataclass
class Source:
    """One file. number: its place among those read. key: the column of groups that the user named. problems: filled."""

    path: Path
    number: int
    key: str | None
    problems: list[str]


def read_completions(source: Source) -> Iterator[Completion]:
    """The completions of a Parquet, CSV, JSONL or gzipped JSONL file, in its order.

    Raises:
        UserError: it cannot be read, holds no rewards, or lacks the column that the user named.
    """
    if source.path.suffix == ".parquet":
        yield from _parquet(source)
        return
    if source.path.suffix == ".csv":
        yield from _csv(source)
        return
    broken = count = 0
    try:
        with _open(source.path) as lines:
            for line in lines:
                if not line.strip():
                    continue
                count += 1
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    row = None
                if not isinstance(row, dict):
                    broken += 1
                elif isinstance(row.get("traces"), list):
                    yield from _episode(row, source)
                else:
                    yield _flat(row, source)
    except FileNotFoundError:
        raise UserError(f"{source.path}: no such file") from None
    except EOFError:
        source.problems.append(f"{source.path.name}: its end was cut off")
    except OSError as error:
        raise UserError(f"{source.path}: cannot be read ({error})") from None
    if broken and broken == count:
        raise UserError(f"{source.path}: no JSON objects, one a line, in it")
    if broken:
        source.problems.append(f"{source.path.name}: {broken} lines are no JSON objects, and were left out")


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


# -- Parquet --------------------------------------------------------------------------------------------------------


def _parquet(source: Source) -> Iterator[Completion]:
    """TRL's completions, delphic's own rollouts, or any table with the same columns."""
    try:  # by pyarrow, which raises where the bytes are damaged
        with pq.ParquetFile(source.path) as file:
            table = _wanted(file, source)
    except FileNotFoundError:
        raise UserError(f"{source.path}: no such file") from None
    except _UNREADABLE as error:
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{source.path}: not a readable Parquet file ({text})") from None
    if not any(name in table.columns for name in REWARDS):
        table = _sum_of_functions(table, source)
    for row in table.iter_rows(named=True):
        yield _flat(row, source)


def _wanted(file: pq.ParquetFile, source: Source) -> pl.DataFrame:
    """The columns that a completion needs; a mask of delphic's own files is read for its length."""
    kinds = dict(zip(file.schema_arrow.names, file.schema_arrow.types, strict=True))
    if source.key is not None and source.key not in kinds:
        raise UserError(f'{source.path}: no column "{source.key}"{nearest(source.key, kinds)}')
    names = {name for name in kinds if name in _READ or name == source.key}
    if not names & set(REWARDS):
        names |= {name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_floating(kind)}
    masked = kinds.get("loss_mask") == pa.list_(pa.bool_()) and not names & set(_LENGTHS)
    arrow = file.read(columns=[name for name in kinds if name in names] + ["loss_mask"] * masked)
    arrow.validate(full=True)
    # a new table, since polars breaks off at a field's damaged metadata
    table = pl.DataFrame(pa.table(dict(zip(arrow.column_names, arrow.columns, strict=True))))
    if not masked:
        return table
    return table.with_columns(pl.col("loss_mask").list.sum().alias("length")).drop("loss_mask")


def _sum_of_functions(table: pl.DataFrame, source: Source) -> pl.DataFrame:
    """TRL keeps the value of each reward function, and neither their weights nor their sum."""
    known = {*_STEPS, *_LENGTHS, *GROUPS, *_ADVANTAGES}
    numbers = [c for c, kind in table.schema.items() if kind.is_numeric() and c not in known and c != source.key]
    named = [name for name in numbers if "reward" in name.lower()] or numbers
    if not named:
        raise UserError(f"{source.path}: no column of rewards ({', '.join(REWARDS)}){nearest('reward', table.columns)}")
    if len(named) > 1:
        source.problems.append(f"the reward is the sum of {', '.join(named)}; their weights are not in the file")
    # a function that did not judge a completion leaves a hole there; the sum is over those that did
    some = pl.any_horizontal(pl.col(name).is_not_null() & pl.col(name).is_not_nan() for name in named)
    total = pl.sum_horizontal(pl.col(name).cast(pl.Float64).fill_nan(None) for name in named)
    return table.with_columns(pl.when(some).then(total).alias("reward"))


def _csv(source: Source) -> Iterator[Completion]:
    try:
        with source.path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            for row in csv.DictReader(file):
                yield _flat({name: value or None for name, value in row.items()}, source)
    except (csv.Error, OSError) as error:
        raise UserError(f"{source.path}: not a readable CSV file ({error})") from None


# -- one row --------------------------------------------------------------------------------------------------------


def _flat(row: Mapping[str, Any], source: Source) -> Completion:
    """A row with one completion: verl, NeMo-RL, AReaL, tinker, TRL, delphic."""
    reward = _first(row, REWARDS)
    if reward is None and not any(name in row for name in REWARDS):
        raise UserError(f"{source.path}: no column of rewards ({', '.join(REWARDS)}){nearest('reward', row)}")
    length = _first(row, _LENGTHS)
    if length is None and "seqlen" in row and "prompt_len" in row:
        length = _number(row["seqlen"]) - _number(row["prompt_len"])
    if length is None and isinstance(row.get("steps"), list):  # turns of tinker's summaries
        length = sum(_number(turn.get("ac_len")) for turn in row["steps"] if isinstance(turn, dict))
    return Completion(
        scope=source.number,
        step=_step(_first(row, _STEPS), source.path, "tail_version" in row),
        key=_key(row, source),
        prompt=_text(_first(row, _PROMPTS)),
        text=_text(_first(row, COMPLETIONS)),
        reward=_number(reward),
        length=_known(length),
        truncated=_flag(_first(row, _TRUNCATED)),
        advantage=_known(_first(row, _ADVANTAGES)),
    )


def _episode(row: Mapping[str, Any], source: Source) -> Iterator[Completion]:
    """prime-rl: an episode of a group, with a trace for each agent. Agents do not share a prompt, so they do not share a
    group either; an episode that failed has no trace."""
    group, run = _object(row.get("group")), _object(row.get("run"))
    step = _first(_object(run.get("work")) or run, _STEPS)
    for place, trace in enumerate(row["traces"]):
        if not isinstance(trace, dict):
            continue
        if source.key is not None:
            key = _key({**row, **trace}, source)
        else:
            key = None if group.get("id") is None else f"{group['id']}/{trace.get('agent', place)}"
        nodes = trace.get("nodes")
        said = [_object(_object(node).get("message")) for node in (nodes if isinstance(nodes, list) else [])]
        asked = [m.get("content") for m in said if m.get("role") in ("system", "user")]
        answered = [m.get("content") for m in said if m.get("role") == "assistant"]
        yield Completion(
            scope=source.number,
            step=_step(step, source.path, False),
            key=key,
            prompt=_text(asked[:2]) if asked else None,  # the system's words and the task
            text=_text(answered[-1]) if answered else None,
            reward=_weighted(trace),
            truncated=_flag(trace.get("is_truncated")),
        )


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _weighted(trace: Mapping[str, Any]) -> float:
    """Σ score · weight over the reward functions that judged the trace."""
    if "reward" in trace:
        return _number(trace["reward"])
    rewards = trace.get("rewards")
    if not isinstance(rewards, dict):
        return _number(rewards)
    parts = [
        _number(r.get("score")) * _number(r.get("weight", 1)) if isinstance(r, dict) else _number(r)
        for r in rewards.values()
        if r is not None
    ]
    return sum(parts) if parts else math.nan


def _key(row: Mapping[str, Any], source: Source) -> str | None:
    if source.key is not None:
        if source.key not in row:
            raise UserError(f'{source.path}: no column "{source.key}"{nearest(source.key, row)}')
        return None if row[source.key] is None else str(row[source.key])
    value = _first(row, GROUPS)
    return None if value is None or isinstance(value, dict | list) else str(value)


def _first(row: Mapping[str, Any], names: Iterable[str]) -> Any:
    """The first of the columns that holds anything."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def _step(value: Any, path: Path, by_version: bool) -> int | None:
    """The row's own step, else that of the file's name or its folders'. by_version: AReaL names a folder by the version of
    the policy and the file by the task."""
    number = _number(value)
    if abs(number) < 2**53:  # a larger one is damage, and no integer of a column
        return int(number)
    if by_version:
        names = [path.parent.name] if path.name.split(".")[0].isdecimal() and path.parent.name.isdecimal() else []
    else:
        found = (_STEP_IN_NAME.fullmatch(part) for part in reversed(path.parts[-4:]))
        names = [match[1] for match in found if match]
    return next((int(name) for name in names if len(name) < 16), None)


def _number(value: Any) -> float:
    """NaN for what is no number; a list of one is its element (NeMo-RL)."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _known(value: Any) -> float | None:
    number = _number(value)
    return number if math.isfinite(number) else None


def _flag(value: Any) -> bool | None:
    if isinstance(value, str):
        return value.strip().lower() in ("true", "1", "yes")
    return None if value is None else bool(value)


def _text(value: Any) -> str | None:
    """Text, or the messages of a conversation as JSON (equal conversations are equal texts)."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
