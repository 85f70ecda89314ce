"""TensorBoard's event files as rows of scalars: TFRecord framing and the few protobuf fields that hold them.

Read without TensorFlow, TensorBoard or protobuf. Damage ends or thins what is read, and is told; it raises nothing.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delphic.errors import UserError

_HEADER, _FOOTER = 12, 4  # length and its checksum; checksum of the data
_LONGEST = 1 << 30  # a length above is damage: no event of a run is that long
_CHECKED = 1 << 14  # longer records hold images and histograms, of which nothing is used
_SCALARS = {1: "<f", 2: "<d", 3: "<i", 9: "<q", 14: "bfloat16", 19: "<e"}  # TensorProto.dtype → of its tensor_content
_FIELDS = {5: "<f", 6: "<d"}  # float_val, double_val


@dataclass
class Events:
    """What one file says. values: tag → step → value. wall_time: of the first event, seconds; infinite without one."""

    path: Path
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    wall_time: float = float("inf")
    problems: list[str] = field(default_factory=list)


def read_events(path: Path) -> tuple[list[dict[str, float]], list[str]]:
    """The scalars of an event file, or of all event files below a folder.

    Files of one folder are one run, in the order in which they were begun: a file that goes on inside the steps of those
    before it is a resume, and its values replace theirs from its first step on, tag by tag; one that starts again at the
    first step begins another session, whose rows follow. Folders with mostly the same tags are one writer, too (a trainer that
    makes a new folder when it goes on); others (explorer/ and trainer/) are writers of one run: their rows are merged by step.

    Returns: rows {"step": …, tag: value, …} in ascending order of steps within each session; sentences on problems.

    Raises:
        UserError: no such file, no event file there, not a number in it, or several runs in folders of their own.
    """
    files = sorted(p for p in path.rglob("*tfevents*") if p.is_file()) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path}: there is no event file (*tfevents*) below it")
    read = [_read_file(file) for file in files]
    problems = [problem for events in read for problem in events.problems]
    writers = [_sessions(files) for files in _writers([events for events in read if events.values])]
    if not writers:
        raise UserError(f"{path}: there are no scalars in it" + "".join(f"; {p}" for p in problems[:1]))
    for parts in writers:
        _refuse_several(path, parts)
    writers.sort(key=len, reverse=True)
    sessions = writers[0]  # the writer with most restarts leads; the others join the session begun nearest in time
    for part in (part for parts in writers[1:] for part in parts):
        near = min(sessions, key=lambda s: abs(s.wall_time - part.wall_time))
        for tag, values in part.values.items():
            near.values[tag] = {**near.values.get(tag, {}), **values}
    return [row for session in sorted(sessions, key=lambda s: s.wall_time) for row in _rows(session)], problems


def _rows(events: Events) -> Iterator[dict[str, float]]:
    by_step: dict[int, dict[str, float]] = {}
    for tag, values in events.values.items():
        for step, value in values.items():
            by_step.setdefault(step, {})[tag] = value
    for step in sorted(by_step):
        yield {**by_step[step], "step": step}


def _writers(read: list[Events]) -> list[list[Events]]:
    """Files by writer, each in the order in which they were begun: those of one folder, or of folders that share half of their tags."""
    folders: dict[Path, list[Events]] = {}
    for events in sorted(read, key=lambda e: (e.wall_time, e.path)):
        folders.setdefault(events.path.parent, []).append(events)
    writers: list[tuple[set[str], list[Events]]] = []
    for files in folders.values():
        tags = {tag for events in files for tag in events.values}
        mine = next((w for w in writers if 2 * len(w[0] & tags) >= min(len(w[0]), len(tags))), None)
        if mine is None:
            writers.append((tags, files))
        else:
            mine[0].update(tags)
            mine[1].extend(files)
    return [sorted(files, key=lambda e: (e.wall_time, e.path)) for _, files in writers]


def _refuse_several(path: Path, sessions: list[Events]) -> None:
    """Sessions of about the same length that were written in folders of their own are runs of their own."""
    lengths = [max(map(len, session.values.values())) for session in sessions]
    long = {s.path.parent for s, length in zip(sessions, lengths, strict=True) if 2 * length >= max(lengths)}
    if len(long) > 1:
        names = sorted(str(folder.relative_to(path)) for folder in long)
        listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        raise UserError(f"{path}: event files of several runs ({listed}); name one folder")


def _sessions(files: list[Events]) -> list[Events]:
    """Files of one writer joined: as resumes where they go on, as new sessions where they start again."""
    sessions: list[Events] = []
    for events in files:
        now = sessions[-1] if sessions else None
        shared = [tag for tag in events.values if now is not None and tag in now.values]
        if now is None or (shared and _first(events, shared) <= _first(now, shared)):
            sessions.append(events)
            continue
        for tag, values in events.values.items():
            begin = min(values)
            kept = {step: value for step, value in now.values.get(tag, {}).items() if step < begin}
            now.values[tag] = {**kept, **values}
    return sessions


def _first(events: Events, tags: list[str]) -> int:
    return min(min(events.values[tag]) for tag in tags)


def _read_file(path: Path) -> Events:
    events = Events(path)
    try:
        with path.open("rb") as handle:
            if not path.stat().st_size:
                return events
            with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
                starts, lengths = _frames(data, events)
                broken = 0
                for start, length, sound in zip(starts, lengths, _sound(data, starts, lengths), strict=True):
                    try:
                        if not sound:
                            raise _DamagedError
                        _read_event(data[start : start + length], events)
                    except (_DamagedError, struct.error):
                        broken += 1
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    if broken:
        events.problems.append(f"{path.name}: {broken} damaged records were left out")
    return events


def _frames(data: mmap.mmap, events: Events) -> tuple[list[int], list[int]]:
    """Start and length of each record, up to the first whose length cannot be right."""
    starts, lengths, place, size = [], [], 0, len(data)
    while place < size:
        header = data[place : place + _HEADER]
        length = int.from_bytes(header[:8], "little")
        masked = int.from_bytes(header[8:], "little")
        if len(header) == _HEADER and (length > _LONGEST or masked != _mask(_crc(header[:8]))):
            events.problems.append(
                f"{events.path.name}: damaged from byte {place} of {size} on; what follows is not read"
            )
            break
        if len(header) < _HEADER or place + _HEADER + length + _FOOTER > size:
            events.problems.append(f"{events.path.name}: the last record is cut off")
            break
        starts.append(place + _HEADER)
        lengths.append(length)
        place += _HEADER + length + _FOOTER
    return starts, lengths


def _table() -> NDArray[np.uint32]:
    """CRC-32C by bytes (Castagnoli polynomial, reflected)."""
    table: NDArray[np.uint32] = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ (table & np.uint32(1)) * np.uint32(0x82F63B78)
    return table


_TABLE = _table()
_LIST = _TABLE.tolist()


def _crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _LIST[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _mask(crc: Any) -> Any:
    """The checksum as TFRecord stores it, of an int or an int64 array."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _sound(data: mmap.mmap, starts: list[int], lengths: list[int]) -> np.ndarray:
    """[N] whether each record's data has its checksum; all records of one length at once, since a byte at a time is slow."""
    buffer = np.frombuffer(data, dtype=np.uint8)
    start_N, length_N = np.array(starts, dtype=np.int64), np.array(lengths, dtype=np.int64)
    sound_N = np.ones(len(starts), dtype=bool)
    for length in np.unique(length_N[length_N <= _CHECKED]):
        rows = np.flatnonzero(length_N == length)
        crc = np.full(len(rows), 0xFFFFFFFF, dtype=np.uint32)
        for i in range(length):
            crc = _TABLE[(crc ^ buffer[start_N[rows] + i]) & 0xFF] ^ (crc >> 8)
        stored = sum(buffer[start_N[rows] + length + i].astype(np.int64) << (8 * i) for i in range(_FOOTER))
        sound_N[rows] = _mask(crc.astype(np.int64) ^ 0xFFFFFFFF) == stored
    del buffer  # the map cannot be closed while an array looks at it
    return sound_N


