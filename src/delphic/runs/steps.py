"""Which column of a source counts its steps, and what the frameworks' own ways of counting come to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from delphic.runs.keys import Framework, assign, bare
from delphic.runs.rows import Raw
from delphic.runs.synonyms import STEPS


def step_column(
    raw: Raw, framework: Framework, given: str | None, problems: list[str], reward: str | None = None
) -> tuple[pl.DataFrame, str]:
    """(the rows that have a step, the name of that column); rows are counted where nothing else says.

    Args:
        given: the user's column of steps. reward: the user's column of rewards. problems: gets what was done.
    """
    table = raw.table
    if given is None and framework.name == "slime" and {"train/step", "rollout/step"} <= set(table.columns):
        table = _two_axes(table, problems)
        given = "step"
    step = given or _named(table.columns, framework)
    if step is None:
        return _counted(table, framework, reward, problems), "step"
    if table[step].count() * 2 < len(table):
        return table.filter(pl.col(step).is_not_null()), step
    if given is None and framework.name == "open-instruct" and bare(step) == "global_step":
        table = _episodes(table, step, problems)
    return table.with_columns(pl.col(step).fill_null(float("nan"))), step


def _named(names: Sequence[str], framework: Framework) -> str | None:
    wanted = ("training_step", *STEPS) if framework.name == "open-instruct" else STEPS
    by_bare = {bare(name).lower(): name for name in reversed(names)}
    return next((by_bare[bare(name)] for name in wanted if bare(name) in by_bare), None)


def _episodes(table: pl.DataFrame, step: str, problems: list[str]) -> pl.DataFrame:
    """open-instruct's global_step counts episodes: the same number every step."""
    values = table[step].drop_nulls().to_numpy()
    if len(values) < 2 or not np.all(np.isfinite(values) & (np.abs(values) < 2**53) & (values == np.round(values))):
        return table
    stride = int(np.gcd.reduce(np.r_[values[0], np.diff(values)].astype(np.int64)))
    if stride <= 1:
        return table
    problems.append(f"{step} counts episodes, {stride} a step; it was divided by {stride}")
    return table.with_columns(pl.col(step) / stride)


def _two_axes(table: pl.DataFrame, problems: list[str]) -> pl.DataFrame:
    """slime counts rollouts and updates apart; an update belongs to the rollout that it learned from."""
    updates, rollouts = table["train/step"].max(), table["rollout/step"].max()
    each = 1
    if isinstance(updates, float) and isinstance(rollouts, float) and np.isfinite([updates, rollouts]).all():
        each = max(1, round((updates + 1) / (rollouts + 1)))
    if each > 1:
        problems.append(f"about {each} updates a rollout; updates are put at their rollout's step")
    by_update = (pl.col("train/step") / each).floor()
    return table.with_columns(pl.coalesce("rollout/step", by_update).alias("step")).filter(pl.col("step").is_not_null())


def _counted(table: pl.DataFrame, framework: Framework, reward: str | None, problems: list[str]) -> pl.DataFrame:
    """Rows with a reward are numbered from 1; others (evaluations, a summary) belong to the last of them.

    Where the epoch goes back the run was started again or resumed: its number goes back to that of the same epoch.
    """
    problems.append("the log has no column of steps; its rows are counted")
    rewards = [source for source, key in assign(framework, table.columns) if key.canonical == "reward_mean"]
    reward = reward or next((name for name in rewards if table[name].count()), None)
    counts = table[reward].is_not_null().to_numpy() if reward is not None else np.ones(len(table), dtype=bool)
    epochs = table["epoch"].to_numpy() if "epoch" in table.columns else np.full(len(table), np.nan)
    steps = np.zeros(len(table))
    now, latest = 0, -np.inf
    seen: list[float] = []  # epochs of the steps so far
    for i, (counted, epoch) in enumerate(zip(counts.tolist(), epochs.tolist(), strict=True)):
        if counted:
            if epoch is not None and epoch < latest:
                now = int(np.searchsorted(np.maximum.accumulate(seen), epoch))
                del seen[now:]
            now += 1
            known = epoch is not None and np.isfinite(epoch)
            latest = epoch if known else latest
            seen.append(latest)
        steps[i] = now
    return table.drop("step", strict=False).with_columns(pl.Series("step", steps))
