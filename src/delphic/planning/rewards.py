"""What recorded rewards alone allow: variances, silent groups, the share of groups that carry a signal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from delphic.errors import UserError, nearest
from delphic.planning.figures import informative_shares, reward_figures

GROUPS = ("group", "group_id", "uid", "prompt_id", "problem", "prompt", "input")
REWARDS = ("reward", "rewards", "score", "reward_score")


def read_rewards(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(rewards [N], group numbers [N]) of a Parquet, JSONL or CSV file of completions, or a folder of Parquet files.

    Groups are told by a column (an id, or else the prompt's text) within its file and, where there is one, its step; never
    by position.

    Raises:
        UserError: no such file, or no column of rewards or groups, with the nearest.
    """
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files or not files[0].exists():
        raise UserError(f"plan: there are no recorded rewards at {path}")
    rewards, groups = [], []
    for number, file in enumerate(files):
        table = _read(file)
        reward, group = (
            _column(table, names, file, what) for names, what in ((REWARDS, "rewards"), (GROUPS, "groups"))
        )
        try:
            rewards.append(table[reward].cast(pl.Float64).to_numpy())
        except pl.exceptions.PolarsError:
            raise UserError(f'{file}: column "{reward}" holds values that are no numbers') from None
        steps = table["step"].cast(pl.String).to_list() if "step" in table.columns else [""] * len(table)
        keys = table[group].cast(pl.String).to_list()
        groups += [f"{number}/{step}/{key}" for step, key in zip(steps, keys, strict=True)]
    _, ids = np.unique(np.array(groups), return_inverse=True)
    return np.concatenate(rewards), ids


def _read(file: Path) -> pl.DataFrame:
    readers = {".parquet": pl.read_parquet, ".jsonl": pl.read_ndjson, ".ndjson": pl.read_ndjson, ".csv": pl.read_csv}
    if file.suffix not in readers:
        raise UserError(f"{file}: rewards are read from .parquet, .jsonl or .csv files")
    try:
        return readers[file.suffix](file)  # type: ignore[operator]
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UserError(f"{file}: cannot be read ({str(error).splitlines()[0]})") from None


def _column(table: pl.DataFrame, names: tuple[str, ...], file: Path, what: str) -> str:
    found = next((name for name in names if name in table.columns), None)
    if found is None:
        raise UserError(f"{file}: no column of {what} ({', '.join(names)}){nearest(names[0], table.columns)}")
    return found


def rewards_report(rewards: np.ndarray, groups: np.ndarray) -> dict[str, Any]:
    """`rewards` (figures), `informative_share` by G, `refused`."""
    finite = np.isfinite(rewards)
    sizes = np.bincount(groups[finite])
    refused = []
    shares: list[dict[str, float]] = []
    if sizes.max(initial=0) < 2:
        refused.append({"what": "everything within groups", "needs": "2 completions a prompt"})
    else:
        size = int(np.median(sizes[sizes > 1]))
        rows = [rewards[finite & (groups == g)][:size] for g in np.flatnonzero(sizes >= size)]
        shares = informative_shares(np.array(rows))
    refused.append({"what": "c1, c2, c3, G*", "needs": "the scores of the completions: delphic plan CONFIG.toml"})
    return {"rewards": reward_figures(rewards, groups), "informative_share": shares, "refused": refused}
