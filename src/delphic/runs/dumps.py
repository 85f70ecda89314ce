"""Recorded completions of anybody's run as one table, each with the group to which it belongs."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from delphic.errors import UserError
from delphic.runs.dump_rows import Completion, Source, read_completions
from delphic.runs.synonyms import GROUPS

TEXTS = 2000  # completions kept as text: enough to look at, and a long run still fits into memory
_KINDS = (  # file names in a folder, by framework; the first kind that is there is read
    ("TRL", re.compile(r"completions_\d+\.parquet")),
    ("NeMo-RL", re.compile(r"train_data_step\d+\.jsonl")),
    ("prime-rl", re.compile(r"(traces|train_rollouts)\.jsonl(\.gz)?")),
    ("tinker-cookbook", re.compile(r"(?!eval)\w*rollout_summaries\.jsonl")),
    ("delphic", re.compile(r"step_\d+\.parquet")),
    ("verl or AReaL", re.compile(r"\d+\.jsonl")),
)
_LEFT_OUT = re.compile(r"(?i)^e?val(uation|idation)?([_-]|$)|^halted$")  # held-out problems; a step that halted a run


@dataclass
class _Collected:
    """Columns while files are read. key, prompt: numbers of distinct ids and prompts within their step, −1 for none."""

    step: array = field(default_factory=lambda: array("q"))
    scope: array = field(default_factory=lambda: array("q"))
    key: array = field(default_factory=lambda: array("q"))
    prompt: array = field(default_factory=lambda: array("q"))
    reward: array = field(default_factory=lambda: array("d"))
    length: array = field(default_factory=lambda: array("d"))
    advantage: array = field(default_factory=lambda: array("d"))
    truncated: array = field(default_factory=lambda: array("b"))
    texts: dict[int, tuple[str | None, str | None]] = field(default_factory=dict)
    stride: int = 1
    _numbers: dict[object, int] = field(default_factory=dict)

    def add(self, one: Completion) -> None:
        row = len(self.reward)
        where = ("file", one.scope) if one.step is None else ("step", one.step)
        self.step.append(_UNKNOWN if one.step is None else one.step)
        self.scope.append(self._number(where))
        self.key.append(-1 if one.key is None else self._number((where, "key", one.key)))
        # the hash stands for the text: a million prompts need not be kept
        self.prompt.append(-1 if one.prompt is None else self._number((where, "prompt", hash(one.prompt))))
        self.reward.append(one.reward)
        self.length.append(np.nan if one.length is None else one.length)
        self.advantage.append(np.nan if one.advantage is None else one.advantage)
        self.truncated.append(-1 if one.truncated is None else one.truncated)
        if row % self.stride == 0 and (one.text is not None or one.prompt is not None):
            self.texts[row] = (one.prompt, one.text)
            if len(self.texts) > TEXTS:  # every other one goes, so that those kept are spread evenly over the run
                self.stride *= 2
                self.texts = {r: text for r, text in self.texts.items() if r % self.stride == 0}

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


_UNKNOWN = -(1 << 62)  # no step


def read_rollouts(
    path: Path, group_size: int | None = None, group_key: str | None = None
) -> tuple[pl.DataFrame, list[str]]:
    """The completions of a file, or of a folder of files of one framework, and sentences on problems.

    A group is what has one id (a column such as uid or group) in a step; without ids, what has one prompt in a step. Where
    neither tells, or a prompt's completions are several groups, `group_size` does. Nothing is regrouped by position unless
    the user said so.

    Args:
        group_size: completions in a group.
        group_key: the column of group ids.

    Returns: group (Int64), reward (Float64, NaN where not judged) and, where known, step (Int64), prompt, completion (texts,
    of at most 2,000 completions spread over the run, else null), length (Float64, tokens), truncated (Boolean).

    Raises:
        UserError: no such file, no rewards in it, or groups that cannot be told (with what to give).
    """
    problems: list[str] = []
    if group_size is not None and group_size < 1:
        raise UserError(f"--group-size must be at least 1, not {group_size}")
    files = _files(path, problems)
    rows = _Collected()
    for number, file in enumerate(files):
        for one in read_completions(Source(file, number, group_key, problems)):
            rows.add(one)
    if not rows.reward:
        raise UserError(f"{path}: there are no completions in it")
    group_N = _groups(path, rows, group_size, group_key, problems)
    table = _table(rows, group_N)
    _check_advantages(rows, group_N, problems)
    unjudged = int(np.isnan(np.frombuffer(rows.reward)).sum())
    if unjudged == len(table):
        raise UserError(f"{path}: no completion has a reward that is a number")
    if unjudged:
        problems.append(f"{unjudged} of {len(table)} completions have no reward")
    return table, list(dict.fromkeys(problems))


def _files(path: Path, problems: list[str]) -> list[Path]:
    if not path.is_dir():
        if not path.is_file():
            raise UserError(f"{path}: no such file")
        if not path.name.endswith((".parquet", ".csv", ".jsonl", ".ndjson", ".jsonl.gz")):
            raise UserError(
                f"{path}: completions are read from .parquet, .csv, .jsonl or .jsonl.gz files, or a folder of them"
            )
        return [path]
    inside = sorted((p for p in path.rglob("*") if p.is_file()), key=_natural)
    training = [p for p in inside if not any(_LEFT_OUT.search(part) for part in p.relative_to(path).parts)]
    found = {name: [p for p in training if kind.fullmatch(p.name)] for name, kind in _KINDS}
    names = [name for name, files in found.items() if files]
    if not names:
        raise UserError(f"{path}: no file of completions below it ({', '.join(name for name, _ in _KINDS)})")
    if len(names) > 1:
        problems.append(f"the completions of {names[0]} are read; there are also {', '.join(names[1:])}'s")
    files = found[names[0]]
    if any(p.parent.name == "all" for p in files):  # prime-rl writes what survives its filters once more
        files = [p for p in files if p.parent.name != "effective"]
    return files


def _natural(path: Path) -> list[tuple[int, str]]:
    """9.jsonl before 10.jsonl."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def _groups(
    path: Path, rows: _Collected, group_size: int | None, group_key: str | None, problems: list[str]
) -> np.ndarray:
    """[N] the group of each completion, numbered in the order of their first."""
    key_N, prompt_N, scope_N = (np.frombuffer(part, dtype=np.int64) for part in (rows.key, rows.prompt, rows.scope))
    if (key_N >= 0).all():
        several = _several(key_N, prompt_N)
        if not several or group_key is not None:
            if several:
                problems.append(f'{several} groups of the column "{group_key}" hold more than one prompt')
            sizes = np.unique(key_N, return_counts=True)[1]
            if group_size is not None and (sizes != group_size).any():
                problems.append(f"groups are those of the ids and have {sizes.min()} to {sizes.max()} completions")
            return _ordered(key_N)
        if group_size is None or not (prompt_N >= 0).all():
            raise UserError(
                f"{path}: {several} group ids hold more than one prompt in a step; name the column of ids, or give "
                "--group-size"
            )
        return _by_prompt(path, prompt_N, group_size, problems)
    if (key_N >= 0).any():
        raise UserError(f"{path}: {int((key_N < 0).sum())} completions have no group id; name another column of ids")
    if (prompt_N >= 0).all():
        return _by_prompt(path, prompt_N, group_size, problems)
    if group_size is None:
        raise UserError(
            f"{path}: neither group ids ({', '.join(GROUPS)}) nor prompts tell the groups; give --group-size or name the "
            "column of ids"
        )
    return _blocks(path, scope_N, group_size, problems)


