"""Reading one metric of a log: sessions, repeats, gaps, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from delphic.errors import UserError
from delphic.runs.series import read_series


def log(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_resume_replaces_what_it_does_again(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"step": s, "reward": 0.1 * s} for s in (1, 2, 3, 4)]
    rows += [{"step": s, "reward": 0.5} for s in (3, 4, 5)]
    series = read_series(log(tmp_path / "a.jsonl", rows))
    assert series.steps.tolist() == [1, 2, 3, 4, 5]
    assert series.values.tolist() == pytest.approx([0.1, 0.2, 0.5, 0.5, 0.5])
    assert series.problems == ("2 rows were done again after a resume; the later ones count",)


def test_a_new_start_is_another_session_and_the_last_counts_that_is_no_stub(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"step": s, "reward": s} for s in (1, 2, 3)]
    rows += [{"step": s, "reward": 10 + s} for s in (1, 2, 3, 4, 5)]
    stub = [{"step": s, "reward": 20 + s} for s in (1, 2)]
    series = read_series(log(tmp_path / "b.jsonl", rows + stub))
    assert series.values.tolist() == [11, 12, 13, 14, 15]
    assert "start again 2 times (1–3, 1–5, 1–2); the last long part is used" in series.problems[0]
    series = read_series(log(tmp_path / "a.jsonl", rows))
    assert series.values.tolist() == [11, 12, 13, 14, 15]
    assert "start again once (1–3, 1–5); the last part is used" in series.problems[0]


def test_gaps_repeats_and_missing_values(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("_step,reward\n1,0.5\n2,\n3,NaN\n5,0.1\n5,0.3\n9,0.7\n")
    series = read_series(path)
    assert series.steps.tolist() == [1, 5, 9]
    assert series.values.tolist() == pytest.approx([0.5, 0.2, 0.7])
    assert series.problems == (
        "1 values that are not finite were left out",
        "1 rows repeat a step; their mean is used",
    )
    assert series.until(0.5).steps.tolist() == [1, 5]
    assert series.last_tenth() == pytest.approx(0.7)


def test_nested_rows_a_trainers_state_and_console_lines(tmp_path: Path) -> None:
    nested = log(tmp_path / "a.jsonl", [{"step": s, "data": {"critic/score/mean": s / 10}} for s in (1, 2)])
    assert read_series(nested).values.tolist() == [0.1, 0.2]
    state = tmp_path / "trainer_state.json"
    state.write_text(
        json.dumps({"log_history": [{"step": 1, "reward": 0.5}, {"step": 1, "eval_loss": 2}, {"step": 2, "reward": 1}]})
    )
    assert read_series(state).values.tolist() == [0.5, 1.0]
    console = tmp_path / "run.log"
    console.write_text(
        "loading training/global_step:9 - x\n(pid=1) step:1 - critic/score/mean:np.float64(0.25) - actor/lr:1e-06\n"
        "step:2 - critic/score/mean:-0.5 - actor/kl:nan\n"
    )
    assert read_series(console).values.tolist() == [0.25, -0.5]
    assert read_series(console, "actor/lr").values.tolist() == [1e-6]


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = log(tmp_path / "a.jsonl", [{"step": s, "reward": s} for s in range(3)])
    path.write_text(path.read_text() + '{"step": 3, "rew')
    assert read_series(path).steps.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"step": 1, "quality": 2}\n', "no column of rewards"),
        ("a.jsonl", "", "empty"),
        ("a.jsonl", "hello\n", "not a log"),
        ("a.bin", "x", "not a log"),
        ("a.csv", "", "empty"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        read_series(tmp_path / name)


def test_a_wrong_metric_is_named_with_the_nearest_and_limits_hold(tmp_path: Path) -> None:
    path = log(tmp_path / "a.jsonl", [{"step": 1, "accuracy": 0.5}, {"step": 2, "accuracy": 1.5}])
    with pytest.raises(UserError, match='no column "acuracy"; did you mean "accuracy"'):
        read_series(path, "acuracy")
    with pytest.raises(UserError, match="outside 0 to 1"):
        read_series(path, "accuracy", (0, 1))
    with pytest.raises(UserError, match="no such file or folder"):
        read_series(tmp_path / "b.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no log in it"):
        read_series(tmp_path / "empty")
