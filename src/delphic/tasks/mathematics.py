"""Mathematical answers compared by math-verify, in worker processes under a time limit of ours."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from typing import Any

from delphic.errors import UserError
from delphic.tasks.answers import boxed
from delphic.tasks.base import Problem
from delphic.tasks.file import GoldCheck
from delphic.tasks.rows import NoAnswerError, Row, find, is_empty
from delphic.tasks.workers import shared_pool

_PLAIN = re.compile(r"-?\d{1,30}(\.\d{1,30})?")  # parses for certain, so no process need look at it


class MathVerifier:
    """`math_verify` on many completions. A completion slower than `limit` seconds has reward 0, and is warned of.

    Raises:
        UserError: math-verify is not installed.
    """

    def __init__(self, limit: float) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise UserError('the reward "math_verify" needs math-verify: pip install "delphic[tasks]"')
        self.pool = shared_pool("math", limit)

    def parses(self, golds: Sequence[Any]) -> list[bool]:
        """Whether math-verify reads each gold answer as an expression; equal ones are read once."""
        unsure = list(dict.fromkeys(str(gold) for gold in golds if not _PLAIN.fullmatch(str(gold))))
        read = dict(zip(unsure, self.pool.map([("parse", gold) for gold in unsure]), strict=True))
        return [bool(read.get(str(gold), True)) for gold in golds]

    def check(self) -> GoldCheck:
        return GoldCheck("math_verify", "an expression that math-verify can parse", self.parses)

    def reward(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[float | None]:
        """1 where the completion's answer (the last box, or else the last expression) equals the gold one, else 0."""
        requests = [
            ("verify", str(problem.columns["answer"]), text)
            for problem, text in zip(problems, completions, strict=True)
        ]
        unique = list(dict.fromkeys(requests))  # short answers repeat within a group
        judged = dict(zip(unique, self.pool.map(unique), strict=True))
        return [judged[request] or 0.0 for request in requests]


def read_gold(row: Row, column: str | None) -> str:
    r"""The gold answer of a row: the answer column, or what its `\boxed{}` holds; a solution must have a box.

    Raises:
        UserError: no such column, nothing in it, or a solution without a box.
    """
    name = column or ("answer" if "answer" in row.fields else "solution")
    value = find(row, name)
    if is_empty(value):
        raise NoAnswerError(f'{row.where}: column "{name}" is empty')
    inside = boxed(str(value))
    if inside is None and name.rpartition(".")[2] == "solution":
        raise NoAnswerError(f'{row.where}: column "{name}" has no \\boxed{{}} to take the gold answer from')
    return str(value) if inside is None else inside
