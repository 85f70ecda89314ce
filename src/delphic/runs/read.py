"""Anybody's log → `RunLog`: finds out what it is, gives its columns their meaning, cleans its steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from delphic.errors import UserError, nearest
from delphic.runs.clean import Cleaned, clean
from delphic.runs.columns import COMPONENT
from delphic.runs.frameworks import STEPS, Framework, Key, assign, bare, recognise
from delphic.runs.log import Column, RunLog
from delphic.runs.rows import Raw
from delphic.runs.text import load, read_text

SUCCESS = ("success", "accuracy", "acc", "correct", "pass", "solve")


def read_run(
    path: Path,
    mapping: Mapping[str, str] | None = None,
    group_size: int | None = None,
    group_key: str | None = None,
) -> RunLog:
    """A file or a folder of any framework.

    Args:
        mapping: canonical column (or "step") → the source's key. group_size, group_key: of dumps of completions without ids.

    Raises:
        UserError: there is no such file, it is no log, or it has no rewards (with what there is).
    """
    path = Path(path)
    try:
        if not path.exists():
            raise UserError(f"{path}: there is no such file or folder")
        if path.is_dir():
            from delphic.runs.folder import read_folder

            return read_folder(path, mapping, group_size, group_key)
        return read_file(path, mapping, group_size, group_key)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None


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
    """A row a completion: rewards without steps, or a sample's number beside them."""
    names = set(raw.table.columns)
    rewarded = bool(names & {"reward", "score", "rewards"})
    return raw.form == "jsonl" and rewarded and bool(names & {"sample_idx", "seqlen", "head_version", "prompt_len"})


def _dump(path: Path, group_size: int | None, group_key: str | None) -> RunLog:
    from delphic.runs.dumps import read_rollouts

    rollouts, problems = read_rollouts(path, group_size, group_key)
    return log_of_rollouts(path, rollouts, problems)


def log_of_rollouts(path: Path, rollouts: pl.DataFrame, problems: list[str]) -> RunLog:
    """A dump as a run: a row a step, with what completions tell."""
    steps = rollouts if "step" in rollouts.columns else rollouts.with_columns(pl.lit(0).alias("step"))
    groups = steps.group_by("step", "group").agg(
        pl.col("reward").n_unique().alias("levels"),
        pl.col("reward").min().alias("low"),
        pl.col("reward").count().alias("n"),
    )
    top = rollouts["reward"].max()
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


# -- meaning --------------------------------------------------------------------------------------------------------


def to_log(path: Path, raw: Raw, mapping: Mapping[str, str] | None = None) -> RunLog:
    """Give the columns of a source their meaning and clean its steps."""
    given = dict(mapping or {})
    names = raw.table.columns
    for key in given.values():
        if key not in names:
            raise UserError(f'{path}: there is no column "{key}"{nearest(key, names)}')
    framework = recognise(names, raw.form)
    problems = list(raw.problems)
    table, step = step_column(raw, given.pop("step", None), problems)
    chosen = _choose(table, framework, given)
    if framework.name != "generic":
        chosen = _fill(chosen, table, names, given)
    wanted = {key.source: key for key in chosen.values()}
    cleaned = clean(table.select(step, *(k for k in wanted if k != step)), step)
    log = _named(path, framework, cleaned, chosen, len(raw.table))
    log = _success(log, table, step, chosen, given, framework)
    problems += [*cleaned.problems, *log.problems]
    if "reward_mean" not in log.table.columns or not len(log.table):
        numbers = [name for name in names if name != step]
        listed = ", ".join(numbers[:12]) + (", …" if len(numbers) > 12 else "")
        raise UserError(
            f"{path}: no column of rewards is known in it; name one with --map reward=COLUMN (it has {listed})"
        )
    used = {key.source for key in chosen.values()} | {step}
    return replace(
        log,
        problems=tuple(problems),
        settings=raw.said,
        version=_version(framework, names),
        unread=tuple(name for name in names if name not in used),
    )


def step_column(raw: Raw, given: str | None, problems: list[str]) -> tuple[pl.DataFrame, str]:
    """(the rows that have a step, the name of that column); rows are counted where nothing else says."""
    table = raw.table
    by_bare = {bare(name): name for name in reversed(table.columns)}
    step = (
        given
        or next((by_bare[n] for n in STEPS if n in by_bare), None)
        or next((by_bare[bare(n)] for n in STEPS if bare(n) in by_bare), None)
    )
    if step is not None and table[step].count() * 2 >= len(table):
        return table.with_columns(pl.col(step).fill_null(float("nan"))), step
    if step is not None:
        return table.filter(pl.col(step).is_not_null()), step
    rewards = [name for name in table.columns if bare(name) in ("reward", "reward_mean", "rewards", "score")]
    if rewards:
        table = table.filter(pl.col(rewards[0]).is_not_null())
    problems.append("the log has no column of steps; its rows are counted")
    return table.with_row_index("step", offset=1).with_columns(pl.col("step").cast(pl.Float64)), "step"


