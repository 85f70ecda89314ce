"""From a source's numbers to a run: which framework, which key means what, one row a step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from delphic.errors import UserError, nearest
from delphic.runs.clean import Cleaned, clean
from delphic.runs.columns import COMPONENT
from delphic.runs.detect import recognise
from delphic.runs.exports import BETWEEN, one_run
from delphic.runs.keys import Framework, Key, assign, bare
from delphic.runs.log import Column, RunLog
from delphic.runs.rows import Raw
from delphic.runs.steps import step_column
from delphic.runs.synonyms import GENERIC

SUCCESS = ("success", "accuracy", "acc", "correct", "pass", "solve")
HELD_OUT = re.compile(r"(?:^|[/_.-])(?:eval|val|test|heldout|held_out)")
SHARE = re.compile(r"acc|pass|correct|solve|success")  # what cannot be above 1 unless it is in percent


class NoRewardsError(UserError):
    """A log without rewards; a run that has just begun has none yet."""


@dataclass(frozen=True)
class Source:
    """A table and what is known of it on the way to a run. chosen: canonical → the key that serves it."""

    path: Path
    table: pl.DataFrame
    step: str
    framework: Framework
    chosen: dict[str, Key]
    given: Mapping[str, str]


def to_log(path: Path, raw: Raw, mapping: Mapping[str, str] | None = None) -> RunLog:
    """Give the columns of a source their meaning and clean its steps.

    Raises:
        UserError: the mapping names what is not there or holds no numbers.
        NoRewardsError: there are no rewards.
    """
    raw = one_run(raw)
    given = _mapped(path, raw, mapping or {})
    framework = recognise(raw.table.columns, raw.form)
    problems = list(raw.problems)
    table, step = step_column(raw, framework, given.pop("step", None), problems, given.get("reward_mean"))
    source = Source(path, table, step, framework, _choose(table, framework, given), given)
    wanted = {key.source for key in source.chosen.values()} - {step}
    cleaned = clean(table.select(step, *(name for name in table.columns if name in wanted)), step)
    log = _success(_named(source, cleaned, len(raw.table)), source)
    if told := _other_held_out(source):
        problems.append(told)
    if "reward_mean" not in log.table.columns or not len(log.table):
        raise NoRewardsError(_no_reward(source, raw))
    used = {key.source for key in source.chosen.values()} | {step}
    return replace(
        log,
        problems=(*problems, *cleaned.problems, *log.problems),
        settings=raw.said,
        version=version(framework, raw.table.columns),
        unread=tuple(name for name in raw.table.columns if name not in used),
    )


def _mapped(path: Path, raw: Raw, mapping: Mapping[str, str]) -> dict[str, str]:
    """The user's mapping, its keys checked; one of a W&B export may be written with its run."""
    names, out = raw.table.columns, {}
    for canonical, key in mapping.items():
        found = key if key in names else key.rpartition(BETWEEN)[2]
        if found in raw.text:
            raise UserError(f'{path}: column "{key}" holds text, not numbers')
        if found not in names:
            raise UserError(f'{path}: there is no column "{key}"{nearest(key, names)}')
        if not raw.table[found].is_finite().any():
            raise UserError(f'{path}: column "{key}" holds no numbers')
        out[canonical] = found
    return out


def _no_reward(source: Source, raw: Raw) -> str:
    meant = next(
        (
            key
            for key, rule in assign(source.framework, [*raw.table.columns, *raw.text])
            if rule.canonical == "reward_mean"
        ),
        None,
    )
    if meant is not None:
        holds = "text" if meant in raw.text else "no numbers"
        return f'{source.path}: its column of rewards, "{meant}", holds {holds}; --map reward=COLUMN names another'
    numbers = [name for name in raw.table.columns if name != source.step]
    listed = ", ".join(numbers[:12]) + (", …" if len(numbers) > 12 else "") or "none"
    return f"{source.path}: no column of rewards is known in it; name one with --map reward=COLUMN (it has {listed})"


def _other_held_out(source: Source) -> str | None:
    """That there are other evaluations than the one in use."""
    chosen = source.chosen.get("eval_reward")
    if chosen is None or "eval_reward" in source.given:
        return None
    keys = [key for key, rule in assign(source.framework, source.table.columns) if rule.canonical == "eval_reward"]
    others = [key for key in keys if key != chosen.source and source.table[key].is_finite().any()]
    if not others:
        return None
    more = f"{others[0]} is" if len(others) == 1 else f"{others[0]} and {len(others) - 1} more are"
    return f"the held-out reward is {chosen.source}; {more} not used (--map eval=COLUMN takes another)"


# -- which key ------------------------------------------------------------------------------------------------------


