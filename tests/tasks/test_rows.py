"""Rows of every kind of file, and what is refused in them."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from shared_data import shared

from delphic.config import TaskConfig
from delphic.errors import UserError
from delphic.tasks import BENCHMARKS, FileTask, Problem, Task, benchmark, evaluate, load_rewards, make_task
from delphic.tasks.rows import Row, find, messages, read

ROWS = [{"q": f"q{i}", "a": f"0{i}"} for i in range(4)]
CSV = "q,a\n" + "".join(f"{r['q']},{r['a']}\n" for r in ROWS)
LINES = "\n".join(json.dumps(r) for r in ROWS)


def write(path: Path) -> Path:
    name = path.name
    if name.endswith(".parquet"):
        pl.DataFrame(ROWS).write_parquet(path)
        return path
    text = CSV if ".csv" in name else (json.dumps(ROWS) if name == "list.json" else LINES)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize(
    "name", ["d.jsonl", "list.json", "lines.json", "d.csv", "d.parquet", "d.jsonl.gz", "d.csv.gz", "lines.json.gz"]
)
def test_every_format_gives_the_same_rows(name: str, tmp_path: Path) -> None:
    rows = read(write(tmp_path / name))
    assert [dict(row.fields) for row in rows] == ROWS, "a cell 025 of a CSV file stays that text"
    assert rows[2].where.endswith(", row 3")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.csv", b"a,b\n1,2,3,4\n", "not readable as CSV"),
        ("d.csv", b"", "has no rows"),
        ("d.csv", b"a,b\n", "has no rows"),
        ("d.parquet", b"PAR", "not readable as Parquet"),
        ("d.jsonl.gz", b"plain", "cannot be read"),
        ("d.jsonl", b"\xff\xfe", "cannot be read"),
        ("d.json", b"[{]", "not valid JSON"),
        ("d.json", b"[1]", "row 1: expected a JSON object, got int"),
        ("d.jsonl", b"[" * 100_000, "row 1: not valid JSON"),
    ],
)
def test_an_unreadable_file_is_one_sentence(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(tmp_path / name)


def test_dotted_columns_lead_into_nested_ones() -> None:
    row = Row("d, row 7", {"reward_model": {"ground_truth": {"target": "5"}}, "final": ["x"], "a.b": 1})
    assert find(row, "reward_model.ground_truth.target") == "5"
    assert find(row, "final.0") == "x"
    assert find(row, "a.b") == 1
    with pytest.raises(UserError, match=r'row 7: there is no column "reward_model.ground_truth.taget"; did you mean '):
        find(row, "reward_model.ground_truth.taget")
    with pytest.raises(UserError, match='"final" holds a list, without "3"'):
        find(row, "final.3")


@pytest.mark.parametrize("second", ["1", True, [1], {"x": 1}])
def test_answers_of_two_types_are_refused(second: Any, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text(json.dumps({"q": "x", "a": 1.5}) + "\n" + json.dumps({"q": "x", "a": second}))
    with pytest.raises(UserError, match=r'row 2: column "a" holds .* where row one holds a number'):
        FileTask(tmp_path / "d.jsonl", "q", "a", "{prompt}", 0.0, 0)


def config(path: Path, **changes: Any) -> TaskConfig:
    options = {"name": "file", "prompt_column": "q", "answer_column": "a", "rewards": ("exact_match",)}
    return TaskConfig(**{**options, "path": str(path), **changes})


def test_a_second_file_is_held_out_whole(tmp_path: Path) -> None:
    write(tmp_path / "d.csv")
    (tmp_path / "test.jsonl").write_text('{"q": "other", "a": "1"}')
    task = make_task(config(tmp_path / "d.csv", held_out_path="test.jsonl"), 5, 0, tmp_path)
    assert [p.prompt for p in task.train] == ["q0", "q1", "q2", "q3"]
    assert [p.prompt for p in task.held_out] == ["other"]


def test_everything_can_be_held_out(tmp_path: Path) -> None:
    task = make_task(config(write(tmp_path / "d.csv"), held_out_share=1), 5, 0, tmp_path)
    assert (len(task.train), len(task.held_out)) == (0, 4)
    assert load_rewards(task, ["exact_match"], [], tmp_path)


def test_a_gold_answer_that_the_reward_cannot_parse_is_refused_or_left_out(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join(json.dumps({"q": "x", "a": a}) for a in ("1", "2:3", "4")))
    with pytest.raises(UserError, match=r"row 2: the gold answer '2:3' is not a number.*\"last_number\""):
        make_task(config(path, rewards=("last_number",)), 5, 0, tmp_path)
    with pytest.warns(UserWarning, match="1 of 3 rows left out"):
        task = make_task(config(path, rewards=("last_number",), unparsable="skip", held_out_share=0), 5, 0, tmp_path)
    assert sorted(p.columns["answer"] for p in task.train) == ["1", "4"]


def chat_task(path: Path, template: str = "{prompt}") -> Task:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    path.write_text(json.dumps({"q": chat, "a": "1"}))
    return FileTask(path, "q", "a", template, 0.0, 0)


def test_a_prompt_may_be_chat_messages(tmp_path: Path) -> None:
    (problem,) = chat_task(tmp_path / "d.jsonl").train
    assert problem.prompt == [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    (problem,) = chat_task(tmp_path / "d.jsonl", "{prompt}? In a box.").train
    assert problem.prompt[1]["content"] == "u? In a box."  # type: ignore[index]


def test_messages_of_other_shapes(tmp_path: Path) -> None:
    assert messages([{"from": "human", "value": "x"}], "w") == [{"role": "user", "content": "x"}]
    assert messages([{"role": "user", "content": "x", "tool_calls": None}], "w") == [{"role": "user", "content": "x"}]
    for bad in ([], "x", [1], [{"content": "x"}], [{"role": "user"}]):
        with pytest.raises(UserError, match=r"^w: "):
            messages(bad, "w")


def test_a_users_function_gets_completions_of_chat_prompts_as_trl_gives_them() -> None:
    from delphic.tasks.rewards import RewardFunction

    seen: list[Any] = []

    def reward(completions: Any, **_: Any) -> list[float]:
        seen.extend(completions)
        return [0.0] * len(completions)

    problems = [Problem([{"role": "user", "content": "u"}]), Problem("text")]
    own = RewardFunction("own", 1.0, len, own=lambda _, completions: [float(c == "a") for c in completions])
    total, _ = evaluate([RewardFunction("r", 1.0, reward), own], problems, ["a", "b"], [np.zeros(1)] * 2)
    assert seen == [[{"role": "assistant", "content": "a"}], "b"]
    assert total.tolist() == [1.0, 0.0], "a reward of ours always gets texts"


def test_a_function_slower_than_its_limit_is_named(tmp_path: Path) -> None:
    (tmp_path / "slow_rewards.py").write_text(
        "import time\ndef slow(completions):\n    time.sleep(0.1)\n    return [0.0] * len(completions)\n"
    )
    task = make_task(config(write(tmp_path / "d.csv"), reward_timeout=0.01), 5, 0, tmp_path)
    functions = load_rewards(task, ["slow_rewards:slow"], [], tmp_path)
    with pytest.raises(UserError, match=r'"slow" took 0\.\d s for 2 completions, more than task.reward_timeout = 0.01'):
        evaluate(functions, task.train[:2], ["a", "b"], [np.zeros(1)] * 2)


def test_a_hub_dataset_or_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(name: str, subset: str | None, split: str) -> Any:
        asked.append((name, subset, split))
        if name == "org/absent":
            raise ConnectionError("no route\nto host")
        return ROWS

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    made = make_task(config(Path("org/name"), held_out_split="test", subset="main"), 5, 0, tmp_path)
    assert asked == [("org/name", "main", "train"), ("org/name", "main", "test")]
    assert len(made.train) == len(made.held_out) == 4
    with pytest.raises(UserError, match=r"the hub gave no dataset of that name .*ConnectionError: no route to host"):
        make_task(config(Path("org/absent")), 5, 0, tmp_path)
    with pytest.raises(UserError, match=r'there is no file "data/train.jsonl"'):
        make_task(config(Path("data/train.jsonl")), 5, 0, tmp_path)
    asked.clear()
    with pytest.raises(UserError, match='no column "answer"'):
        make_task(TaskConfig(name="gsm8k"), 5, 0, tmp_path)
    assert asked == [("openai/gsm8k", "main", "train")]


def test_an_unknown_benchmark_has_a_nearest_one() -> None:
    with pytest.raises(UserError, match='did you mean "math500"'):
        benchmark("math50", "x")
    for name in BENCHMARKS:
        assert benchmark(name, "x").held_out_share == 1.0


@pytest.mark.parametrize(
    ("name", "count"),
    [("gsm8k", 1319), ("gsm_plus", 2100), ("svamp", 1000), ("asdiv", 2092), ("mawps", 2065)],
)
@pytest.mark.filterwarnings("ignore:.*left out")
def test_benchmarks_of_word_problems_read_as_published(name: str, count: int) -> None:
    path = shared(name) if name.startswith("gsm") else shared("maths", name)
    settings = benchmark(name, str(path))
    task = make_task(settings, 5, 0, Path())
    assert (len(task.train), len(task.held_out)) == (0, count)
    functions = load_rewards(task, settings.rewards, [], Path())
    texts = [f"#### {p.columns['answer']}" for p in task.held_out]
    total, _ = evaluate(functions, task.held_out, texts, [np.zeros(1)] * count)
    assert total.sum() == count


@pytest.mark.parametrize("value", ["nan", "inf", "x"])
def test_a_value_that_is_no_finite_number_is_refused(value: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f"q,v\n1+1=,{value}\n")
    with pytest.raises(UserError, match=rf"row 1: column \"v\" holds '{value}', not a finite number"):
        FileTask(tmp_path / "rows.csv", "q", None, "{prompt}", 0.0, 0, "v")