def _choose(table: pl.DataFrame, framework: Framework, given: Mapping[str, str]) -> dict[str, Key]:
    """canonical → the key that serves it: what the user says, else the first with numbers."""
    chosen = {canonical: Key(key, canonical) for canonical, key in given.items()}
    counts = table.select(pl.all().is_finite().sum()).row(0, named=True) if len(table.columns) else {}
    for source, key in assign(framework, table.columns):
        if key.canonical not in chosen and (counts.get(source) or 0) > 0 and source not in given.values():
            chosen[key.canonical] = Key(source, key.canonical, key.kind, key.change)
    return chosen


def _fill(chosen: dict[str, Key], table: pl.DataFrame, names: list[str], given: Mapping[str, str]) -> dict[str, Key]:
    """What the framework's own table leaves open, by the common names."""
    from delphic.runs.frameworks import GENERIC

    taken = {key.source for key in chosen.values()}
    for source, key in assign(Framework("generic", (), GENERIC), names):
        if (
            key.canonical not in chosen
            and source not in taken
            and not key.canonical.startswith(COMPONENT)
            and table[source].count()
        ):
            chosen[key.canonical] = Key(source, key.canonical, key.kind)
            taken.add(source)
    return chosen


def _named(path: Path, framework: Framework, cleaned: Cleaned, chosen: Mapping[str, Key], rows: int) -> RunLog:
    table = cleaned.table
    expressions, columns, problems = [pl.col("step")], [], []
    for canonical, key in chosen.items():
        if key.source not in table.columns:
            continue
        value = pl.col(key.source)
        if key.change == "percent":
            value = value / 100
        elif key.change == "complement":
            value = 1 - value
        if canonical in ("eval_reward", "reward_mean") and _percent(table[key.source], canonical):
            value = value / 100
            problems.append(f"{key.source} is in percent; taken as shares")
        expressions.append(value.alias(canonical))
        columns.append(Column(canonical, key.source, key.kind))
    back = {key.source: canonical for canonical, key in chosen.items()}
    non_finite = {back[name]: steps for name, steps in cleaned.non_finite.items() if name in back}
    return RunLog(
        path,
        framework.name,
        None,
        table.select(expressions),
        tuple(columns),
        cleaned.sessions,
        rows,
        tuple(problems),
        non_finite,
        cleaned.resumed,
    )


def _percent(values: pl.Series, canonical: str) -> bool:
    """Evaluations between 0 and 100 of which most are above 1.5."""
    found = values.drop_nulls()
    if canonical != "eval_reward" or len(found) == 0:
        return False
    low, high, middle = found.min(), found.max(), found.median()
    return bool(low >= 0 and 1.5 < high <= 100 and middle > 1.5)  # type: ignore[operator]


def _success(
    log: RunLog,
    table: pl.DataFrame,
    step: str,
    chosen: Mapping[str, Key],
    given: Mapping[str, str],
    framework: Framework,
) -> RunLog:
    """Another column of successes where the reward is 0 at every step and they are not."""
    if "reward_mean" in given or "reward_mean" not in log.table.columns:
        return log
    reward = log.table["reward_mean"].drop_nulls()
    if len(reward) < 2 or reward.n_unique() > 1:
        return log
    used = {key.source for key in chosen.values()}
    for name in table.columns:
        leaf = name.lower().rsplit("/", 1)[-1]
        if name in used or not leaf.startswith(SUCCESS) or table[name].drop_nulls().n_unique() < 3:
            continue
        again = clean(table.select(step, pl.col(name).alias("reward_mean")), step).table
        merged = log.table.drop("reward_mean").join(again, on="step", how="left")
        columns = (*(c for c in log.columns if c.canonical != "reward_mean"), Column("reward_mean", name, "raw"))
        told = f"the reward ({chosen['reward_mean'].source}) is {reward[0]:g} at every step; {name} varies and is used"
        return replace(log, table=merged, columns=columns, problems=(*log.problems, told))
    return log


def _version(framework: Framework, names: list[str]) -> str | None:
    """What the keys tell of the version."""
    known = {bare(name) for name in names}
    if framework.name in ("trl", "ms-swift"):
        if known & {"completion_length"}:
            return "before 0.17"
        if "completions/mean_length" in known:
            return "0.17 or later" if "frac_reward_zero_std" not in known else "0.18 or later"
    if framework.name == "prime-rl":
        return "before June 2026" if "reward/all/mean" in known else None
    return None


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
