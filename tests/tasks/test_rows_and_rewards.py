"""Rows that people really have, and reward functions that return something else than numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from delphic.config import TaskConfig
from delphic.errors import UserError
from delphic.tasks import FileTask, Problem, RewardFunction, Task, evaluate, load_rewards, make_task


def task(path: Path, text: str, template: str = "{prompt}", answer: str | None = "a") -> Task:
    path.write_text(text, encoding="utf-8")
    return FileTask(path, "q", answer, template, held_out_share=0.0, seed=0)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_only_a_line_feed_ends_a_row(separator: str, tmp_path: Path) -> None:
    """JSON allows these inside a string; some writers do not escape them, and str.splitlines would cut there."""
    rows = [json.dumps({"q": f"one{separator}line", "a": 1}, ensure_ascii=False), '{"q": "two", "a": 2}']
    problems = task(tmp_path / "d.jsonl", "\n".join(rows)).train
    assert {p.prompt for p in problems} == {f"one{separator}line", "two"}
    with pytest.raises(UserError, match="row 2: not valid JSON"):
        task(tmp_path / "d.jsonl", rows[0] + "\nnonsense")


def test_windows_line_ends_and_blank_lines_are_no_rows(tmp_path: Path) -> None:
    problems = task(tmp_path / "d.jsonl", '{"q": "one", "a": 1}\r\n\r\n{"q": "two", "a": 2}\r\n').train
    assert sorted(p.prompt for p in problems) == ["one", "two"]
    with pytest.raises(UserError, match="row 3"):
        task(tmp_path / "d.jsonl", '{"q": "one", "a": 1}\r\n\r\n{"q": "two"}\r\n')


def test_a_template_that_leaves_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"row 1: task\.template leaves the prompt empty"):
        task(tmp_path / "d.jsonl", '{"q": "one", "a": 1}', template="")


def test_train_and_held_out_rows_are_disjoint_and_seeded(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"q{i}", "answer": i}) for i in range(20)))
    config = TaskConfig(name="file", path="d.jsonl", rewards=("exact_match",), held_out_share=0.3)
    splits = []
    for seed in (0, 0, 1):
        made = make_task(config, 5, seed, tmp_path)
        held_out, train = ([p.prompt for p in side] for side in (made.held_out, made.train))
        assert len(held_out) == 6
        assert not set(held_out) & set(train)
        assert len(set(held_out) | set(train)) == 20
        splits.append(held_out)
    assert splits[0] == splits[1] != splits[2]


def test_exact_match_without_an_answer_is_refused_at_once(tmp_path: Path) -> None:
    made = task(tmp_path / "d.jsonl", '{"q": "one"}', answer=None)
    with pytest.raises(UserError, match=r"set task\.answer_column"):
        load_rewards(made, ["exact_match"], [], tmp_path)


@pytest.mark.parametrize(
    "returned",
    ["10", ["1", "0"], {0.5: 1, 0.7: 1}, [[1.0], [0.0]], None, [1.0, "x"], 3],
    ids=["text", "texts", "a dict", "lists", "nothing", "mixed", "a number"],
)
def test_what_is_no_list_of_numbers_is_refused(returned: Any) -> None:
    function = RewardFunction("odd", 1.0, lambda **_: returned)
    with pytest.raises(UserError, match='"odd" must return a list of numbers'):
        evaluate([function], [Problem("p")] * 2, ["x", "y"], [np.zeros(1)] * 2)


@pytest.mark.parametrize("returned", [(1, 0), np.array([1, 0]), [True, False], [np.float32(1), 0]], ids=str)
def test_any_sequence_of_numbers_will_do(returned: Any) -> None:
    function = RewardFunction("fine", 2.0, lambda **_: returned)
    total, parts = evaluate([function], [Problem("p")] * 2, ["x", "y"], [np.zeros(1)] * 2)
    assert total.tolist() == [2.0, 0.0]
    assert parts["fine"].tolist() == [1.0, 0.0], "components are unweighted"