class _DamagedError(Exception):
    """The bytes are no such message."""


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(data) and shift < 70:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise _DamagedError


def _message(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a protobuf message: an int of a varint, else the bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if kind == 2:
            length, place = _varint(data, place)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise _DamagedError
        if place + length > len(data):
            raise _DamagedError
        yield key >> 3, data[place : place + length]
        place += length


def _read_event(data: bytes, events: Events) -> None:
    """Event: wall_time 1, step 2, summary 5."""
    step, summaries = 0, []
    for number, value in _message(data):
        if number == 1 and isinstance(value, bytes):
            events.wall_time = min(events.wall_time, struct.unpack("<d", value)[0])
        elif number == 2 and isinstance(value, int):
            step = _signed(value)
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    found = [_scalar(v) for summary in summaries for n, v in _message(summary) if n == 1 and isinstance(v, bytes)]
    for tag, scalar in filter(None, found):
        events.values.setdefault(tag, {})[step] = scalar


def _scalar(data: bytes) -> tuple[str, float] | None:
    """Summary.Value: tag 1, simple_value 2, tensor 8. None where it is no single number."""
    tag, scalar = None, None
    for number, value in _message(data):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            tag = value.decode("utf-8", errors="replace")
        elif number == 2:
            scalar = struct.unpack("<f", value)[0]
        elif number == 8:
            scalar = _tensor(value)
    return None if tag is None or scalar is None else (tag, scalar)


def _tensor(data: bytes) -> float | None:
    """TensorProto of one element: dtype 1, tensor_content 4, float_val 5, double_val 6, int_val 7, int64_val 10, half_val 13."""
    kind, content, numbers = 0, b"", list[float]()
    for number, value in _message(data):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 4 and isinstance(value, bytes):
            content = value
        elif number in _FIELDS and isinstance(value, bytes):
            numbers += [x for (x,) in struct.iter_unpack(_FIELDS[number], value)]
        elif number in (7, 10, 13):
            whole = [value] if isinstance(value, int) else _varints(value)
            numbers += [_half(n, kind) if number == 13 else _signed(n) for n in whole]
    layout = _SCALARS.get(kind)
    if content and layout is not None:
        if layout == "bfloat16":
            return _half(int.from_bytes(content, "little"), kind) if len(content) == 2 else None
        return float(struct.unpack(layout, content)[0]) if len(content) == struct.calcsize(layout) else None
    return float(numbers[0]) if len(numbers) == 1 and kind in _SCALARS else None


def _varints(data: bytes) -> list[int]:
    out, place = [], 0
    while place < len(data):
        value, place = _varint(data, place)
        out.append(value)
    return out


def _signed(value: int) -> int:
    """An int64 from its varint, whose bits above the 64th mean nothing."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _half(bits: int, kind: int) -> float:
    """A 16-bit float from its bits: bfloat16 (dtype 14) is the upper half of a float32."""
    if bits >> 16:
        raise _DamagedError
    return float(
        struct.unpack("<f", (bits << 16).to_bytes(4, "little"))[0]
        if kind == 14
        else struct.unpack("<e", bits.to_bytes(2, "little"))[0]
    )
