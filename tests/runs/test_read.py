"""Anybody's log: what it is, what its columns mean, which steps count."""

from __future__ import annotations

import csv
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from framework_rows import ROWS
from log_files import real

from delphic.errors import UserError
from delphic.runs.read import read_run

NAMES = {"AReaL eval": "rollouts", "AReaL": "areal", "verl": "verl", "TRL": "trl", "tinker": "tinker-cookbook", "open-instruct": "open-instruct", "from scratch": "generic"}  # fmt: skip


EPISODES = {"allenai__open-instruct__1.csv": 256}  # episodes a step, which the reader divides by


def test_every_real_log_is_read_as_what_it_is() -> None:
    with real("MANIFEST.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 20
    for row in rows:
        log = read_run(real(row["file"]))
        expected = next(name for text, name in NAMES.items() if row["framework"].startswith(text))
        assert log.framework == expected, row["file"]
        steps, reward = log.series("reward_mean")
        assert len(reward) > 0, row["file"]
        if row["kind"] == "rollouts":
            assert log.rollouts is not None
            assert reward[0] == pytest.approx(float(row["reward_mean"]), rel=1e-3)
            continue
        sessions, repeated = int(row["step_goes_back"]) + 1, int(row["repeated_steps"])
        assert len(log.sessions) == sessions, row["file"]
        unit = EPISODES.get(row["file"], 1)
        if sessions == 1:
            ends = (int(row["step_first"]) / unit, int(row["step_last"]) / unit)
            assert (steps[0], steps[-1]) == ends, row["file"]
            assert len(reward) == int(row["points"]) - repeated, row["file"]
            assert reward[0] == pytest.approx(float(row["reward_first"]), rel=2e-3, abs=1e-9), row["file"]
            if not repeated:
                assert reward.mean() == pytest.approx(float(row["reward_mean"]), rel=2e-3, abs=1e-9), row["file"]


T = range(1, 31)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("form", ["jsonl", "csv", "gz"])
def test_the_keys_of_each_framework_mean_what_they_mean(tmp_path: Path, name: str, form: str) -> None:
    keys, expected = ROWS[name]
    rows = [{"step": step, **keys} for step in T]
    path = write(tmp_path / "log.jsonl", rows)
    if form == "csv":
        path = tmp_path / "log.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    elif form == "gz":
        packed = tmp_path / "log.jsonl.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path = packed
    log = read_run(path)
    assert log.framework == name
    assert log.steps.tolist() == list(T)
    for column, (kind, value) in expected.items():
        assert log.kind(column) == kind, column
        assert log.series(column)[1][0] == pytest.approx(value), column


def test_console_lines_of_transformers_and_verl(tmp_path: Path) -> None:
    trl = tmp_path / "trl.log"
    trl.write_text(
        "".join(
            f" {i}%|██ | {{'loss': 0.1, 'reward': '0.{i}', 'reward_std': 0.2, 'epoch': 0.01}}\n" for i in range(10, 40)
        )
    )
    log = read_run(trl)
    assert log.framework == "trl"
    assert log.series("reward_mean")[1][0] == pytest.approx(0.1)
    assert log.steps.tolist() == list(range(1, 31))
    assert "rows are counted" in log.problems[0]
    verl = tmp_path / "verl.log"
    verl.write_text(
        "".join(
            f"\x1b[36m(TaskRunner pid=1)\x1b[0m step:{i} - critic/score/mean:np.float64(0.25) - actor/kl_loss:nan - "
            f"training/global_step:{i}.0 - actor/lr:1e-06\n"
            for i in range(1, 12)
        )
    )
    log = read_run(verl)
    assert (log.framework, log.steps[-1]) == ("verl", 11)
    assert log.series("learning_rate")[1][0] == 1e-6
    assert "kl_reference" not in log.table.columns


def test_sessions_resumes_repeats_and_numbers_that_are_none(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"step": i, "reward": 0.1} for i in range(1, 4)]
    rows += [{"step": i, "reward": 0.2, "grad_norm": float("nan") if i == 7 else 1.0} for i in range(1, 11)]
    rows += [{"step": i, "reward": 0.4, "grad_norm": 1.0} for i in range(8, 16)]
    rows += [{"step": 15, "reward": 0.6}, {"type": "config"}]
    path = write(tmp_path / "log.jsonl", rows)
    with path.open("a") as file:
        file.write('{"step": 16, "rew')
    log = read_run(path)
    assert [(s.first, s.last) for s in log.sessions] == [(1, 3), (1, 15)]
    assert log.resumed == (8,)
    assert log.series("reward_mean")[1].tolist() == pytest.approx([0.2] * 7 + [0.4] * 7 + [0.5])
    assert log.non_finite == {"gradient_norm": (7,)}
    text = " ".join(log.problems)
    for said in ("1 lines are no JSON", "start again once", "3 rows were done again", "repeat a step"):
        assert said in text