def _by_prompt(path: Path, prompt_N: np.ndarray, group_size: int | None, problems: list[str]) -> np.ndarray:
    _, inverse_N, count_P = np.unique(prompt_N, return_inverse=True, return_counts=True)
    smallest, largest = int(count_P.min()), int(count_P.max())
    if group_size is None:
        if largest == 1:
            raise UserError(
                f"{path}: every prompt comes once in its step, so prompts do not tell the groups; give --group-size (1 if "
                "that is so) or name the column of ids"
            )
        if smallest < largest:
            problems.append(
                f"groups were told by their prompts and have {smallest} to {largest} completions; a prompt drawn twice in "
                "a step counts as one group (--group-size divides it)"
            )
        return _ordered(prompt_N)
    odd = int((count_P % group_size != 0).sum())
    if odd:
        raise UserError(
            f"{path}: {odd} of {len(count_P)} prompts have a number of completions that is no multiple of --group-size "
            f"{group_size} ({smallest} to {largest})"
        )
    if largest > group_size:
        problems.append(f"prompts with several times {group_size} completions were divided in the order of the file")
    return _ordered(inverse_N * len(prompt_N) + _place(inverse_N) // group_size)


def _blocks(path: Path, scope_N: np.ndarray, group_size: int, problems: list[str]) -> np.ndarray:
    _, inverse_N, count_S = np.unique(scope_N, return_inverse=True, return_counts=True)
    odd = int((count_S % group_size != 0).sum())
    if odd:
        raise UserError(
            f"{path}: {odd} steps have a number of completions that is no multiple of --group-size {group_size}"
        )
    problems.append(f"groups are blocks of {group_size} completions in the order of the file, as --group-size says")
    return _ordered(inverse_N * len(scope_N) + _place(inverse_N) // group_size)


def _place(number_N: np.ndarray) -> np.ndarray:
    """[N] how many rows before have the same number."""
    order = np.argsort(number_N, kind="stable")
    count = np.bincount(number_N)
    place = np.empty_like(order)
    place[order] = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    return place


def _ordered(number_N: np.ndarray) -> np.ndarray:
    """[N] the same partition, numbered 0, 1, … in the order of first rows."""
    _, first, inverse = np.unique(number_N, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def _several(key_N: np.ndarray, prompt_N: np.ndarray) -> int:
    """Ids with more than one known prompt."""
    pairs = np.unique(np.stack([key_N, prompt_N])[:, prompt_N >= 0], axis=1)
    return int((np.unique(pairs[0], return_counts=True)[1] > 1).sum())


def _table(rows: _Collected, group_N: np.ndarray) -> pl.DataFrame:
    count = len(rows.reward)
    columns: dict[str, pl.Series] = {"group": pl.Series(group_N), "reward": pl.Series(np.frombuffer(rows.reward))}
    step_N = np.frombuffer(rows.step, dtype=np.int64)
    if (step_N != _UNKNOWN).any():
        columns["step"] = pl.Series(step_N).set(pl.Series(step_N == _UNKNOWN), None)
    for place, name in enumerate(("prompt", "completion")):
        texts = _spread(count, ((row, pair[place]) for row, pair in rows.texts.items()))
        if texts.null_count() < count:
            columns[name] = texts
    if np.isfinite(np.frombuffer(rows.length)).any():
        columns["length"] = pl.Series(np.frombuffer(rows.length)).fill_nan(None)
    flag_N = np.frombuffer(rows.truncated, dtype=np.int8)
    if (flag_N >= 0).any():
        columns["truncated"] = pl.Series(flag_N > 0).set(pl.Series(flag_N < 0), None)
    return pl.DataFrame(columns)


def _spread(count: int, texts: Iterable[tuple[int, str | None]]) -> pl.Series:
    out: list[str | None] = [None] * count
    for row, text in texts:
        out[row] = None if text is None else text.encode("utf-8", "replace").decode()  # JSON may hold half a character
    return pl.Series(out, dtype=pl.String)


def _check_advantages(rows: _Collected, group_N: np.ndarray, problems: list[str]) -> None:
    """Within a group an advantage is a rising linear function of the reward; where it is not, the reward is another one."""
    reward_N, advantage_N = np.frombuffer(rows.reward), np.frombuffer(rows.advantage)
    known = np.isfinite(reward_N) & np.isfinite(advantage_N)
    if not known.any():
        return
    pairs = pl.DataFrame({"g": group_N[known], "r": reward_N[known], "a": advantage_N[known]})
    judged = pairs.group_by("g").agg(pl.corr("r", "a"), spread=pl.col("a").std()).filter(pl.col("spread") > 1e-6)
    other = judged.filter(pl.col("r").is_null() | pl.col("r").is_nan() | (pl.col("r") < 0.99)).height
    if other > 0.01 * max(judged.height, 1):
        problems.append(
            f"in {other} of {judged.height} groups the advantages do not follow these rewards: the run weighted or shaped them"
        )
