"""Damaged files are read in part or refused in a sentence. DELPHIC_FUZZ: damaged files of each kind (60)."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from log_files import database, event, head, jsonl, put, varint, verl, write

from delphic.errors import UserError
from delphic.runs.areal import areal_rows
from delphic.runs.dumps import read_rollouts
from delphic.runs.tensorboard import read_events
from delphic.runs.trackio import read_trackio


def damage(data: bytes, draw: random.Random) -> bytes:
    """Up to eight flipped bytes, or a cut, or both, or a piece that is there twice."""
    out = bytearray(data)
    kind = draw.randrange(4)
    if kind != 1:
        for _ in range(draw.randint(1, 8)):
            out[draw.randrange(len(out))] = draw.randrange(256)
    if kind in (1, 2):
        del out[draw.randrange(len(out)) :]
    if kind == 3:
        place = draw.randrange(len(out))
        out[place:place] = out[: draw.randrange(40)]
    return bytes(out)


def reads(path: Path, read: Any) -> bool:
    """Whether it was read; a UserError is the one exception that may come."""
    try:
        read(path)
        return True
    except UserError:
        return False


def read_areal(path: Path) -> None:
    with path.open(encoding="utf-8", errors="replace") as lines:
        areal_rows(lines)


@pytest.mark.parametrize("kind", ["events", "unchecked", "trackio", "areal", "jsonl", "parquet"])
def test_damaged_files_are_read_or_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """unchecked: as if the checksum were right, so that damage reaches the reader of the messages."""
    draw = random.Random(kind)
    rows = [{**row, "uid": str(i // 2)} for i, row in enumerate(verl(1, ["a", "a", "b", "b"], [0, 1, 1, 1]))]
    path, read = tmp_path / "a.jsonl", read_rollouts
    if kind in ("events", "unchecked"):
        proto = put(1, 0, varint(9)) + put(10, 2, varint(77))
        write(path, head(), *(event(s, s, reward=0.5, tensor=proto) for s in range(4)))
        read = read_events  # type: ignore[assignment]
        if kind == "unchecked":
            monkeypatch.setattr("delphic.runs.tensorboard._sound", lambda _data, starts, _lengths: [True] * len(starts))
    elif kind == "trackio":
        path = database(tmp_path / "a.db", [("1", "run", s, '{"x": 1}') for s in range(4)])
        read = read_trackio  # type: ignore[assignment]
    elif kind == "areal":
        path.write_text("Train step 1/9 done\n│ a │ 1.0 │ b │ 2 │\n" * 3)
        read = read_areal  # type: ignore[assignment]
    elif kind == "jsonl":
        jsonl(path, rows)
    else:
        path = tmp_path / "a.parquet"
        pl.DataFrame(rows).write_parquet(path)
    good = path.read_bytes()
    count = int(os.environ.get("DELPHIC_FUZZ", "60"))
    read_well = 0
    for _ in range(count):
        path.write_bytes(damage(good, draw))
        read_well += reads(path, read)
    assert reads(write(path, good), read)
    assert kind == "parquet" or read_well > 0  # not all is refused
