"""TensorBoard, trackio and AReaL's console: real logs against their manifest, made ones bit by bit."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import struct
from pathlib import Path

import pytest
from log_files import agrees, crc32c, database, event, head, put, real, varint, write

from delphic.errors import UserError
from delphic.runs.areal import areal_rows
from delphic.runs.read import read_run
from delphic.runs.tensorboard import read_events
from delphic.runs.trackio import read_trackio


def test_the_writer_of_these_tests_has_the_known_checksum() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C, RFC 3720


@pytest.mark.parametrize("number", [4, 5, 6, 7])
def test_real_event_files_agree_with_their_manifest(number: int) -> None:
    name = f"verl-project__verl__{number}.tfevents"
    rows, problems = read_events(real(name))
    agrees(rows, name)
    assert problems == []


@pytest.mark.parametrize(
    ("proto", "value"),
    [
        (put(1, 0, varint(1)) + put(5, 5, struct.pack("<f", 0.5)), 0.5),
        (put(1, 0, varint(1)) + put(5, 2, struct.pack("<f", 0.5)), 0.5),  # packed
        (put(1, 0, varint(1)) + put(4, 2, struct.pack("<f", -2.5)), -2.5),
        (put(1, 0, varint(2)) + put(6, 2, struct.pack("<d", 0.1)), 0.1),
        (put(1, 0, varint(2)) + put(4, 2, struct.pack("<d", 0.1)), 0.1),
        (put(1, 0, varint(19)) + put(4, 2, struct.pack("<e", 1.5)), 1.5),
        (put(1, 0, varint(19)) + put(13, 2, varint(0x3E00)), 1.5),
        (put(1, 0, varint(14)) + put(4, 2, b"\xc0\x3f"), 1.5),
        (put(1, 0, varint(14)) + put(13, 0, varint(0x3FC0)), 1.5),
        (put(1, 0, varint(3)) + put(7, 2, varint(-7)), -7),
        (put(1, 0, varint(9)) + put(10, 0, varint(1 << 40)), 1 << 40),
        (put(1, 0, varint(9)) + put(4, 2, struct.pack("<q", -3)), -3),
        (put(1, 0, varint(1)) + put(4, 2, struct.pack("<ff", 1, 2)), None),  # two numbers are no scalar
        (put(1, 0, varint(7)) + put(8, 2, b"text"), None),
    ],
)
def test_every_kind_of_scalar(tmp_path: Path, proto: bytes, value: float | None) -> None:
    rows, problems = read_events(write(tmp_path / "a.tfevents", head(), event(3, x=proto, loss=0.25)))
    assert rows == [{"loss": 0.25, "step": 3} | ({} if value is None else {"x": value})]
    assert problems == []


def test_a_resume_replaces_and_a_restart_follows(tmp_path: Path) -> None:
    for number, (steps, value) in enumerate([(range(1, 10), 1.0), (range(4, 8), 2.0), (range(1, 3), 3.0)]):
        parts = [event(s, 100 * number + s, reward=value) for s in steps]
        write(tmp_path / f"events.out.tfevents.{9 - number}", head(100 * number), *parts)  # names do not give the order
    rows, _ = read_events(tmp_path)
    values = [(row["step"], row["reward"]) for row in rows]
    assert values == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2), (7, 2), (1, 3), (2, 3)]


def test_explorer_and_trainer_are_merged_by_step_and_by_session(tmp_path: Path) -> None:
    for session in (0, 1):
        for place, tag in (("explorer", "rollout__accuracy"), ("trainer", "actor__loss")):
            parts = [event(s, 1000 * session + s, **{tag: s + 10.0 * session}) for s in (1, 2)]
            write(tmp_path / place / f"events.out.tfevents.{session}", head(1000 * session), *parts)
    rows, _ = read_events(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 1, 2]
    assert rows[0] == {"step": 1, "rollout/accuracy": 1, "actor/loss": 1}
    assert rows[3] == {"step": 2, "rollout/accuracy": 12, "actor/loss": 12}


def test_damage_is_told_and_the_rest_is_kept(tmp_path: Path) -> None:
    parts = [head(), *(event(s, reward=s / 8) for s in range(1, 6))]
    whole = b"".join(parts)
    begin = len(parts[0]) + len(parts[1])
    rows, problems = read_events(write(tmp_path / "cut.tfevents", whole[:-3]))
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert problems == ["cut.tfevents: the last record is cut off"]
    flipped = bytearray(whole)
    flipped[begin + 20] ^= 4  # inside the second event's data
    rows, problems = read_events(write(tmp_path / "bit.tfevents", bytes(flipped)))
    assert [row["step"] for row in rows] == [1, 3, 4, 5]
    assert problems == ["bit.tfevents: 1 damaged records were left out"]
    absurd = bytearray(whole)
    absurd[begin + 6] = 255  # its length
    rows, problems = read_events(write(tmp_path / "long.tfevents", bytes(absurd)))
    assert [row["step"] for row in rows] == [1]
    assert problems == [f"long.tfevents: damaged from byte {begin} of {len(whole)} on; what follows is not read"]


def test_no_event_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_events(tmp_path / "none.tfevents")
    with pytest.raises(UserError, match="no event file"):
        read_events(tmp_path)
    with pytest.raises(UserError, match=r"no scalars in it; a\.tfevents: damaged from byte 0"):
        read_events(write(tmp_path / "a.tfevents", b"step,reward\n1,0.5\n2,0.6\n"))


def test_the_newest_run_of_a_project_is_read_and_the_others_are_named(tmp_path: Path) -> None:
    rows = [
        (f"2026-01-0{day}", run, s, json.dumps({"reward": s + day}))
        for day, run in ((2, "new"), (1, "old"))
        for s in (0, 1)
    ]
    path = database(tmp_path / "p.db", rows)
    assert read_trackio(path) == (
        [{"reward": 2, "step": 0}, {"reward": 3, "step": 1}],
        ['the newest run "new" is read; there are also old'],
    )
    assert read_trackio(path, "old") == ([{"reward": 1, "step": 0}, {"reward": 2, "step": 1}], [])
    with pytest.raises(UserError, match='no run "odl"; did you mean "old"'):
        read_trackio(path, "odl")
    assert os.listdir(tmp_path) == ["p.db"]  # nothing was created beside it


def test_runs_of_one_name_are_told_by_their_id_and_steps_are_the_trainers(tmp_path: Path) -> None:
    metrics = {"train/global_step": 10, "train/reward": "NaN", "loss": True, "note": "text", "plot": {"_type": "x"}}
    rows = [
        ("a", "1", "run", 0, '{"x": 1}'),
        ("b", "2", "run", 0, json.dumps(metrics)),
        ("b", "2", "run", 1, "[broken"),
    ]
    path = database(tmp_path / "p.db", rows, "run_id, timestamp, run_name, step, metrics")
    (row,), problems = read_trackio(path, "run")
    assert math.isnan(row.pop("train/reward"))
    assert row == {"train/global_step": 10, "step": 10, "loss": 1}
    assert problems == [
        'the newest run "run" is read; there are also run',
        "1 rows are no JSON objects with a step, and were left out",
    ]
    assert read_trackio(path, "a")[0] == [{"x": 1, "step": 0}]


def test_rows_that_are_still_in_the_write_ahead_log_are_read(tmp_path: Path) -> None:
    path = database(tmp_path / "p.db", [("1", "run", 0, '{"x": 1}')])
    writer = sqlite3.connect(path)
    writer.execute("INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES ('2', 'run', 1, '{\"x\": 2}')")
    writer.commit()
    try:
        assert [row["x"] for row in read_trackio(path)[0]] == [1, 2]
    finally:
        writer.close()


def test_what_is_not_trackios_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("hello " * 200)
    with pytest.raises(UserError, match="not a readable SQLite database"):
        read_trackio(tmp_path / "text.db")
    with pytest.raises(UserError, match=r"needs run_name, step, metrics \(id, name, value\)"):
        read_trackio(database(tmp_path / "other.db", [], "name, value"))


@pytest.mark.parametrize("number", [1, 5])
def test_real_areal_consoles_agree_with_their_manifest(number: int) -> None:
    name = f"inclusionAI__AReaL__{number}.txt"
    with real(name).open(encoding="utf-8", errors="replace") as lines:
        rows = areal_rows(lines)
    agrees(rows, name)
    steps = [row["step"] for row in rows]
    assert steps == ([*range(1, 51), *range(1, 49)] if number == 1 else [*range(1, 51)])


def test_a_table_that_is_cut_keeps_its_whole_cells() -> None:
    lines = [
        "│ before/any │ 1.0 │",
        "2025-11-23T17:23:03Z \x1b[92m20251123 StatsLogger INFO: Epoch 1/1 Step 1/9 Train step 1/9 done.\x1b[0m",
        "2025-11-23T17:23:03Z │ rollout/reward │ 2.5000e-01 │ actor/lr │ 1.0000e-05 │",
        "2025-11-23T17:23:03Z │ actor/loss │ nan │ empty │  │",
        "something else was printed here",
        "2025-11-23T17:23:03Z │ actor/entropy │ 3.00",
        "Epoch 1/1 Step 2/9 Train step 2/9 done.",
        "Epoch 1/1 Step 3/9 Train step 3/9 done.",
        "│ actor/loss │ 1.0 │",
        "│ actor/loss │ 3.0 │",
    ]
    first, third = areal_rows(lines)
    assert math.isnan(first.pop("actor/loss"))
    assert first == {"step": 1, "rollout/reward": 0.25, "actor/lr": 1e-5}
    assert third == {"step": 3, "actor/loss": 2}


def test_folders_of_one_writer_go_on_and_those_of_several_runs_are_refused(tmp_path: Path) -> None:
    def begun(folder: str, steps: range, wall: float) -> None:
        parts = [event(s, wall + s, train__reward=s / 100, train__kl=0.1) for s in steps]
        write(tmp_path / folder / "events.out.tfevents.1", head(wall), *parts)

    begun("runs/first", range(1, 11), 0)
    begun("runs/second", range(9, 21), 100)
    assert [row["step"] for row in read_events(tmp_path)[0]] == list(range(1, 21))
    begun("runs/stub", range(1, 3), 200)
    assert [row["step"] for row in read_events(tmp_path)[0]] == [*range(1, 21), 1, 2]
    begun("runs/other", range(1, 21), 300)
    with pytest.raises(UserError, match=r"event files of several runs \(runs/first, runs/other\); name one folder"):
        read_events(tmp_path)
    (tmp_path / "log.csv").write_text("step,critic/score/mean,actor/pg_loss\n1,0.5,0.1\n")
    with pytest.raises(UserError, match="event files of several runs"):
        read_run(tmp_path)
    (tmp_path / "runs" / "other" / "log.csv").write_text("step,critic/score/mean,actor/pg_loss\n1,0.5,0.1\n")
    write(
        tmp_path / "runs" / "other" / "events.out.tfevents.2",
        head(400),
        event(21, 400, train__frac_reward_zero_std=0.1, train__kl=0.1),
    )
    with pytest.raises(UserError, match=r"several frameworks: event files \(\w+\), log.csv \(verl\)"):
        read_run(tmp_path / "runs" / "other")
