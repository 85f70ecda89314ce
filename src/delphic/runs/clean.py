"""From rows as they stand in a file to one row a step: sessions, resumes, repeats, what is not finite."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from delphic.runs.log import Session

LARGEST = 1e150


@dataclass
class Cleaned:
    """table: "step" ascending and the columns, of the last session of at least half the steps of the longest; rows: of the source."""

    table: pl.DataFrame
    sessions: tuple[Session, ...]
    resumed: tuple[int, ...]
    non_finite: dict[str, tuple[int, ...]]
    problems: list[str]


def clean(table: pl.DataFrame, step: str) -> Cleaned:
    """Steps that go back behind the first of their session begin another one; that go back inside it are a resume, which replaces what
    it does again; rows of the same step are merged (their mean where two have a value)."""
    problems: list[str] = []
    steps = table[step].to_numpy()
    usable = np.isfinite(steps) & (np.abs(steps) < 2**53)
    if not usable.all():
        count = int((~usable).sum())
        problems.append(
            f"{count} row{' has' if count == 1 else 's have'} no step and {'was' if count == 1 else 'were'} left out"
        )
        table, steps = table.filter(pl.Series(usable)), steps[usable]
    if len(steps) == 0:
        return Cleaned(table.rename({step: "step"}), (), (), {}, problems)
    table, steps = _in_order(table, step, problems)
    number, alive, resumes = _sessions(steps)
    parts = [steps[(number == k) & alive] for k in range(int(number[-1]) + 1)]
    sessions = [Session(int(p.min()), int(p.max()), int((number == k).sum())) for k, p in enumerate(parts)]
    lengths = np.array([len(np.unique(p)) for p in parts])
    best = int(np.flatnonzero(lengths >= lengths.max() / 2)[-1])  # the latest that is no stub
    if len(sessions) > 1:
        listed = ", ".join(f"{s.first}–{s.last}" for s in sessions[:8]) + (", …" if len(sessions) > 8 else "")
        again = "once" if len(sessions) == 2 else f"{len(sessions) - 1} times"
        used = "last" if best == len(sessions) - 1 else "last long"
        problems.append(f"the steps start again {again} ({listed}); the {used} part is used")
    replaced = int((~alive & (number == best)).sum())
    if replaced:
        problems.append(f"{replaced} rows were done again after a resume; the later ones count")
    kept = table.filter(pl.Series((number == best) & alive))
    kept = kept.rename({step: "step"}) if step != "step" else kept
    kept = kept.with_columns(pl.col("step").round().cast(pl.Int64))
    kept, non_finite = _finite(kept)
    repeated = len(kept) - kept["step"].n_unique()
    if repeated:
        names = [name for name in kept.columns if name != "step"]
        twice = (
            kept.group_by("step").agg(pl.col(names).count()).select(pl.max_horizontal(pl.col(names).max())).item()
            if names
            else 0
        )
        if twice and twice > 1:
            problems.append(f"{repeated} rows repeat a step; their mean is used")
        kept = kept.group_by("step").mean()
    at = tuple(int(steps[i]) for i in resumes if number[i] == best)
    return Cleaned(kept.sort("step"), tuple(sessions), at, non_finite, problems)


def _in_order(table: pl.DataFrame, step: str, problems: list[str]) -> tuple[pl.DataFrame, np.ndarray]:
    """Rows by step where steps that go back are late or reversed rows, not another start: no figure is there twice, or a few kinds of
    row (a trainer's, an orchestrator's) each go forward."""
    steps = table[step].to_numpy()
    names = [name for name in table.columns if name != step]
    if not (np.diff(steps) < 0).any() or not names:
        return table, steps
    most = table.group_by(step).agg(pl.col(names).count()).select(pl.max_horizontal(pl.col(names).max())).item()
    if most > 1 and not _kinds_go_forward(table.select(pl.col(names).is_not_null()).to_numpy(), steps):
        return table, steps
    problems.append("the rows were not in the order of their steps and were sorted")
    table = table.sort(step, maintain_order=True)
    return table, table[step].to_numpy()


def _kinds_go_forward(filled: np.ndarray, steps: np.ndarray) -> bool:
    """filled [rows, columns]: whether rows with the same columns filled always go forward; of at most eight such kinds."""
    kinds, kind = np.unique(np.packbits(filled, axis=1), axis=0, return_inverse=True)
    return 1 < len(kinds) <= 8 and not any((np.diff(steps[kind.ravel() == k]) < 0).any() for k in range(len(kinds)))


def _sessions(steps: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """(session of each row, whether a resume has not replaced it, the rows at which a resume begins)."""
    back = np.flatnonzero(np.diff(steps) < 0) + 1
    number, alive = np.zeros(len(steps), dtype=np.int64), np.ones(len(steps), dtype=bool)
    resumes: list[int] = []
    start = 0
    for i in back:
        if steps[i] <= steps[start]:
            number[i:] += 1
            start = int(i)
        elif len(resumes) < 10_000:
            mine = slice(start, i)
            alive[mine] &= steps[mine] < steps[i]
            resumes.append(int(i))
    return number, alive, resumes


def _finite(table: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, tuple[int, ...]]]:
    """Null for what is not finite, or so large that its square is not; where that was, of columns that have numbers at all."""
    names = [name for name in table.columns if name != "step"]
    if not names:
        return table, {}
    finite = pl.col(names).abs() < LARGEST
    counts = table.select(finite.sum()).row(0, named=True)
    present = table.select(pl.col(names).count()).row(0, named=True)
    bad = {
        name: tuple(table.filter(~(pl.col(name).abs() < LARGEST))["step"].to_list())
        for name in names
        if 0 < (counts[name] or 0) < present[name]
    }
    empty = [name for name in names if not counts[name]]
    cleaned = table.with_columns(pl.when(finite).then(pl.col(names)).otherwise(None).name.keep()).drop(empty)
    return cleaned, bad
