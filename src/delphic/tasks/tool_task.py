"""Tool-calling problems: which functions to call, with what, or that none fits.

Three kinds of data are read: the Berkeley leaderboard's questions (possible answers beside them in `possible_answer/`),
rows with a prompt and a gold answer that holds calls (ToolRL, ToolACE), and transcripts, of which every turn of the
assistant with calls becomes one problem: all earlier turns, tool results included, are its prompt and so outside the
loss.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from delphic.errors import UserError
from delphic.tasks.base import Problem
from delphic.tasks.file import divide, make_prompt
from delphic.tasks.rows import Row, find, is_empty, kind, messages, read
from delphic.tasks.tool_calls import (
    Call,
    GoldCall,
    all_match,
    call_of,
    exact,
    mentions_call,
    parse_calls,
    possible,
)

TRANSCRIPT_COLUMNS = ("prompt", "messages", "conversations")
REFERENCE_COLUMN = "reward_model.ground_truth"

# the Berkeley leaderboard's names of JSON schema's types
SCHEMA_TYPES = {"dict": "object", "float": "number", "tuple": "array", "hashmap": "object", "list": "array"}
_LISTED_TOOL = re.compile(r"^\d+\. Name: (.+)\nDescription: (.*?)\nParameters: (\{.*\})$", re.MULTILINE | re.DOTALL)


class ToolCallTask:
    """Problems whose reward is 1 for the gold calls, in any order, and nothing else; else 0.

    Args:
        prompt_column: None = "prompt", "messages" or "conversations", whichever is there.
        answer_column: gold calls (JSON, or text that holds them); None = `reward_model.ground_truth` where there is one;
            without it, a row is a transcript.
        tools_column: function schemas, as a list or as JSON text; a row need not have it.

    Raises:
        UserError: a row that is none of these, or whose gold calls cannot be read, by its number.
    """

    name = "tool_call"
    reward_name = "tool_call"

    def __init__(
        self,
        path: Path | str,
        prompt_column: str | None,
        answer_column: str | None,
        tools_column: str,
        template: str,
        held_out_share: float,
        seed: int,
        *,
        held_out_path: Path | str | None = None,
        split: str = "train",
        held_out_split: str | None = None,
        subset: str | None = None,
    ) -> None:
        def problems(source: Path | str, part: str) -> list[list[Problem]]:
            rows = read(source, part, subset)
            if "question" in rows[0].fields and "function" in rows[0].fields:
                answers = _possible_answers(Path(source), rows)
                return [[_leaderboard(row, answers, template)] for row in rows]
            return [_rows(row, prompt_column, answer_column, tools_column, template) for row in rows]

        found = problems(path, split)
        if held_out_path is not None or held_out_split is not None:
            train, held_out = found, problems(held_out_path or path, held_out_split or split)
        else:  # turns of one transcript stay on one side
            train, held_out = divide(found, held_out_share, seed)
        self.train: list[Problem] = [problem for turns in train for problem in turns]
        self.held_out: list[Problem] = [problem for turns in held_out for problem in turns]
        if not self.train and not self.held_out:
            raise UserError(f'task.path: no row of "{path}" has a gold call')

    def reward(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[float | None]:
        return [
            judge(p.columns["answer"], p.columns["functions"], c) for p, c in zip(problems, completions, strict=True)
        ]


def judge(golds: Sequence[GoldCall], functions: Sequence[str], completion: str) -> float:
    """1 where a completion makes the gold calls; where there are none, where it makes and mentions none."""
    calls = parse_calls(completion)
    if calls is None:
        return 0.0
    if not golds:
        return float(not calls and bool(completion.strip()) and not mentions_call(completion, functions))
    return float(all_match(golds, calls))


def _columns(row: Row, golds: list[GoldCall], functions: list[str]) -> dict[str, Any]:
    hidden = ("prompt", "completion", "messages", "conversations")
    return {k: v for k, v in row.fields.items() if k not in hidden} | {"answer": golds, "functions": functions}


# --- the Berkeley leaderboard -----------------------------------------------------------------------------------------


def _possible_answers(path: Path, rows: Sequence[Row]) -> dict[str, Any] | None:
    """Possible answers by id; None for the files of questions that no function fits."""
    beside = path.parent / "possible_answer" / path.name
    if beside.exists():
        return {str(find(row, "id")): find(row, "ground_truth") for row in read(beside)}
    if all("irrelevance" in str(row.fields.get("id")) for row in rows):
        return None
    raise UserError(f'task.path: the answers to "{path}" should be in "{beside}", and there is no such file')


def _leaderboard(row: Row, answers: Mapping[str, Any] | None, template: str) -> Problem:
    turns, functions, name = find(row, "question"), find(row, "function"), str(row.fields.get("id"))
    if not isinstance(turns, list) or len(turns) != 1:
        raise UserError(f"{row.where}: only questions of one turn can be judged by their calls, this has {len(turns)}")
    tools = schemas(functions, row.where)
    golds: list[GoldCall] = []
    if answers is not None:
        if name not in answers:
            raise UserError(f'{row.where}: there is no possible answer for id "{name}"')
        try:
            golds = [possible(answer) for answer in answers[name]]
        except (ValueError, TypeError, AttributeError):
            raise UserError(f'{row.where}: the possible answer for id "{name}" is no list of calls') from None
    names = [tool["function"]["name"] for tool in tools]
    prompt = make_prompt(turns[0], template, row.fields, row.where)
    columns = {k: v for k, v in row.fields.items() if k != "function"} | {"answer": golds, "functions": names}
    return Problem(prompt, columns, tools=tools)


def schemas(functions: Any, where: str) -> list[dict[str, Any]]:
    """Function schemas as chat templates take them: {"type": "function", "function": {name, description, parameters}}.

    Raises:
        UserError: not a list of functions with names.
    """
    if isinstance(functions, str):
        try:
            functions = json.loads(functions) if functions.strip() else []
        except (ValueError, RecursionError):
            raise UserError(f"{where}: the function schemas are not valid JSON") from None
    functions = [functions] if isinstance(functions, Mapping) else functions
    if not isinstance(functions, (list, tuple)):
        raise UserError(f"{where}: expected a list of function schemas, got {kind(functions)}")
    out = []
    for function in functions:
        plain = function.get("function", function) if isinstance(function, Mapping) else None
        if not isinstance(plain, Mapping) or not isinstance(plain.get("name"), str):
            raise UserError(f"{where}: a function schema has no name")
        out.append({"type": "function", "function": _json_schema(plain)})
    return out


def _json_schema(node: Any) -> Any:
    """A schema with JSON schema's names of types; "any" is said by saying nothing; what holds nothing is dropped."""
    if isinstance(node, Mapping):
        out = {}
        for key, value in node.items():
            if value is None and key != "default":
                continue
            if key == "type" and isinstance(value, str):
                if value == "any":
                    continue
                value = SCHEMA_TYPES.get(value, value)
            out[key] = _json_schema(value)
        return out
    return [_json_schema(part) for part in node] if isinstance(node, (list, tuple)) else node


