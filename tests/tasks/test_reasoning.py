"""reasoning-gym: the split by question, extraction before scoring, and its scorers' traps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")

from delphic.config import TaskConfig
from delphic.errors import UserError
from delphic.tasks import load_rewards, make_task
from delphic.tasks.reasoning import ReasoningGym, extract

ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def made(generator: str, parameters: Any = None, size: int = 30, held_out: int = 5, **changes: Any) -> ReasoningGym:
    return ReasoningGym(generator, parameters or {}, size, held_out, 0, **{"limit": 60.0, **changes})


def test_no_question_is_on_both_sides_even_where_there_are_few() -> None:
    """One-digit sums of two terms are 200 questions: by row, train and held-out would overlap."""
    task = made("chain_sum", ONE_DIGIT, size=400, held_out=15)
    train, held_out = ({p.columns["question"] for p in side} for side in (task.train, task.held_out))
    assert (len(task.train), len(task.held_out), len(held_out)) == (400, 15, 15)
    assert not train & held_out
    other = ReasoningGym("chain_sum", ONE_DIGIT, 50, 5, seed=9)
    assert not {p.columns["question"] for p in other.held_out} & train, "nor across seeds"
    again = made("chain_sum", ONE_DIGIT, size=400, held_out=15)
    assert [p.prompt for p in again.train] == [p.prompt for p in task.train]


@pytest.mark.parametrize(
    "generator", ["chain_sum", "word_sorting", "prime_factorization", "game_of_life_halting", "spiral_matrix"]
)
def test_only_the_gold_answer_scores(generator: str) -> None:
    """The default scorer gives .125 to "The answer is -4"; one accepts any text; one raises on text."""
    task = made(generator, size=20)
    golds = [p.columns["answer"] for p in task.train]
    for style in ("{}", "The answer is {}.", "well,\n<answer>{}</answer>"):
        assert task.reward(task.train, [style.format(gold) for gold in golds]) == [1.0] * 20
    for text in ("", "nonsense", "<answer></answer>", "I am 99 % sure"):
        assert task.reward(task.train, [text] * 20) == [0.0] * 20


def test_a_strict_answer_needs_its_tag() -> None:
    task = made("chain_sum", ONE_DIGIT, strict=True)
    golds = [p.columns["answer"] for p in task.train]
    assert not any(task.reward(task.train, golds))
    assert all(task.reward(task.train, [f"<answer> {gold} </answer>" for gold in golds]))


@pytest.mark.parametrize(
    ("text", "form", "answer"),
    [
        ("3 + 4 = 7", "number", "7"),
        ("1,234.", "number", "1234"),
        ("none", "number", None),
        ("I think.\nThe answer is: a, b.", "line", "a, b"),
        ("1 2\n3 4\n", "text", "1 2\n3 4"),
        ("<answer>1</answer> <answer>2</answer> 3", "number", "2"),
    ],
)
def test_extraction(text: str, form: Any, answer: str | None) -> None:
    assert extract(text, form, strict=False) == answer


def test_templates_and_solved_examples() -> None:
    task = made("chain_sum", ONE_DIGIT, template="Q: {prompt}\nA: ", shots=2)
    blocks = str(task.train[0].prompt).split("\n\n")
    assert len(blocks) == 3
    assert blocks[2].endswith("\nA: ")
    assert blocks[0].startswith("Q: ")
    assert blocks[0].rpartition("A: ")[2].lstrip("-").isdigit()
    shown = {block.partition("\nA: ")[0].removeprefix("Q: ") for block in blocks[:2]}
    assert not shown & {p.columns["question"] for p in [*task.train, *task.held_out]}


def test_what_the_user_gets_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='no "chain_sums"; did you mean "chain_sum"'):
        made("chain_sums")
    with pytest.raises(UserError, match='"chain_sum" refuses them: TypeError'):
        made("chain_sum", {"min_term": 2})
    with pytest.raises(UserError, match='"chain_sum" refuses them: AssertionError'):
        made("chain_sum", {"min_terms": 5, "max_terms": 2})
    with pytest.raises(UserError, match=r"size is decided by task.size"):
        made("chain_sum", {"size": 5})


def test_from_a_config(tmp_path: Path) -> None:
    config = TaskConfig(name="reasoning_gym", generator="chain_sum", parameters=ONE_DIGIT, size=10)
    task = make_task(config, 4, 1, tmp_path)
    assert (len(task.train), len(task.held_out)) == (10, 4)
    assert load_rewards(task, [], [], tmp_path)[0].name == "reasoning_gym"
