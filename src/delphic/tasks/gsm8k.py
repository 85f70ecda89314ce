"""GSM8K: word problems whose gold answer is the number after `####`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from delphic.errors import UserError
from delphic.tasks.answers import MARK, gold_number
from delphic.tasks.file import GoldCheck
from delphic.tasks.rows import NoAnswerError, Row, find, is_empty

HUB, SUBSET = "openai/gsm8k", "main"

NUMERIC = {
    name: GoldCheck(name, "a number", lambda golds: [gold_number(gold) is not None for gold in golds])
    for name in ("last_number", "strict_number")
}


def read_gold(row: Row, column: str) -> str:
    """What follows `####` in the answer column (all of it where there is no mark)."""
    value = find(row, column)
    if is_empty(value):
        raise NoAnswerError(f'{row.where}: column "{column}" is empty')
    return str(value).rpartition(MARK)[2].strip()


def sources(path: Path | str | None, split: str) -> dict[str, Any]:
    """Where training and held-out rows come from: the hub, a folder with train.jsonl and test.jsonl, or a file."""
    if path is None or str(path) == HUB:
        return {"path": HUB, "subset": SUBSET, "split": split, "held_out_split": "test"}
    folder = Path(path)
    if not folder.is_dir():
        return {"path": path}
    for name in ("train.jsonl", "test.jsonl"):
        if not (folder / name).exists():
            raise UserError(f'task.path: there is no {name} in "{folder}"')
    return {"path": folder / "train.jsonl", "held_out_path": folder / "test.jsonl"}
