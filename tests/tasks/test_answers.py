"""Numbers and boxes in text, and the rewards that compare numbers."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import shared

from delphic.config import TaskConfig
from delphic.errors import UserError
from delphic.tasks import Problem, load_rewards, make_task
from delphic.tasks.answers import answer_number, boxed, gold_number, last_number, parse_number, strict_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("72", 72),
        ("1,080", 1080),
        ("$1,234.50.", Fraction("1234.5")),
        ("\\$32,\\!348", 32348),
        ("50%", 50),
        ("-3", -3),
        ("−3", -3),
        ("- $3", -3),
        (".5", Fraction(1, 2)),
        ("1/2", Fraction(1, 2)),
        ("-1 1/2", Fraction(-3, 2)),
        ("\\frac{3}{4}", Fraction(3, 4)),
        ("2e3", 2000),
        ("1/0", None),
        ("12,34", None),
        ("5:45", None),
        ("6th", None),
        ("nan", None),
        ("inf", None),
        ("", None),
        ("9" * 5000, None),
    ],
)
def test_a_number_as_people_write_it(text: str, number: int | Fraction | None) -> None:
    assert parse_number(text) == number


@pytest.mark.parametrize(
    ("text", "last", "strict"),
    [
        ("She has 3 + 4 = 7 apples.", 7, None),
        ("10-3=7", 7, None),
        ("a 3-4 split", 4, None),
        ("it fell by -4", -4, None),
        ("so it costs $1,250.00.", 1250, None),
        ("reasoning 5\n#### 72", 72, 72),
        ("#### 3 apples of 10", 3, 3),
        ("#### 1\n#### 2", 2, 2),
        ("it is 5 ####", None, None),
        ("no number", None, None),
        ("1,234,567", 1234567, None),
        ("x = 1/2", Fraction(1, 2), None),
    ],
)
def test_the_number_of_a_completion(text: str, last: int | None, strict: int | None) -> None:
    assert answer_number(text, strict=False) == last
    assert answer_number(text, strict=True) == strict


@settings(max_examples=60, deadline=None)
@given(st.integers(-(10**12), 10**12), st.sampled_from(["{}", "{:,}", "${:,}.", "{}.00", "about it: {}%", "#### {:,}"]))
def test_a_whole_number_is_found_however_it_is_written(number: int, style: str) -> None:
    text = "So " + style.format(number).replace("$-", "-$")
    assert answer_number(text, strict=False) == number


@settings(max_examples=40, deadline=None)
@given(st.text())
def test_no_text_breaks_the_search(text: str) -> None:
    answer_number(text, strict=False)
    answer_number("####" + text, strict=True)
    boxed("\\boxed{" + text)


@pytest.mark.parametrize("answer", [True, None, "", "Mrs. Hilt", "3:30 p.m.", "None", [1]])
def test_what_is_no_gold_number(answer: object) -> None:
    assert gold_number(answer) is None


def test_gold_numbers() -> None:
    assert gold_number("9 (apples)") == 9
    assert gold_number("they ate 5. #### 1,000") == 1000
    assert gold_number(145.0) == 145


def test_an_unparsable_gold_answer_never_scores() -> None:
    for reward in (last_number, strict_number):
        with pytest.raises(UserError, match="'Rug B' is not a number"):
            reward([Problem("p", {"answer": "Rug B"})], ["#### nothing"])


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("\\boxed{1} then \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed 5$", "5"),
        ("\\fbox{a}", "a"),
        ("\\boxed{cut off", None),
        ("none", None),
    ],
)
def test_the_last_box(text: str, inside: str | None) -> None:
    assert boxed(text) == inside


def gsm8k_folder(folder: Path, test_answer: str = "so #### 1,000") -> TaskConfig:
    for name, answer in (("train", "2+2 = 4\n#### 4"), ("test", test_answer)):
        (folder / f"{name}.jsonl").write_text(json.dumps({"question": name, "answer": answer}))
    return TaskConfig(name="gsm8k", path=str(folder))


def test_gsm8k_from_a_folder(tmp_path: Path) -> None:
    task = make_task(gsm8k_folder(tmp_path), 5, 0, tmp_path)
    assert [p.prompt for p in task.train] == ["train"]
    assert [p.columns["answer"] for p in task.held_out] == ["1,000"]
    (reward,) = load_rewards(task, [], [], tmp_path)
    assert reward.name == "last_number"
    assert task.reward(task.held_out * 3, ["it is 1000.", "#### $1,000", "#### 7 not 1000"]) == [1, 1, 0]
    strict = make_task(gsm8k_folder(tmp_path).model_copy(update={"answer_format": "strict"}), 5, 0, tmp_path)
    assert strict.reward(strict.held_out * 2, ["it is 1000.", "#### 1000"]) == [0, 1]


def test_gsm8k_refuses_a_gold_answer_by_its_row(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"test\.jsonl, row 1: the gold answer 'many' is not a number"):
        make_task(gsm8k_folder(tmp_path, "#### many"), 5, 0, tmp_path)
    (tmp_path / "test.jsonl").unlink()
    with pytest.raises(UserError, match=r"no test\.jsonl"):
        make_task(TaskConfig(name="gsm8k", path=str(tmp_path)), 5, 0, tmp_path)


def test_every_gold_solution_of_gsm8k_is_right() -> None:
    task = make_task(TaskConfig(name="gsm8k", path=str(shared("gsm8k"))), 5, 0, Path())
    assert (len(task.train), len(task.held_out)) == (7473, 1319)
    for side in (task.train, task.held_out):
        texts = [f"so that is all\n#### {problem.columns['answer']}" for problem in side]
        assert sum(task.reward(side, texts)) == len(side)