def _choose(table: pl.DataFrame, framework: Framework, given: Mapping[str, str]) -> dict[str, Key]:
    """canonical → the key that serves it: what the user says, else the framework's first with numbers, else a common name."""
    chosen = {canonical: Key(key, canonical) for canonical, key in given.items()}
    taken = set(given.values())
    counts = table.select(pl.all().is_finite().sum()).row(0, named=True) if len(table.columns) else {}
    names = set(table.columns)
    for source, key in assign(framework, table.columns):
        if key.canonical not in chosen and (counts.get(source) or 0) > 0 and source not in taken:
            chosen[key.canonical] = replace(key, kind=_kind(framework, key, names))
    if framework.name == "generic":
        return chosen
    taken |= {key.source for key in chosen.values()}
    for source, key in assign(Framework("generic", (), GENERIC), table.columns):
        free = key.canonical not in chosen and source not in taken
        if free and not key.canonical.startswith(COMPONENT) and (counts.get(source) or 0) > 0:
            chosen[key.canonical] = key
            taken.add(source)
    return chosen


def _kind(framework: Framework, key: Key, names: set[str]) -> str:
    """What the other keys say of a figure's kind."""
    if framework.name == "verl" and bare(key.source) == "critic/rewards/mean":
        return "shaped" if "actor/reward_kl_penalty" in names else "raw"  # logged with KL in the reward only
    if framework.name == "trl" and bare(key.source) == "reward_std":
        old = version(framework, list(names)) in ("before 0.17", "0.17")
        return "within groups" if old else key.kind  # from 0.27 on the batch's; later keys do not tell which side of it
    return key.kind


def version(framework: Framework, names: list[str]) -> str | None:
    """What the keys tell of the version."""
    known = {bare(name) for name in names}
    if framework.name == "trl":
        if "completion_length" in known:
            return "before 0.17"
        if "completions/mean_length" in known:
            return "0.18 or later" if "frac_reward_zero_std" in known else "0.17"
    if framework.name == "prime-rl":
        return "before June 2026" if "reward/all/mean" in known else None
    return None


# -- the run --------------------------------------------------------------------------------------------------------


def _named(source: Source, cleaned: Cleaned, rows: int) -> RunLog:
    """The cleaned table under its canonical names, in their units."""
    table = cleaned.table
    expressions, columns, problems = [pl.col("step")], [], []
    for canonical, key in source.chosen.items():
        if key.source not in table.columns:
            continue
        value = pl.col(key.source)
        if "percent" in key.change:
            value = value / 100
        if "complement" in key.change:
            value = 1 - value
        if canonical == "eval_reward" and _percent(table[key.source], key.source):
            value = value / 100
            problems.append(f"{key.source} is in percent; taken as shares")
        expressions.append(value.alias(canonical))
        columns.append(Column(canonical, key.source, key.kind))
    back = {key.source: canonical for canonical, key in source.chosen.items()}
    return RunLog(
        path=source.path,
        framework=source.framework.name,
        version=None,
        table=table.select(expressions),
        columns=tuple(columns),
        sessions=cleaned.sessions,
        rows=rows,
        problems=tuple(problems),
        non_finite={back[name]: steps for name, steps in cleaned.non_finite.items() if name in back},
        resumed=cleaned.resumed,
    )


def _percent(values: pl.Series, key: str) -> bool:
    """Accuracies of which one is above 1; a reward may have any scale, so it is left as it is."""
    low, high = values.min(), values.max()
    return bool(SHARE.search(key.lower()) and low >= 0 and 1.5 < high <= 100)  # type: ignore[operator]


def _success(log: RunLog, source: Source) -> RunLog:
    """Another column of successes in training where the reward is 0 at every step and they vary."""
    if "reward_mean" in source.given or "reward_mean" not in log.table.columns:
        return log
    reward = log.table["reward_mean"].drop_nulls()
    if len(reward) < 2 or reward.n_unique() > 1 or reward[0] != 0:
        return log
    used = {key.source for key in source.chosen.values()}
    for name in source.table.columns:
        leaf = name.lower().rsplit("/", 1)[-1]
        if name in used or not leaf.startswith(SUCCESS) or HELD_OUT.search(name.lower()):
            continue
        if source.table[name].drop_nulls().n_unique() < 3:
            continue
        again = clean(source.table.select(source.step, pl.col(name).alias("reward_mean")), source.step).table
        if "reward_mean" not in again.columns:
            continue
        merged = log.table.drop("reward_mean").join(again, on="step", how="left")
        columns = (*(c for c in log.columns if c.canonical != "reward_mean"), Column("reward_mean", name, "raw"))
        told = f"the reward ({source.chosen['reward_mean'].source}) is 0 at every step; {name} varies and is used"
        return replace(log, table=merged, columns=columns, problems=(*log.problems, told))
    return log
