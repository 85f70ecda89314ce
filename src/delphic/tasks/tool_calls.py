"""Tool calls in text: parsing the ways models write them, and matching them with gold calls by structure.

Nothing is evaluated: JSON is read by json, Python syntax by ast, and only literals are taken from it.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FENCE = re.compile(r"^```[\w-]*\s*\n(.*?)\n?```$", re.DOTALL)
_PYTHON_CALL = re.compile(r"^\[?\s*[A-Za-z_][\w.]*\s*\(")
LONGEST = 20_000  # characters of one block of calls


@dataclass(frozen=True)
class Call:
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GoldCall:
    """A call that counts as right: for each argument the values accepted, and whether it may be left out.

    `loose_text` compares texts as the Berkeley function-calling leaderboard does: without case, spaces and ,./-_*^.
    """

    name: str
    accepted: Mapping[str, Sequence[Any]]
    optional: frozenset[str] = frozenset()
    loose_text: bool = False


def answer_part(text: str) -> str:
    """What follows the reasoning: the text after the last </think>; nothing where the reasoning never ends."""
    if "</think>" in text:
        return text.rpartition("</think>")[2]
    return text.partition("<think>")[0]


def parse_calls(text: str) -> list[Call] | None:
    """The calls of a completion; [] where it makes none; None where it tries and fails.

    Read are <tool_call> blocks (Hermes, Qwen; one or several JSON objects in each), and a completion that is nothing but
    JSON or Python calls: `[f(a=1), g(b="x")]`.
    """
    text = answer_part(text)
    if "<tool_call>" in text or "</tool_call>" in text:
        blocks = _BLOCK.findall(text)
        if not len(blocks) == text.count("<tool_call>") == text.count("</tool_call>"):
            return None  # cut off, or nested
        calls: list[Call] = []
        for block in blocks:
            found = _block(block)
            if not found:
                return None
            calls += found
        return calls
    whole = text.strip()
    fenced = _FENCE.match(whole)
    whole = fenced[1].strip() if fenced else whole
    if whole == "[]":
        return []
    found = _block(whole)
    if found:
        return found
    tried = (whole[:1] in "[{" and '"name"' in whole) or _PYTHON_CALL.match(whole)
    return None if whole and tried else []


def mentions_call(text: str, names: Sequence[str]) -> bool:
    """Whether a text writes one of the functions as a call, wherever it does. An answer without calls must not."""
    said = answer_part(text)
    return any(re.search(rf'(?<![\w.]){re.escape(name)}\s*\(|"name"\s*:\s*"{re.escape(name)}"', said) for name in names)


def _block(text: str) -> list[Call] | None:
    """The calls of one block; None where it is anything else."""
    text = text.strip()
    if not text or len(text) > LONGEST:
        return None
    if text[0] in "[{":
        calls = _json_calls(text)
        if calls is not None:
            return calls
    return _python_calls(text) if _PYTHON_CALL.match(text) else None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _json_calls(text: str) -> list[Call] | None:
    decoder = json.JSONDecoder(parse_constant=_no_constant)
    values: list[Any] = []
    position = 0
    try:
        while position < len(text):
            value, position = decoder.raw_decode(text, position)
            values += value if isinstance(value, list) else [value]
            gap = re.compile(r"[\s,;]*").match(text, position)
            position = gap.end() if gap else position
    except (ValueError, RecursionError):
        return None
    calls = [call_of(value) for value in values]
    return None if any(call is None for call in calls) else [call for call in calls if call is not None]


def call_of(value: Any) -> Call | None:
    """A call from its JSON: {"name", "arguments" or "parameters"}, or OpenAI's {"function": {…}}; arguments may be a
    table, or JSON text. None for anything else."""
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get("function"), Mapping):
        value = value["function"]
    name = value.get("name")
    given = [value[key] for key in ("arguments", "parameters", "args") if value.get(key) is not None]
    arguments = given[0] if given else {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_no_constant) if arguments.strip() else {}
        except (ValueError, RecursionError):
            return None
    if not isinstance(name, str) or not name or not isinstance(arguments, Mapping) or len(given) > 1:
        return None
    return Call(name, dict(arguments))


def _python_calls(text: str) -> list[Call] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a policy's invalid escapes are not ours to report
            body = ast.parse(text, mode="eval").body
        nodes = body.elts if isinstance(body, (ast.List, ast.Tuple)) else [body]
        return [_python_call(node) for node in nodes]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _python_call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("not a call with named arguments")
    names: list[str] = []
    target = node.func
    while isinstance(target, ast.Attribute):
        names.append(target.attr)
        target = target.value
    if not isinstance(target, ast.Name):
        raise ValueError("not a function's name")
    names.append(target.id)
    return Call(".".join(reversed(names)), {str(k.arg): _literal(k.value) for k in node.keywords})


_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, (bool, int, float, str))):
        return node.value
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _literal(node.operand)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(element) for element in node.elts]
    if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
        return {_literal(k): _literal(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None}
    raise ValueError("not a literal")


def same_value(gold: Any, given: Any, loose_text: bool = False) -> bool:
    """Equality with types: 1 is 1.0 but neither "1" nor true; lists in order; tables by key."""
    if isinstance(gold, bool) or isinstance(given, bool) or gold is None or given is None:
        return type(gold) is type(given) and gold == given
    if isinstance(gold, (int, float)) and isinstance(given, (int, float)):
        return gold == given
    if isinstance(gold, str) and isinstance(given, str):
        return (_loose(gold) == _loose(given)) if loose_text else gold == given
    if isinstance(gold, (list, tuple)) and isinstance(given, (list, tuple)):
        return len(gold) == len(given) and all(same_value(a, b, loose_text) for a, b in zip(gold, given, strict=True))
    if isinstance(gold, Mapping) and isinstance(given, Mapping):
        return gold.keys() == given.keys() and all(same_value(gold[k], given[k], loose_text) for k in gold)
    return False


def _loose(text: str) -> str:
    return re.sub(r"[ ,./\-_*^]", "", text).lower().replace("'", '"')


def _possible(options: Any, given: Any) -> bool:
    """A value against a possible-answer list: any option; inside a table, each key has such a list of its own, in which
    "" means that the key may be left out."""
    return any(_option(option, given) for option in options)


def _option(option: Any, given: Any) -> bool:
    if isinstance(option, Mapping) and isinstance(given, Mapping):
        if any(key not in option for key in given):
            return False
        return all(
            _possible(_listed(values), given[key]) if key in given else "" in _listed(values)
            for key, values in option.items()
        )
    if isinstance(option, list) and isinstance(given, list) and any(isinstance(part, Mapping) for part in option):
        return len(option) == len(given) and all(_option(a, b) for a, b in zip(option, given, strict=True))
    return same_value(option, given, loose_text=True)


def _listed(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]


def matches(gold: GoldCall, call: Call) -> bool:
    """Whether a call is the gold one: its name, no argument too many, none missing, every value accepted."""
    if call.name != gold.name or any(key not in gold.accepted for key in call.arguments):
        return False
    for key, options in gold.accepted.items():
        if key not in call.arguments:
            if key not in gold.optional:
                return False
        elif gold.loose_text:
            if not _possible(options, call.arguments[key]):
                return False
        elif not any(same_value(option, call.arguments[key]) for option in options):
            return False
    return True


def all_match(golds: Sequence[GoldCall], calls: Sequence[Call]) -> bool:
    """Whether the calls are the gold ones, one to one, in whatever order (augmenting paths: a greedy choice can give a
    call away that another gold one needs)."""
    if len(golds) != len(calls):
        return False
    fits = [[matches(gold, call) for call in calls] for gold in golds]
    taken: dict[int, int] = {}

    def place(gold: int, tried: set[int]) -> bool:
        for call in range(len(calls)):
            if fits[gold][call] and call not in tried:
                tried.add(call)
                if call not in taken or place(taken[call], tried):
                    taken[call] = gold
                    return True
        return False

    return all(place(gold, set()) for gold in range(len(golds)))


def exact(call: Call, types: Mapping[str, str] | None = None) -> GoldCall:
    """A gold call from data that give one value an argument. Where that value is not of the type its schema names ("1"
    for an integer), the value in that type is accepted as well."""
    accepted = {key: [value, *_converted(value, (types or {}).get(key, ""))] for key, value in call.arguments.items()}
    return GoldCall(call.name, accepted)


def _converted(value: Any, type_name: str) -> list[Any]:
    if isinstance(value, str):
        try:
            if type_name in ("integer", "int", "long"):
                return [int(value)]
            if type_name in ("number", "float", "double"):
                return [float(value)]
        except ValueError:
            return []
        if type_name in ("boolean", "bool") and value.lower() in ("true", "false"):
            return [value.lower() == "true"]
    elif type_name in ("string", "str") and isinstance(value, (bool, int, float)):
        return [json.dumps(value)]
    return []


def possible(answer: Mapping[str, Mapping[str, Sequence[Any]]]) -> GoldCall:
    """A gold call from a possible answer of the Berkeley leaderboard: {name: {argument: [accepted, …]}}, "" = optional.

    Raises:
        ValueError: not of that shape.
    """
    if not isinstance(answer, Mapping) or len(answer) != 1:
        raise ValueError("expected {function: {argument: [values]}}")
    (name, arguments), *_ = answer.items()
    if not isinstance(arguments, Mapping):
        raise ValueError("expected {function: {argument: [values]}}")
    # an empty list of possible values is written where the empty list is the value
    accepted = {key: (_listed(values) or [[]]) for key, values in arguments.items()}
    optional = frozenset(key for key, values in accepted.items() if "" in values)
    return GoldCall(name, accepted, optional, loose_text=True)
