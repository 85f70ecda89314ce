"""One file → a run: a log of any form, or a dump of completions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from delphic.errors import UserError
from delphic.runs.log import RunLog
from delphic.runs.meaning import to_log
from delphic.runs.rows import Raw
from delphic.runs.synonyms import COMPLETIONS, GROUPS, REWARDS, STEPS
from delphic.runs.text import load, read_text


def read_file(
    path: Path,
    mapping: Mapping[str, str] | None = None,
    group_size: int | None = None,
    group_key: str | None = None,
) -> RunLog:
    raw = raw_of(path)
    if raw is not None and _is_dump(raw):
        raw = None
    if raw is None:
        return _dump(path, group_size, group_key)
    return to_log(path, raw, mapping)


def raw_of(path: Path) -> Raw | None:
    """The rows of a file; None for a dump of completions in Parquet."""
    if "tfevents" in path.name:
        from delphic.runs.tensorboard import read_events

        return from_rows(path, read_events(path), "tensorboard")
    content = load(path)
    if content[:16] == b"SQLite format 3\x00":
        from delphic.runs.trackio import read_trackio

        return from_rows(path, read_trackio(path)[:2], "trackio")
    if content[:4] == b"PAR1":
        return None
    return read_text(path, content)


def from_rows(path: Path, found: tuple[list[dict[str, float]], list[str]], form: str) -> Raw:
    """(rows, problems) of a source as a table."""
    rows, problems = found
    if not rows:
        raise UserError(f"{path}: no rows in it" + (f" ({problems[0]})" if problems else ""))
    keys = dict.fromkeys(key for row in rows for key in row)
    table = pl.DataFrame({key: pl.Series([row.get(key) for row in rows], dtype=pl.Float64) for key in keys})
    return Raw(table, list(problems), form=form)


def _is_dump(raw: Raw) -> bool:
    """A row a completion: a reward, and its text, its length in tokens or, in a table without steps, the id of its group."""
    numbers, text = set(raw.table.columns), set(raw.text)
    if raw.form not in ("jsonl", "csv") or not numbers & set(REWARDS):
        return False
    grouped = (numbers | text) & (set(GROUPS) - {"group"}) and not numbers & set(STEPS)
    return bool(numbers & {"sample_idx", "seqlen", "head_version", "prompt_len"} or text & set(COMPLETIONS) or grouped)


def _dump(path: Path, group_size: int | None, group_key: str | None) -> RunLog:
    from delphic.runs.dumps import read_rollouts

    rollouts, problems = read_rollouts(path, group_size, group_key)
    return log_of_rollouts(path, rollouts, problems)


def log_of_rollouts(path: Path, rollouts: pl.DataFrame, problems: list[str]) -> RunLog:
    """A dump as a run: a row a step, with what completions tell."""
    judged = rollouts.with_columns(pl.col("reward").fill_nan(None))
    steps = judged if "step" in judged.columns else judged.with_columns(pl.lit(0).alias("step"))
    groups = steps.group_by("step", "group").agg(
        pl.col("reward").drop_nulls().n_unique().alias("levels"),
        pl.col("reward").min().alias("low"),
        pl.col("reward").count().alias("n"),
    )
    top = judged["reward"].max()
    silent = groups.group_by("step").agg(
        ((pl.col("levels") <= 1) & (pl.col("n") > 1)).mean().alias("silent_share"),
        ((pl.col("levels") <= 1) & (pl.col("low") == top) & (pl.col("n") > 1)).mean().alias("solved_all_share"),
        ((pl.col("levels") <= 1) & (pl.col("low") == 0) & (pl.col("n") > 1)).mean().alias("solved_none_share"),
    )
    figures = [pl.col("reward").mean().alias("reward_mean")]
    for name, as_name in (("length", "length_mean"), ("truncated", "truncated_share")):
        if name in steps.columns:
            figures.append(pl.col(name).cast(pl.Float64).mean().alias(as_name))
    table = steps.group_by("step").agg(figures).join(silent, on="step").sort("step")
    log = RunLog.from_table(table, "rollouts")
    columns = tuple(replace(c, source_key="computed from the completions") for c in log.columns)
    sizes = groups["n"]
    said = {"group_size": int(sizes[0])} if sizes.n_unique() == 1 else {}
    return replace(
        log, path=path, columns=columns, rows=len(rollouts), problems=tuple(problems), rollouts=rollouts, settings=said
    )


def planned(config: Path) -> dict[str, Any]:
    """Settings of delphic's own config.json; empty where it cannot be read."""
    try:
        content = json.loads(config.read_text(encoding="utf-8"))["config"]
        train, sampling = content["train"], content["sampling"]
        out = {
            "steps": train["steps"],
            "learning_rate": train["learning_rate"],
            "sync_interval": train["sync_interval"],
            "sync_offset": train["sync_offset"],
            "group_size": sampling["completions"],
            "max_new_tokens": sampling["max_new_tokens"],
        }
        return {key: value for key, value in out.items() if isinstance(value, int | float)}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
