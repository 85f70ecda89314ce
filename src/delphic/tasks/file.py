"""Problems from a user's own JSONL file: one object a line, with named prompt and answer columns."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from delphic.errors import UserError, nearest
from delphic.tasks.base import Problem


class FileTask:
    """Rows of a JSONL file as problems; all columns reach the reward functions by name.

    The held-out share is drawn once, by the seed and the row number. Its reward functions come from the config.

    Raises:
        UserError: unreadable file, a line that is not a JSON object, a missing column or an empty prompt or answer,
            each with its row number (from 1).
    """

    name = "file"

    def __init__(
        self,
        path: Path,
        prompt_column: str,
        answer_column: str | None,
        template: str,
        held_out_share: float,
        seed: int,
        value_column: str | None = None,
    ) -> None:
        try:
            lines = path.read_text(encoding="utf-8").split("\n")  # splitlines would cut at U+2028 inside a string
        except FileNotFoundError:
            raise UserError(f'task.path: there is no file "{path}"') from None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f'task.path: "{path}" cannot be read ({error})') from None
        problems = [
            _problem(line, f"{path}, row {number}", prompt_column, answer_column, template, value_column)
            for number, line in enumerate(lines, 1)
            if line.strip()
        ]
        if not problems:
            raise UserError(f'task.path: "{path}" has no rows')
        order = list(range(len(problems)))
        random.Random(f"file/{seed}").shuffle(order)
        n_held_out = round(held_out_share * len(problems))
        self.held_out = [problems[i] for i in order[:n_held_out]]
        self.train = [problems[i] for i in order[n_held_out:]]

    def reward(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[float | None]:
        """1 where the completion, stripped, equals the answer column ("exact_match" in the config)."""
        return [
            float(text.strip() == str(p.columns["answer"]).strip())
            for p, text in zip(problems, completions, strict=True)
        ]


def _problem(
    line: str, where: str, prompt_column: str, answer_column: str | None, template: str, value_column: str | None
) -> Problem:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not valid JSON ({error.msg})") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected a JSON object, got {type(row).__name__}")
    for column in filter(None, (prompt_column, answer_column, value_column)):
        if column not in row:
            raise UserError(f'{where}: there is no column "{column}"{nearest(column, row)}')
        if row[column] is None or str(row[column]).strip() == "":
            raise UserError(f'{where}: column "{column}" is empty')
    fields: dict[str, Any] = {"prompt": row[prompt_column], **row}

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
    columns = {k: v for k, v in row.items() if k not in ("prompt", "completion")}
    if answer_column:
        columns["answer"] = row[answer_column]
    value = None
    if value_column:
        try:
            value = float(row[value_column])
        except (TypeError, ValueError):
            raise UserError(f'{where}: column "{value_column}" holds {row[value_column]!r}, not a number') from None
    return Problem(prompt, columns, value)
