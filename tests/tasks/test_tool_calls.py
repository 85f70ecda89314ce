"""Tool calls: what is parsed, what matches, and the files they are read from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import shared

from delphic.config import TaskConfig
from delphic.errors import UserError
from delphic.tasks import Task, make_task
from delphic.tasks.tool_calls import Call, GoldCall, all_match, exact, matches, parse_calls, possible, same_value
from delphic.tasks.tool_task import judge

F1 = Call("f", {"a": 1})
G = Call("g", {"b": "x"})


def block(*objects: str) -> str:
    return "<tool_call>\n" + "\n".join(objects) + "\n</tool_call>"


F_JSON, G_JSON = '{"name": "f", "arguments": {"a": 1}}', '{"name": "g", "parameters": {"b": "x"}}'


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (block(F_JSON), [F1]),
        (block(F_JSON) + "\n" + block(G_JSON), [F1, G]),
        (block(F_JSON, G_JSON), [F1, G]),
        (block(f"[{F_JSON}, {G_JSON}]"), [F1, G]),
        (block('[f(a=1), g(b="x")]'), [F1, G]),
        (f"[{F_JSON}, {G_JSON}]", [F1, G]),
        (F_JSON, [F1]),
        (f"```json\n{F_JSON}\n```", [F1]),
        ('[f(a=1), g(b="x")]', [F1, G]),
        ("f(a=1)", [F1]),
        (
            "[a.b.c(x=[1, (2, -3)], y={'k': true}, z=None)]",
            [Call("a.b.c", {"x": [1, [2, -3]], "y": {"k": True}, "z": None})],
        ),
        ('{"type": "function", "function": {"name": "f", "arguments": "{\\"a\\": 1}"}}', [F1]),
        ('{"name": "f"}', [Call("f", {})]),
        (f"<think>maybe {block(G_JSON)}</think>\n{block(F_JSON)}", [F1]),
        (f"I would call\n{block(F_JSON)}\nnow", [F1]),
        ("[]", []),
        ("", []),
        ("No function fits.", []),
        ("[1, 2] is the answer", []),
        ("<think>f(a=1) it never ends", []),
        # tries that fail are no answer in words
        (block('{"name": "f", "arguments": {"a": 1}'), None),
        ("<tool_call>\n" + F_JSON, None),
        (block(), None),
        (block("hello"), None),
        (block('{"arguments": {}}'), None),
        (block('{"name": "f", "arguments": [1]}'), None),
        (block('{"name": "f", "arguments": {"a": NaN}}'), None),
        ('[{"name": "f", "arguments": {"a": 1}', None),
        ("[f(a=1", None),
        ("[f(1)]", None),
        ("[f(**x)]", None),
        ("[f(a=__import__('os').system('true'))]", None),
        ("[f(a=[x for x in range(3)])]", None),
        ("f(a=" + "(" * 5000 + ")", None),
        ("[" * 20000, []),
    ],
)
def test_parsing(text: str, calls: list[Call] | None) -> None:
    assert parse_calls(text) == calls


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet='[]{}()"\\:,=fab1. <>/tool_cn\x00'))
def test_no_text_breaks_the_parser(text: str) -> None:
    for wrapped in (text, f"<tool_call>{text}</tool_call>", f"[f({text})]"):
        assert isinstance(parse_calls(wrapped), list | None)


TEXT = st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]))  # "<" may open a tag
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True).map(lambda s: s + "_"), VALUES, max_size=3)


@settings(max_examples=40, deadline=None)
@given(st.lists(ARGUMENTS, min_size=1, max_size=4), st.randoms())
def test_calls_written_down_match_themselves_in_any_order(arguments: list[dict[str, Any]], rng: Any) -> None:
    golds = [exact(Call("f", given)) for given in arguments]
    rng.shuffle(arguments)
    as_json = "".join(block(json.dumps({"name": "f", "arguments": given})) for given in arguments)
    as_python = "[" + ", ".join(f"f({', '.join(f'{k}={v!r}' for k, v in given.items())})" for given in arguments) + "]"
    assert judge(golds, ["f"], as_json) == judge(golds, ["f"], as_python) == 1.0


@pytest.mark.parametrize(
    ("gold", "given", "same"),
    [
        (1, 1.0, True),
        (1, "1", False),
        (1, True, False),
        (0, False, False),
        (True, True, True),
        (None, None, True),
        (None, "", False),
        ("a", "A", False),
        ([1, 2], [1, 2.0], True),
        ([1, 2], [2, 1], False),
        ([1], 1, False),
        ({"a": [1]}, {"a": [1.0]}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
    ],
)
def test_values_have_types(gold: Any, given: Any, same: bool) -> None:
    assert same_value(gold, given) is same
    assert same_value(given, gold) is same


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({"base": 10}, True),
        ({"base": 10.0, "unit": "Units"}, True),
        ({"base": 10, "unit": ""}, True),
        ({"base": "10"}, False),
        ({"base": 10, "unit": "inches"}, False),
        ({"base": 10, "other": 1}, False),
        ({"unit": "units"}, False),
    ],
)
def test_possible_answers(arguments: dict[str, Any], right: bool) -> None:
    gold = possible({"area": {"base": [10], "unit": ["units", ""]}})
    assert matches(gold, Call("area", arguments)) is right
    assert not matches(gold, Call("areas", arguments))


def test_possible_answers_inside_tables() -> None:
    gold = possible(
        {"f": {"x": [{"city": ["Paris", "paris, france"], "on": ["", False]}], "y": [], "z": [[1, 2], [2, 1]]}}
    )
    assert matches(gold, Call("f", {"x": {"city": "Paris France"}, "y": [], "z": [2, 1]}))
    assert not matches(gold, Call("f", {"x": {"city": "Rome"}, "y": [], "z": [2, 1]}))
    assert not matches(gold, Call("f", {"x": {"city": "Paris", "on": True}, "y": [], "z": [2, 1]}))
    assert not matches(gold, Call("f", {"x": {"city": "Paris", "to": 1}, "y": [], "z": [2, 1]}))
    assert not matches(gold, Call("f", {"x": {"city": "Paris"}, "y": [], "z": [1, 1]}))


def test_parallel_calls_are_matched_one_to_one_in_any_order() -> None:
    wide, narrow = GoldCall("f", {"a": [1, 2]}), GoldCall("f", {"a": [1]})
    one, two = Call("f", {"a": 1}), Call("f", {"a": 2})
    for golds in ([wide, narrow], [narrow, wide]):
        for calls in ([one, two], [two, one]):
            assert all_match(golds, calls), "a greedy choice gives call 1 to the wide gold call"
    assert not all_match([wide, narrow], [two, two])
    assert not all_match([wide], [one, one])
    assert not all_match([wide, narrow], [one])


def test_a_gold_value_that_breaks_its_schema_is_also_accepted_as_the_schema_has_it() -> None:
    gold = exact(Call("f", {"page": "1", "id": 7}), {"page": "int", "id": "string"})
    for page, id_, right in (("1", 7, True), (1, "7", True), ("2", 7, False), (True, 7, False)):
        assert matches(gold, Call("f", {"page": page, "id": id_})) is right
    assert not matches(exact(Call("f", {"n": 1}), {"n": "integer"}), Call("f", {"n": "1"}))


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("No function fits.", 1),
        ("[]", 1),
        ("", 0),
        (block(F_JSON), 0),
        ("Sure: f(a=1)", 0),
        ("<tool_call>{", 0),
        ('I try {"name": "f", "arg', 0),
        ("It fits if (a) is so.", 1),
    ],
)
def test_where_no_function_fits_a_call_is_wrong_however_it_is_hidden(text: str, reward: float) -> None:
    assert judge([], ["f"], text) == reward


def task(path: Path, rows: list[Any], **changes: Any) -> Task:
    path.write_text("\n".join(map(json.dumps, rows)))
    return make_task(
        TaskConfig(**{"name": "tool_call", "path": str(path), "held_out_share": 0, **changes}), 5, 0, path.parent
    )


TOOLS = [{"name": "f", "description": "d", "parameters": {"type": "dict", "properties": {"a": {"type": "integer"}}}}]


def test_every_turn_with_calls_of_a_transcript_is_a_problem(tmp_path: Path) -> None:
    chat = [
        {"role": "user", "content": "once"},
        {
            "role": "assistant",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": '{"a": "1"}'}}],
        },
        {"role": "tool", "content": "ok"},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "twice"},
        {"role": "assistant", "content": block(F_JSON, F_JSON)},
    ]
    made = task(tmp_path / "d.jsonl", [{"messages": chat, "tools": json.dumps(TOOLS)}])
    first, second = made.train
    assert [m["role"] for m in first.prompt] == ["user"]  # type: ignore[index]
    assert [m["role"] for m in second.prompt] == ["user", "assistant", "tool", "assistant", "user"]  # type: ignore[index]
    assert first.tools is not None
    assert first.tools[0]["function"]["parameters"]["type"] == "object"
    assert made.reward([first, first, second, second], [block(F_JSON), "Done.", block(F_JSON), "[f(a=1), f(a=1)]"]) == [
        1,
        0,
        0,
        1,
    ]


def test_turns_of_one_transcript_stay_on_one_side(tmp_path: Path) -> None:
    rows = [
        {
            "system": "You may call.",
            "conversations": [
                {"from": "human", "value": f"{i} once"},
                {"from": "gpt", "value": "[f(a=1)]"},
                {"from": "observation", "value": "ok"},
                {"from": "gpt", "value": "[f(a=2)]"},
            ],
        }
        for i in range(10)
    ]
    made = task(tmp_path / "d.jsonl", rows, held_out_share=0.3)
    assert (len(made.train), len(made.held_out)) == (14, 6)
    sides = [{p.prompt[1]["content"] for p in side} for side in (made.train, made.held_out)]  # type: ignore[index]
    assert not sides[0] & sides[1]
    assert made.train[0].prompt[0] == {"role": "system", "content": "You may call."}  # type: ignore[index]


def test_parquet_fills_calls_with_nothing_and_that_is_dropped(tmp_path: Path) -> None:
    rows = [
        {"prompt": "p", "gold": [{"name": "f", "arguments": {"a": 1}}]},
        {"prompt": "p", "gold": [{"name": "g", "arguments": {"b": "x"}}]},
    ]
    pl.DataFrame(rows).write_parquet(tmp_path / "d.parquet")
    settings = TaskConfig(
        name="tool_call", path=str(tmp_path / "d.parquet"), answer_column="gold", held_out_share=0, template="{prompt}!"
    )
    made = make_task(settings, 5, 0, tmp_path)
    rewards = {str(p.columns["answer"][0].name): made.reward([p], ["f(a=1)"]) for p in made.train}
    assert rewards == {"f": [1.0], "g": [0.0]}
    assert made.train[0].prompt == "p!"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "p", "gold": "<tool_call>{"}, "row 1: the gold calls cannot be read"),
        ({"prompt": "p", "gold": " "}, "row 1: the gold answer is empty"),
        ({"prompt": "p", "gold": 5}, "row 1: expected gold calls, got a number"),
        ({"prompt": "", "gold": "x"}, 'row 1: column "prompt" is empty'),
        ({"prompt": "p", "gold": "x", "tools": "{"}, "function schemas are not valid JSON"),
        ({"prompt": "p", "gold": "x", "tools": [{"description": "d"}]}, "a function schema has no name"),
        ({"promt": "p", "gold": "x"}, 'no column "prompt"; did you mean "promt"'),
    ],
)
def test_a_bad_row_is_refused_by_its_number(row: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        task(tmp_path / "d.jsonl", [row], answer_column="gold")


def test_leaderboard_questions_need_their_answers(tmp_path: Path) -> None:
    row = {"id": "simple_0", "question": [[{"role": "user", "content": "u"}]], "function": TOOLS}
    with pytest.raises(UserError, match="possible_answer"):
        task(tmp_path / "d.json", [row])
    (tmp_path / "possible_answer").mkdir()
    (tmp_path / "possible_answer" / "d.json").write_text('{"id": "simple_1", "ground_truth": []}')
    with pytest.raises(UserError, match='row 1: there is no possible answer for id "simple_0"'):
        task(tmp_path / "d.json", [row])
    with pytest.raises(UserError, match="row 1: only questions of one turn"):
        task(tmp_path / "d.json", [{**row, "question": [[], []]}])


def first(options: Any) -> Any:
    """A value that a possible-answer list accepts, written down."""
    return written(next((option for option in options if option != ""), []))


def written(option: Any) -> Any:
    if isinstance(option, dict):
        return {key: first(values) for key, values in option.items() if "" not in values}
    return [written(part) for part in option] if isinstance(option, list) else option


@pytest.mark.parametrize(
    ("kind", "count"),
    [("simple_python", 400), ("multiple", 200), ("parallel", 200), ("live_simple", 258), ("irrelevance", 240)],
)
def test_gold_answers_of_the_leaderboard_are_right(kind: str, count: int) -> None:
    settings = TaskConfig(name="tool_call", path=str(shared("bfcl", f"BFCL_v4_{kind}.json")), held_out_share=1)
    made = make_task(settings, 5, 0, Path())
    assert len(made.held_out) == count
    texts = [
        block(
            *(
                json.dumps(
                    {"name": g.name, "arguments": {k: first(v) for k, v in g.accepted.items() if k not in g.optional}}
                )
                for g in reversed(problem.columns["answer"])
            )
        )
        if problem.columns["answer"]
        else "None of the functions fits."
        for problem in made.held_out
    ]
    assert sum(made.reward(made.held_out, texts)) == count
    assert sum(made.reward(made.held_out, ["None fits."] * count)) == (count if kind == "irrelevance" else 0)


def test_gold_answers_of_toolrl_are_right() -> None:
    settings = TaskConfig(name="tool_call", path=str(shared("toolrl", "rlla_4k_test.parquet")), held_out_share=0)
    made = make_task(settings, 5, 0, Path())
    texts = [p.columns["reward_model"]["ground_truth"] for p in made.train]
    assert sum(made.reward(made.train, texts)) == len(made.train) == 80
    assert all(p.columns["functions"] for p in made.train), "the functions listed in the system prompt are known"
    assert sum(made.reward(made.train, ["I cannot."] * 80)) == sum(not p.columns["answer"] for p in made.train) == 9