def test_several_rows_of_a_step_are_put_together(tmp_path: Path) -> None:
    rows = [row for i in T for row in ({"step": i, "optim/lr": 1e-6}, {"step": i, "reward/all/mean": 0.5, "time": 1.0})]
    log = read_run(write(tmp_path / "metrics.jsonl", rows))
    assert log.framework == "prime-rl"
    assert log.problems == ()
    assert len(log.table.drop_nulls()) == 30


def test_a_reward_of_zero_beside_a_success_that_varies(tmp_path: Path) -> None:
    log = read_run(write(tmp_path / "a.jsonl", [{"step": i, "reward": 0.0, "env/success": i / 30} for i in T]))
    assert log.series("reward_mean")[1][-1] == 1.0
    assert "env/success varies" in log.problems[-1]


def test_the_user_says_what_a_column_is(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"t": i, "quality": 0.5, "reward": 0.1} for i in T])
    assert read_run(path, {"reward_mean": "quality", "step": "t"}).series("reward_mean")[1][0] == 0.5
    with pytest.raises(UserError, match=r'no column "qualty".*quality'):
        read_run(path, {"reward_mean": "qualty"})


def test_trainer_states_of_checkpoints(tmp_path: Path) -> None:
    for number in (9, 10):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        history = [{"step": i, "reward": i / 10, "reward_std": 0.1} for i in range(1, number + 1)]
        state = {"log_history": history, "max_steps": 50}
        (folder / "trainer_state.json").write_text(json.dumps(state))
    log = read_run(tmp_path)
    assert log.steps[-1] == 10
    assert log.settings["steps"] == 50


def test_a_damaged_document_gives_its_whole_rows(tmp_path: Path) -> None:
    text = json.dumps({"log_history": [{"step": i, "reward": 0.5, "reward_std": 0.1} for i in T]}, indent=1)
    path = tmp_path / "trainer_state.json"
    path.write_text(text[: len(text) // 2])
    log = read_run(path)
    assert 10 < log.steps[-1] < 30
    assert "cut short" in log.problems[0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b"", "empty"),
        ("a.log", b"hello\nworld\n", "not a log"),
        ("a.bin", bytes(range(256)) * 10, "not a log"),
        ("a.csv", b"step,name\n1,x\n2,y\n", "no column of rewards"),
        ("a.jsonl", b'{"step": 1, "name": "x"}\n', "no column of rewards"),
        ("a.json", b'{"a": {"b": 1}}', "no numbers"),
        ("a.csv", b"step,reward\n", "no rows"),
        ("a.jsonl", b'{"step": "x", "reward": "y"}\n', "no numbers"),
        ("a.parquet", b"PAR1 nothing", "a.parquet"),
    ],
)
def test_what_is_no_log_is_said_in_a_sentence(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=said) as refused:
        read_run(path)
    assert "\n" not in str(refused.value)


def test_folders_that_hold_no_log_or_two(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no log in it"):
        read_run(tmp_path)
    write(tmp_path / "a.jsonl", [{"step": i, **ROWS["trl"][0]} for i in T])
    assert read_run(tmp_path).framework == "trl"
    write(tmp_path / "b.jsonl", [{"step": i, **ROWS["verl"][0]} for i in T])
    with pytest.raises(UserError, match=r"several frameworks: a.jsonl \(trl\), b.jsonl \(verl\)"):
        read_run(tmp_path)


LAST_PARTS = [("rasbt__reasoning-from-scratch__1.csv", (1, 500)), ("rasbt__reasoning-from-scratch__8.csv", (1, 258)), ("inclusionAI__AReaL__1.txt", (1, 48))]  # fmt: skip


@pytest.mark.parametrize(("name", "steps"), LAST_PARTS)
def test_the_last_part_that_is_no_stub_of_real_logs_that_start_again(name: str, steps: tuple[int, int]) -> None:
    log = read_run(real(name))
    assert (log.steps[0], log.steps[-1]) == steps
    assert re.search("the last (long )?part is used", " ".join(log.problems))


def test_real_figures_that_a_naive_reader_gets_wrong() -> None:
    collapsed = read_run(real("rasbt__reasoning-from-scratch__3.csv"))  # 40.8 % at best, then 0: still in percent
    assert collapsed.series("eval_reward")[1].max() == pytest.approx(0.408)
    episodes = read_run(real("allenai__open-instruct__1.csv"))
    assert episodes.steps.tolist() == list(range(1, 2001))
    assert "counts episodes, 256 a step" in episodes.problems[0]
    assert read_run(real("verl-project__verl__15.csv")).kind("reward_mean") == "raw"  # nothing says that KL is in it
    assert read_run(real("IMJONEZZ__UnslothGRPO__1.json")).kind("reward_std") == "within groups"  # before TRL 0.17


def test_what_may_not_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", [{"step": 1, "reward": 0.5}])

    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UserError, match=r"a\.jsonl: Permission denied"):
        read_run(path)
