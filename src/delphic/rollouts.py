"""Rollouts: what was sampled, what it earned, and who sampled it. The one structure that flows through everything.

Groups are ids that travel with the completions. Nothing is regrouped by position, groups may be ragged, and any
order of rows gives the same result.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from delphic.errors import UserError

Tokens = np.ndarray  # int32 [T_n]


@dataclass(frozen=True)
class Rollouts:
    """N completions.

    | field | shape | meaning |
    |---|---|---|
    | group | [N] int64 | id of the group (one prompt, sampled G times) |
    | prompt_tokens | N × [P_n] int32 | the prompt as sampled |
    | tokens | N × [T_n] int32 | the completion as sampled, end token included |
    | loss_mask | N × [T_n] bool | true where the policy wrote the token (false: tool output and the like) |
    | behaviour_logp | N × [T_n] float32 | nats, at the sampler's own temperature; empty where unknown |
    | entropy | N × [T_n] float32 | nats, exact, taken at sampling; empty where unknown |
    | reward | [N] float64 | weighted sum of the reward functions; NaN takes the completion out |
    | components | name → [N] float64 | each reward function's values; NaN where it gave none |
    | version | [N] int64 | optimiser updates of the policy that sampled it |
    | truncated | [N] bool | stopped by the length limit |
    | problem | [N] int64 | index of the problem in its task, −1 if unknown |
    | row | [N] int64 | place in its step's draw: with (seed, step) it fixes the row's randomness |
    | value | [N] float64 | V(x) where a task or a Monte-Carlo budget gave it, else NaN |
    | prompt, completion | N × str | for people and for reward functions |
    """

    group: np.ndarray
    prompt_tokens: list[Tokens]
    tokens: list[Tokens]
    loss_mask: list[np.ndarray]
    behaviour_logp: list[np.ndarray]
    entropy: list[np.ndarray]
    reward: np.ndarray
    version: np.ndarray
    truncated: np.ndarray
    problem: np.ndarray
    row: np.ndarray
    value: np.ndarray
    prompt: list[str]
    completion: list[str]
    components: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.group)
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name != "components" and len(value) != n:
                raise ValueError(f"rollouts.{item.name} has {len(value)} rows, the group ids have {n}")
        for name, values in self.components.items():
            if len(values) != n:
                raise ValueError(f"rollouts.components[{name}] has {len(values)} rows, the group ids have {n}")
        for i in range(n):
            if len(self.loss_mask[i]) != len(self.tokens[i]):
                raise ValueError(
                    f"rollouts row {i}: {len(self.tokens[i])} tokens, loss mask of {len(self.loss_mask[i])}"
                )
            for name in ("behaviour_logp", "entropy"):
                if len(getattr(self, name)[i]) not in (0, len(self.tokens[i])):
                    raise ValueError(f"rollouts row {i}: {name} must be empty or have one value a token")

    def __len__(self) -> int:
        return len(self.group)

    @property
    def lengths(self) -> np.ndarray:
        """[N] tokens that the policy wrote (the loss mask's sum)."""
        return np.array([int(mask.sum()) for mask in self.loss_mask], dtype=np.int64)

    @property
    def has_behaviour(self) -> bool:
        """Whether every completion carries its behaviour policy's log-probs."""
        return all(len(logp) == len(tokens) for logp, tokens in zip(self.behaviour_logp, self.tokens, strict=True))

    def select(self, rows: Sequence[int] | np.ndarray) -> Rollouts:
        """The given rows, in the given order."""
        index = np.asarray(rows, dtype=np.int64)
        picked: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "components":
                picked[item.name] = {name: part[index] for name, part in value.items()}
            elif isinstance(value, np.ndarray):
                picked[item.name] = value[index]
            else:
                picked[item.name] = [value[i] for i in index]
        return Rollouts(**picked)

    def with_(self, **changes: Any) -> Rollouts:
        """A copy with some fields replaced."""
        return replace(self, **changes)

    @staticmethod
    def concat(parts: Sequence[Rollouts]) -> Rollouts:
        """All rows of several rollouts; group ids must already be distinct between them where groups are. A reward
        function that some of them lack is NaN there."""
        joined: dict[str, Any] = {}
        for item in fields(Rollouts):
            values = [getattr(part, item.name) for part in parts]
            if item.name == "components":
                names = dict.fromkeys(name for part in values for name in part)
                absent = [np.full(len(part), np.nan) for part in parts]
                joined[item.name] = {
                    name: np.concatenate([v.get(name, nan) for v, nan in zip(values, absent, strict=True)])
                    for name in names
                }
            elif isinstance(values[0], np.ndarray):
                joined[item.name] = np.concatenate(values)
            else:
                joined[item.name] = [x for v in values for x in v]
        return Rollouts(**joined)

    # -- Parquet -----------------------------------------------------------------------------------------------

    def write(self, path: Path, meta: Mapping[str, Any] | None = None) -> None:
        """One Parquet file, written beside `path` and renamed, so that a crash leaves the old file or the new one."""
        columns: dict[str, pa.Array] = {}
        for item in fields(self):
            if item.name == "components":
                continue
            value, arrow = getattr(self, item.name), _ARROW[item.name]
            columns[item.name] = pa.array(list(value) if isinstance(value, list) else value, type=arrow)
        for name, values in self.components.items():
            columns[f"reward/{name}"] = pa.array(values, type=pa.float64())
        table = pa.table(columns).replace_schema_metadata({"delphic": json.dumps({"format": 1, **(meta or {})})})
        temporary = path.with_name(f".{path.name}.part")
        pq.write_table(table, temporary, compression="zstd")
        sync_to_disk(temporary)
        os.replace(temporary, path)

    @staticmethod
    def read(path: Path) -> tuple[Rollouts, dict[str, Any]]:
        """The rollouts of one Parquet file and its metadata.

        Raises:
            UserError: not a Parquet file, a needed column is missing, or one holds something else than it should.
        """
        try:
            table = pq.read_table(path, partitioning=None)
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"{path}: not a readable Parquet file ({error})") from None
        missing = [name for name in _ARROW if name not in table.column_names and name in _REQUIRED]
        if missing:
            raise UserError(f"{path}: not a rollout file, column {missing[0]} is missing")
        n = table.num_rows
        data: dict[str, Any] = {}
        for name, arrow in _ARROW.items():
            if name not in table.column_names:
                data[name] = _default(name, table, n)
                continue
            column = _column(table, name, arrow, path)
            if pa.types.is_list(arrow):
                data[name] = _split(column, _NUMPY[arrow.value_type])
            elif pa.types.is_string(arrow):
                data[name] = [text or "" for text in column.to_pylist()]
            else:
                data[name] = np.asarray(column.to_numpy(zero_copy_only=False), dtype=_NUMPY[arrow])
        components = {
            name.removeprefix("reward/"): _column(table, name, pa.float64(), path).to_numpy(zero_copy_only=False)
            for name in table.column_names
            if name.startswith("reward/")
        }
        meta = json.loads((table.schema.metadata or {}).get(b"delphic", b"{}"))
        try:
            return Rollouts(**data, components=components), meta
        except ValueError as error:
            raise UserError(f"{path}: {error}") from None


