"""Lines of figures that a trainer prints: verl's, AReaL's tables, the dicts of transformers. Nothing in them is run."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from delphic.errors import UserError
from delphic.runs.jsonlines import LONGEST
from delphic.runs.rows import Raw, raw_of_rows

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
STEP = re.compile(r"(?<![\w/])step:(\d{1,15}) - ")
NUMBER = re.compile(r"(?:np\.\w{1,20}\()?(-?(?:nan|inf|[\d.]+(?:e[+-]?\d+)?))\)?", re.IGNORECASE)
OBJECT = re.compile(r"\{['\"][^{}]{1,20000}\}")  # flat, and bounded, so that no line takes more than linear time
BARE_WORD = re.compile(r"(?<![\w'\"])-?(?:nan|inf)(?![\w'\"])")
SETTINGS = {
    "learning_rate": (r"actor\.optim\.lr=([\d.e+-]{1,30})", float),
    "group_size": (r"rollout\.n=(\d{1,9})", int),
    "max_new_tokens": (r"data\.max_response_length=(\d{1,9})", int),
    "steps": (r"trainer\.total_training_steps=(\d{1,9})", int),
}


def read_console(path: Path, text: str) -> Raw:
    """Whatever console this is.

    Raises:
        UserError: no line of it is one of a known trainer.
    """
    lines = [line for line in ANSI.sub("", text).replace("\r", "\n").split("\n") if len(line) <= LONGEST]
    if any("│" in line or "┃" in line for line in lines[:5000]):
        from delphic.runs.areal import areal_rows

        if rows := areal_rows(lines):
            return raw_of_rows(path, rows, "areal-console")
    if found := list(_verl_rows(lines)):
        return raw_of_rows(path, found, "verl-console", _verl_settings(text))
    if found := list(_dict_rows(lines)):
        return raw_of_rows(path, found, "transformers-console")
    raise UserError(
        f"{path}: not a log that is known: no JSON, no CSV, and no line of steps in it (docs/logs.md lists what is read)"
    )


def _verl_rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """`step:59 - critic/score/mean:np.float64(0.5) - …`; a line of evaluations alone belongs to its step, too."""
    for line in lines:
        found = STEP.search(line)
        if found is None:
            continue
        row: dict[str, Any] = {}
        for pair in line[found.end() :].split(" - "):
            key, _, value = pair.strip().rpartition(":")
            number = NUMBER.fullmatch(value)
            if key and number is not None:
                row[key] = number[1]
        if row:
            yield {**row, "step": float(found[1])}


def _verl_settings(text: str) -> dict[str, Any]:
    """Settings on the command line that a console shows."""
    out = {}
    for name, (pattern, kind) in SETTINGS.items():
        if found := re.search(pattern, text):
            try:
                out[name] = kind(found[1])
            except ValueError:
                continue
    return out


def _dict_rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Flat Python dicts or JSON objects anywhere in a line, as behind a progress bar; numbers may be text."""
    for line in lines:
        for found in OBJECT.finditer(line):
            try:
                row = json.loads(found[0]) if found[0][1] == '"' else _literal(found[0])
            except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
                continue
            if isinstance(row, dict):
                yield row


def _literal(text: str) -> Any:
    """A dict of literals; nan and inf are no literals, so they become a number that is infinite."""
    return ast.literal_eval(BARE_WORD.sub("1e999", text))
