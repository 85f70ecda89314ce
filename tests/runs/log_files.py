"""Real logs and their manifest, and small files of every kind, written independently of the readers."""

from __future__ import annotations

import csv
import gzip
import json
import os
import sqlite3
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def real(name: str) -> Path:
    """A real log; the test is skipped where it is absent. $DELPHIC_SHARED names shared/data, whose neighbour is runs."""
    repository = Path(__file__).resolve().parents[2]
    roots = [repository / "shared" / "runs", repository.parent / "shared" / "runs"]
    if os.environ.get("DELPHIC_SHARED"):
        roots.insert(0, Path(os.environ["DELPHIC_SHARED"]).parent / "runs")
    for root in roots:
        if (root / name).exists():
            return root / name
    pytest.skip(f"the real log {name} is not here (set DELPHIC_SHARED)")


def manifest(name: str) -> dict[str, str]:
    with real("MANIFEST.csv").open(encoding="utf-8") as file:
        return next(row for row in csv.DictReader(file) if row["file"] == name)


def agrees(rows: list[dict[str, float]], name: str) -> None:
    """Points, step range, first, last and mean reward of the manifest, which gives four digits."""
    entry = manifest(name)
    points = [(row["step"], row[entry["reward_key"]]) for row in rows if entry["reward_key"] in row]
    steps, values = np.array(points).T
    assert len(points) == int(entry["points"])
    assert (steps[0], steps[-1]) == (int(entry["step_first"]), int(entry["step_last"]))
    for value, key in ((values[0], "reward_first"), (values[-1], "reward_last"), (values.mean(), "reward_mean")):
        assert value == pytest.approx(float(entry[key]), rel=6e-4, abs=1e-9)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def put(number: int, kind: int, data: bytes) -> bytes:
    return varint(number << 3 | kind) + (varint(len(data)) if kind == 2 else b"") + data


def crc32c(data: bytes) -> int:
    """Bit by bit: another way than the reader's table."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def record(data: bytes) -> bytes:
    def masked(part: bytes) -> bytes:
        crc = crc32c(part)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def event(step: int, wall_time: float = 0.0, **tags: float | bytes) -> bytes:
    """An event of scalars; a value that is bytes is a TensorProto."""
    values = b""
    for tag, value in tags.items():
        content = put(8, 2, value) if isinstance(value, bytes) else put(2, 5, struct.pack("<f", value))
        values += put(1, 2, put(1, 2, tag.replace("__", "/").encode()) + content)
    return record(put(1, 1, struct.pack("<d", wall_time)) + put(2, 0, varint(step)) + put(5, 2, values))


def head(wall_time: float = 0.0) -> bytes:
    return record(put(1, 1, struct.pack("<d", wall_time)) + put(3, 2, b"brain.Event:2"))


def write(path: Path, *parts: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(parts))
    return path


def database(path: Path, rows: list[tuple[Any, ...]], columns: str = "timestamp, run_name, step, metrics") -> Path:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")  # as trackio does
    connection.execute(f"CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, {columns})")
    marks = ", ".join("?" * len(columns.split(",")))
    connection.executemany(f"INSERT INTO metrics ({columns}) VALUES ({marks})", rows)
    connection.commit()
    connection.close()
    return path


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def verl(step: int, prompts: list[str], rewards: list[float]) -> list[dict[str, Any]]:
    return [
        {"input": p, "output": f"answer {i}", "gts": "x", "score": r, "step": step}
        for i, (p, r) in enumerate(zip(prompts, rewards, strict=True))
    ]