_ARROW: dict[str, pa.DataType] = {
    "group": pa.int64(),
    "prompt_tokens": pa.list_(pa.int32()),
    "tokens": pa.list_(pa.int32()),
    "loss_mask": pa.list_(pa.bool_()),
    "behaviour_logp": pa.list_(pa.float32()),
    "entropy": pa.list_(pa.float32()),
    "reward": pa.float64(),
    "version": pa.int64(),
    "truncated": pa.bool_(),
    "problem": pa.int64(),
    "row": pa.int64(),
    "value": pa.float64(),
    "prompt": pa.string(),
    "completion": pa.string(),
}
_NUMPY = {
    pa.int64(): np.int64,
    pa.int32(): np.int32,
    pa.bool_(): np.bool_,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}
_MAY_MISS = ("behaviour_logp", "entropy", "prompt", "completion")  # and every float64 column, as NaN
_REQUIRED = ("group", "prompt_tokens", "tokens", "reward")


def _column(table: pa.Table, name: str, arrow: pa.DataType, path: Path) -> Any:
    """A column in the type that it should have; missing values only where they mean "unknown"."""
    try:
        column = table.column(name).cast(arrow).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(f"{path}: column {name} should hold {arrow} ({error})") from None
    inside = pa.types.is_list(arrow) and column.values.null_count
    if inside or (name not in _MAY_MISS and arrow != pa.float64() and column.null_count):
        raise UserError(f"{path}: column {name} has missing values")
    return column


def _split(column: Any, dtype: Any) -> list[np.ndarray]:
    offsets = column.offsets.to_numpy()
    values = column.values.to_numpy(zero_copy_only=False).astype(dtype)
    return [values[a:b] for a, b in itertools.pairwise(offsets)]


def _default(name: str, table: pa.Table, n: int) -> Any:
    """What an optional column means when a foreign file leaves it out."""
    if name == "loss_mask":
        return [np.ones(len(tokens), dtype=bool) for tokens in table.column("tokens").to_pylist()]
    if name in ("behaviour_logp", "entropy"):
        return [np.zeros(0, dtype=np.float32) for _ in range(n)]
    if name in ("prompt", "completion"):
        return [""] * n
    return {
        "version": np.zeros(n, dtype=np.int64),
        "truncated": np.zeros(n, dtype=bool),
        "problem": np.full(n, -1, dtype=np.int64),
        "row": np.arange(n, dtype=np.int64),
        "value": np.full(n, np.nan),
    }[name]


def sync_to_disk(path: Path) -> None:
    """fsync a written file, so that the rename after it cannot outlive its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
