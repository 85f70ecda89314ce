"""Problems and rewards."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from delphic.errors import UserError
from delphic.tasks import Arithmetic, FileTask, Problem, evaluate, load_rewards
from delphic.tasks.arithmetic import is_held_out


def test_arithmetic_draws_five_kinds_in_equal_shares_with_right_answers() -> None:
    task = Arithmetic(low=1, high=30, size=500, held_out_size=100, seed=3)
    assert set(Counter(p.columns["kind"] for p in task.train).values()) == {100}
    assert set(Counter(p.columns["kind"] for p in task.held_out).values()) == {20}
    for problem in [*task.train, *task.held_out]:
        expression = problem.prompt.removesuffix("=")
        assert eval(expression) == int(problem.columns["answer"])
        assert all(int(n) <= 900 for n in expression.replace("(", " ").replace(")", " ").translate(OPERATORS).split())


OPERATORS = str.maketrans("+-*/", "    ")


def test_no_training_problem_is_held_out() -> None:
    task = Arithmetic(seed=1)
    assert all(is_held_out(p.prompt.removesuffix("=")) for p in task.held_out)
    assert not any(is_held_out(p.prompt.removesuffix("=")) for p in task.train)


def test_arithmetic_is_a_function_of_its_seed() -> None:
    prompts = [[p.prompt for p in Arithmetic(seed=s).train] for s in (0, 0, 1)]
    assert prompts[0] == prompts[1] != prompts[2]


def test_the_answer_must_be_exact() -> None:
    task = Arithmetic()
    problem = Problem("6*7=", {"answer": "42"})
    assert task.reward([problem] * 4, ["42", " 42 ", "420", "42."]) == [1.0, 1.0, 0.0, 0.0]


def test_a_range_without_problems_says_so() -> None:
    with pytest.raises(ValueError, match="0 <= low <= high"):
        Arithmetic(low=5, high=2)
    with pytest.raises(ValueError, match="widen the range"):
        Arithmetic(low=1, high=1)


def file_task(path: Path, rows: list[Any], **changes: Any) -> FileTask:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
    options = {"prompt_column": "q", "answer_column": "a", "template": "{prompt}", "held_out_share": 0.25, "seed": 0}
    return FileTask(path, **{**options, **changes})


def test_a_file_splits_once_and_fills_its_template(tmp_path: Path) -> None:
    rows = [{"q": f"q{i}", "a": i, "hint": f"h{i}"} for i in range(8)]
    task = file_task(tmp_path / "d.jsonl", rows, template="\\frac{1}{2} {{x}} {hint}: {prompt}")
    assert (len(task.train), len(task.held_out)) == (6, 2)
    for problem in task.train:
        i = problem.columns["answer"]
        assert problem.prompt == "\\frac{1}{2} {x} " + f"h{i}: q{i}"
        assert problem.columns["hint"] == f"h{i}"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"q": "x", ', "row 2: not valid JSON"),
        ("[1]", "row 2: expected a JSON object"),
        ({"q": "x"}, 'row 2: there is no column "a"'),
        ({"q": "x", "a": None}, 'row 2: column "a" is empty'),
        ({"q": " ", "a": 1}, 'row 2: column "q" is empty'),
    ],
)
def test_a_bad_row_is_refused_by_its_number(row: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        file_task(tmp_path / "d.jsonl", [{"q": "x", "a": 1}, row])


def test_a_missing_file_column_or_placeholder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        FileTask(tmp_path / "none.jsonl", "q", "a", "{prompt}", 0.2, 0)
    with pytest.raises(UserError, match='did you mean "question"'):
        file_task(tmp_path / "d.jsonl", [{"question": "x", "a": 1}], prompt_column="questoin")
    with pytest.raises(UserError, match=r'"\{hnt\}", which is no column; did you mean "hint"'):
        file_task(tmp_path / "d.jsonl", [{"q": "x", "a": 1, "hint": 2}], template="{hnt}")


REWARDS = """
def good(prompts, completions, answer, **kwargs): return [float(c == str(a)) for c, a in zip(completions, answer)]
def short(completions): return [1.0 / len(c) for c in completions]
def ids(completion_ids, **kwargs): return [len(t) for t in completion_ids]
def sometimes(completions, **kwargs): return [None if c == "x" else 1.0 for c in completions]
def nothing(completions, **kwargs): return [None for c in completions]
def nan(completions, **kwargs): return [float("nan") if c == "x" else 1.0 for c in completions]
def raises(completions, **kwargs): raise KeyError("oops")
def wrong_length(completions, **kwargs): return [1.0]
def no_list(completions, **kwargs): return 1.0
def texts(completions, **kwargs): return ["a" for c in completions]
"""
PROBLEMS = [Problem("p", {"answer": 7}), Problem("p", {"answer": 8})]


def rewarded(folder: Path, specs: list[str], completions: list[str], weights: list[float] | None = None) -> Any:
    (folder / "my_rewards.py").write_text(REWARDS)
    functions = load_rewards(Arithmetic(), [f"my_rewards:{s}" for s in specs], weights or [], folder)
    tokens = [np.zeros(len(c), dtype=np.int32) for c in completions]
    return evaluate(functions, PROBLEMS, completions, tokens)


def test_trl_signature_functions_get_columns_by_name_and_add_up_by_weight(tmp_path: Path) -> None:
    total, parts = rewarded(tmp_path, ["good", "short", "ids"], ["7", "xx"], [1.0, 10.0, 0.5])
    assert total.tolist() == [1 + 10 + 0.5, 0 + 5 + 1]
    assert {name: values.tolist() for name, values in parts.items()} == {
        "good": [1.0, 0.0],
        "short": [1.0, 0.5],
        "ids": [1.0, 2.0],
    }


def test_none_means_does_not_apply_and_nan_takes_the_row_out(tmp_path: Path) -> None:
    total, parts = rewarded(tmp_path, ["good", "sometimes"], ["x", "8"])
    assert total.tolist() == [0.0, 2.0]
    assert math.isnan(parts["sometimes"][0])
    total, _ = rewarded(tmp_path, ["nothing"], ["x", "8"])
    assert np.isnan(total).all()
    total, _ = rewarded(tmp_path, ["good", "nan"], ["x", "8"])
    assert math.isnan(total[0])
    assert total[1] == 2.0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("raises", "reward function \"raises\" raised KeyError: 'oops'"),
        ("wrong_length", 'reward function "wrong_length" returned 1 values for 2 completions'),
        ("no_list", 'reward function "no_list" must return a list of numbers, got 1.0'),
        ("texts", 'reward function "texts" must return a list of numbers'),
    ],
)
def test_a_reward_function_that_misbehaves_is_named(spec: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        rewarded(tmp_path, [spec], ["x", "8"])


def test_an_unknown_module_or_function_is_refused_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "my_rewards.py").write_text(REWARDS)
    for spec, message in (
        ("my_reward:good", 'no module "my_reward"; did you mean "my_rewards"'),
        ("my_rewards:god", 'no function "god"; did you mean "good"'),
        ("my_rewards", 'must read "module:function"'),
    ):
        with pytest.raises(UserError, match=message):
            load_rewards(Arithmetic(), [spec], [], tmp_path)
    (tmp_path / "broken_rewards.py").write_text("import surely_not_installed")
    with pytest.raises(UserError, match="cannot be imported: No module named 'surely_not_installed'"):
        load_rewards(Arithmetic(), ["broken_rewards:f"], [], tmp_path)