# --- prompts with gold calls, and transcripts ---------------------------------------------------------------------------


def _rows(
    row: Row, prompt_column: str | None, answer_column: str | None, tools_column: str, template: str
) -> list[Problem]:
    column = prompt_column or next((name for name in TRANSCRIPT_COLUMNS if name in row.fields), "prompt")
    value = find(row, column)
    if is_empty(value):
        raise UserError(f'{row.where}: column "{column}" is empty')
    chat = [{"role": "user", "content": value}] if isinstance(value, str) else messages(value, row.where)
    if column == "conversations" and isinstance(row.fields.get("system"), str) and chat[0]["role"] != "system":
        chat = [{"role": "system", "content": row.fields["system"]}, *chat]  # as ToolACE keeps it
    held = row.fields.get(tools_column)
    tools = None if is_empty(held) else schemas(held, row.where)
    types = _types(tools) if tools else _listed_types(chat)
    if answer_column is None and "reward_model" in row.fields:
        answer_column = REFERENCE_COLUMN
    if answer_column is not None:
        golds = [exact(call, types.get(call.name)) for call in _gold_calls(find(row, answer_column), row.where)]
        prompt = make_prompt(value, template, row.fields, row.where)
        return [Problem(prompt, _columns(row, golds, sorted(types)), tools=tools)]
    problems = []
    for number, message in enumerate(chat):
        if message["role"] == "assistant" and (calls := _turn_calls(message, row.where)):
            golds = [exact(call, types.get(call.name)) for call in calls]
            if not number:
                raise UserError(f"{row.where}: the transcript begins with a call, and nothing asks for it")
            prompt = make_prompt(chat[:number], template, row.fields, row.where)
            problems.append(Problem(prompt, _columns(row, golds, sorted(types)), tools=tools))
    return problems


def _gold_calls(value: Any, where: str) -> list[Call]:
    """Gold calls from JSON, or from text as a model would write them; a text without calls is a gold answer in words."""
    if isinstance(value, str):
        if not value.strip():
            raise UserError(f"{where}: the gold answer is empty; a list without calls reads []")
        calls = parse_calls(value)
    else:
        listed = [value] if isinstance(value, Mapping) else value
        if not isinstance(listed, (list, tuple)):
            raise UserError(f"{where}: expected gold calls, got {kind(value)}")
        found = [call_of(_without_nothing(part)) for part in listed]
        calls = None if any(call is None for call in found) else [call for call in found if call is not None]
    if calls is None:
        raise UserError(f"{where}: the gold calls cannot be read: {str(value)[:80]!r}")
    return calls


def _without_nothing(value: Any) -> Any:
    """A call without the keys that Parquet filled with nothing."""
    if isinstance(value, Mapping):
        return {key: _without_nothing(part) for key, part in value.items() if part is not None}
    return value


def _turn_calls(message: Mapping[str, Any], where: str) -> list[Call]:
    if not is_empty(message.get("tool_calls")):
        return _gold_calls(message["tool_calls"], where)
    return parse_calls(str(message["content"])) or []


def _types(tools: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Argument types by function, from schemas."""
    out = {}
    for tool in tools:
        function = tool["function"]
        parameters = function.get("parameters")
        parameters = parameters if isinstance(parameters, Mapping) else {}
        properties = parameters.get("properties", parameters)
        properties = properties if isinstance(properties, Mapping) else {}
        out[function["name"]] = {
            key: str(schema["type"])
            for key, schema in properties.items()
            if isinstance(schema, Mapping) and "type" in schema
        }
    return out


def _listed_types(chat: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Argument types by function, from a system prompt that lists them as ToolRL does (`1. Name: …`)."""
    out: dict[str, dict[str, str]] = {}
    for message in chat:
        if message["role"] == "system":
            for part in re.split(r"\n(?=\d+\. Name: )", str(message["content"])):
                match = _LISTED_TOOL.match(part.split("\n\n**")[0].strip())
                if not match:
                    continue
                try:
                    parameters = json.loads(match[3])
                except (ValueError, RecursionError):
                    parameters = {}
                out[match[1].strip()] = {
                    key: str(schema["type"])
                    for key, schema in parameters.items()
                    if isinstance(schema, Mapping) and "type" in schema
                }
    return out
