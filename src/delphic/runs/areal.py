"""AReaL's console: a box table of figures after each `Train step 7/50 done.`"""

from __future__ import annotations

import re
from collections.abc import Iterable

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STEP = re.compile(r"\bTrain step (\d{1,15})(?:/\d+)? done")
_BAR = "│"


def areal_rows(lines: Iterable[str]) -> list[dict[str, float]]:
    """One row a finished step, {"step": …, key: value, …}, in the order of the file.

    A line of a table is key, value, key, value, … between bars; a cell without its closing bar was cut off and is left out,
    as is one that holds no number. Several tables of one step (one a minibatch) give the mean of each figure. A step whose
    table is missing has no row.
    """
    steps: list[tuple[int, dict[str, list[float]]]] = []
    for line in lines:
        if _BAR in line:
            if steps:
                _collect(line, steps[-1][1])
        elif found := _STEP.search(_ANSI.sub("", line)):
            steps.append((int(found[1]), {}))
    return [
        {"step": step, **{key: sum(values) / len(values) for key, values in figures.items()}}
        for step, figures in steps
        if figures
    ]


def _collect(line: str, figures: dict[str, list[float]]) -> None:
    cells = [cell.strip() for cell in _ANSI.sub("", line).split(_BAR)[1:-1]]
    for key, value in zip(cells[::2], cells[1::2], strict=False):
        try:
            number = float(value)
        except ValueError:
            continue
        if key and key != "step":
            figures.setdefault(key, []).append(number)
