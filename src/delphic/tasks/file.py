"""Problems from a user's own rows (JSONL, JSON, CSV, Parquet, a hub dataset), with named prompt and answer columns."""

from __future__ import annotations

import math
import random
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from delphic.errors import UserError, nearest
from delphic.tasks.answers import OwnReward, exact_match
from delphic.tasks.base import Problem, Prompt
from delphic.tasks.rows import NoAnswerError, Row, find, is_empty, messages, read, refuse_mixed


@dataclass(frozen=True)
class GoldCheck:
    """What a reward needs of every gold answer. `parses` gets them all at once and says which it can read."""

    reward: str
    wanted: str  # "a number"
    parses: Callable[[Sequence[Any]], list[bool]]


class FileTask:
    """Rows of a file or hub dataset as problems; all columns reach the reward functions by name.

    The held-out share is drawn once, by the seed and the row number, unless a second file is held out.
    Its reward functions come from the config.

    Args:
        path: a file, or `org/name` on the hub.
        prompt_column, answer_column, value_column: names, or dotted paths into nested columns. A prompt may be chat
            messages; the template then shapes the last message of the user.
        held_out_path, split, held_out_split, subset: a second file; for hub datasets the splits and the subset.
        gold: finds the gold answer in a row, where it is not simply the answer column.
        checks: what the rewards need of the gold answers; a row that fails is refused, or left out and counted.
        own: the task's own reward.

    Raises:
        UserError: unreadable file, a line that is not a JSON object, a missing column, an empty prompt or answer, answers
            of several types or that a reward cannot parse, each with its row number (from 1).
    """

    def __init__(
        self,
        path: Path | str,
        prompt_column: str,
        answer_column: str | None,
        template: str,
        held_out_share: float,
        seed: int,
        value_column: str | None = None,
        *,
        held_out_path: Path | str | None = None,
        split: str = "train",
        held_out_split: str | None = None,
        subset: str | None = None,
        gold: Callable[[Row], Any] | None = None,
        checks: Sequence[GoldCheck] = (),
        unparsable: Literal["refuse", "skip"] = "refuse",
        own: OwnReward = exact_match,
        name: str = "file",
        reward_name: str = "exact_match",
    ) -> None:
        self.name, self.reward_name, self._own = name, reward_name, own

        def problems(source: Path | str, part: str) -> list[Problem]:
            rows = read(source, part, subset)
            if gold is None and answer_column is None:
                answers = None
            else:
                found = [(row, _answer(row, answer_column, gold, unparsable)) for row in rows]
                given = [(row, answer) for row, answer in found if answer is not None]
                if not given:
                    raise UserError(f'task.answer_column: no row of "{source}" has a gold answer')
                if len(given) < len(rows):
                    warnings.warn(f"{source}: {len(rows) - len(given)} rows left out, no gold answer", stacklevel=3)
                rows, answers = [row for row, _ in given], [answer for _, answer in given]
                refuse_mixed(rows, answers, answer_column or "answer")
                kept = keep_parsed(rows, answers, checks, unparsable)
                rows, answers = [rows[i] for i in kept], [answers[i] for i in kept]
            return [
                _problem(
                    row, prompt_column, template, value_column, None if answers is None else {"answer": answers[i]}
                )
                for i, row in enumerate(rows)
            ]

        all_problems = problems(path, split)
        if held_out_path is not None or held_out_split is not None:
            self.train = all_problems
            self.held_out = problems(held_out_path or path, held_out_split or split)
        else:
            self.train, self.held_out = divide(all_problems, held_out_share, seed)

    def reward(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[float | None]:
        """The task's own reward: by default 1 where the completion, stripped, equals the answer column."""
        return self._own(problems, completions)


def divide(found: Sequence[Any], held_out_share: float, seed: int) -> tuple[list[Any], list[Any]]:
    """(training, held-out) items: a share drawn once, by the seed."""
    order = list(range(len(found)))
    random.Random(f"file/{seed}").shuffle(order)
    n_held_out = round(held_out_share * len(found))
    return [found[i] for i in order[n_held_out:]], [found[i] for i in order[:n_held_out]]


def keep_parsed(rows: Sequence[Row], answers: Sequence[Any], checks: Sequence[GoldCheck], unparsable: str) -> list[int]:
    """Indices of the rows whose gold answer every reward can parse.

    Raises:
        UserError: one cannot, and they are not to be skipped; or none can.
    """
    bad: dict[int, GoldCheck] = {}
    for check in checks:
        for index, fine in enumerate(check.parses(answers)):
            if not fine:
                bad.setdefault(index, check)
    if bad and (unparsable == "refuse" or len(bad) == len(rows)):
        first = min(bad)
        raise UserError(
            f"{rows[first].where}: the gold answer {str(answers[first])!r:.60} is not {bad[first].wanted}, which reward "
            f'"{bad[first].reward}" needs ({len(bad)} of {len(rows)} rows); correct the data, or leave such rows out '
            'with task.unparsable = "skip"'
        )
    if bad:
        where = rows[0].where.rpartition(", row")[0]
        warnings.warn(f"{where}: {len(bad)} of {len(rows)} rows left out, gold answer not parsable", stacklevel=3)
    return [index for index in range(len(rows)) if index not in bad]


def _answer(row: Row, column: str | None, gold: Callable[[Row], Any] | None, unparsable: str) -> Any:
    """The gold answer of a row; None where there is none and such rows are to be left out."""
    try:
        return gold(row) if gold else _filled(row, str(column))
    except NoAnswerError:
        if unparsable == "skip":
            return None
        raise


def _filled(row: Row, column: str) -> Any:
    value = find(row, column)
    if is_empty(value):
        raise NoAnswerError(f'{row.where}: column "{column}" is empty')
    return value


def fill_template(template: str, fields: Mapping[str, Any], where: str) -> str:
    """The template with its {columns} replaced.

    Raises:
        UserError: a name that is no column, or nothing left.
    """

    def replace(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        if match[1] not in fields:
            raise UserError(
                f'{where}: task.template names "{{{match[1]}}}", which is no column{nearest(match[1], fields)}'
            )
        return str(fields[match[1]])

    # only {name} is a placeholder, so that a template may hold braces of its own; {{ and }} are literal ones
    prompt = re.sub(r"\{\{|\}\}|\{([A-Za-z_]\w*)\}", replace, template)
    if not prompt.strip():
        raise UserError(f"{where}: task.template leaves the prompt empty")
    return prompt


def make_prompt(value: Any, template: str, fields: Mapping[str, Any], where: str) -> Prompt:
    """A text prompt, or chat messages whose last message of the user goes through the template."""
    if not isinstance(value, (list, tuple)):
        return fill_template(template, {"prompt": value, **fields}, where)
    chat = messages(value, where)
    if template != "{prompt}":
        last = next((i for i in reversed(range(len(chat))) if chat[i]["role"] == "user"), None)
        if last is None:
            raise UserError(f"{where}: task.template shapes the last message of the user, and there is none")
        text = fill_template(template, {**fields, "prompt": chat[last]["content"]}, where)
        chat[last] = {**chat[last], "content": text}
    return chat


def _problem(
    row: Row, prompt_column: str, template: str, value_column: str | None, answer: Mapping[str, Any] | None
) -> Problem:
    prompt = make_prompt(_filled(row, prompt_column), template, row.fields, row.where)
    columns = {k: v for k, v in row.fields.items() if k not in ("prompt", "completion")} | dict(answer or {})
    value = None
    if value_column:
        held = _filled(row, value_column)
        try:
            value = float(held)
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise UserError(f'{row.where}: column "{value_column}" holds {held!r}, not a finite number')
    return Problem(prompt, columns, value)
