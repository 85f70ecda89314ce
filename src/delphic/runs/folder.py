"""Which file of a folder is the log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import polars as pl

from delphic.errors import UserError
from delphic.runs.detect import recognise
from delphic.runs.file import from_rows, log_of_rollouts, planned, raw_of, read_file
from delphic.runs.log import RunLog
from delphic.runs.meaning import to_log
from delphic.runs.rows import Raw

LOGS = ("*.jsonl", "*.ndjson", "*.csv", "*.log", "*.txt", "*.json", "*.db", "*.jsonl.gz", "*.csv.gz")
KNOWN = ("metrics.jsonl", "logging.jsonl", "trainer_state.json")
MOST = 40  # files that are opened to find out


def read_folder(
    folder: Path, mapping: Mapping[str, str] | None, group_size: int | None, group_key: str | None
) -> RunLog:
    """A run's folder: delphic's, a trainer's with checkpoints, TensorBoard's, one log, or dumps of completions.

    Raises:
        UserError: nothing is known there, or logs of two frameworks.
    """
    log = _known(folder, mapping, group_size, group_key)
    if log is not None:
        return log
    events = sorted(folder.rglob("*tfevents*"))
    if events:
        from delphic.runs.tensorboard import read_events

        raw = from_rows(folder, read_events(folder), "tensorboard")
        _refuse_others(folder, recognise(raw.table.columns).name)
        return to_log(folder, raw, mapping)
    return _only_one(folder, mapping, group_size, group_key)


def _known(folder: Path, mapping: Mapping[str, str] | None, size: int | None, key: str | None) -> RunLog | None:
    states = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=_number)
    for file in (folder / KNOWN[0], folder / KNOWN[1], folder / KNOWN[2], *reversed(states)):
        if file.is_file() and file.stat().st_size:
            log = read_file(file, mapping, size, key)
            log = replace(log, settings={**log.settings, **planned(folder / "config.json")})
            return _with_rollouts(folder, log, size, key)
    return None


def _number(file: Path) -> int:
    found = re.search(r"(\d+)$", file.parent.name)
    return int(found[1]) if found else -1


def _with_rollouts(folder: Path, log: RunLog, size: int | None, key: str | None) -> RunLog:
    """The completions beside a log, where they can be read without doubt."""
    places = [folder / "rollouts", folder / "completions", folder / "rollout_data"]
    place = next((p for p in places if p.is_dir()), folder if any(folder.glob("completions_*.parquet")) else None)
    if place is None:
        return log
    from delphic.runs.dumps import read_rollouts

    try:
        rollouts, problems = read_rollouts(place, size, key)
    except UserError as error:
        return replace(log, problems=(*log.problems, f"completions not used: {error}"))
    return replace(log, rollouts=rollouts, problems=(*log.problems, *problems))


def _refuse_others(folder: Path, framework: str) -> None:
    """Logs of other frameworks beside event files."""
    for file, (kind, _) in _read_all(folder)[0].items():
        if kind not in ("generic", framework):
            raise UserError(
                f"{folder}: logs of several frameworks: event files ({framework}), {file.name} ({kind}); name one file"
            )


def _only_one(folder: Path, mapping: Mapping[str, str] | None, size: int | None, key: str | None) -> RunLog:
    found, refused = _read_all(folder)
    raws, named = {file: raw for file, (_, raw) in found.items()}, {file: kind for file, (kind, _) in found.items()}
    dumps = [file for file in folder.glob("*.parquet")]
    kinds = sorted(set(named.values()) - {"generic"})
    if len(kinds) > 1:
        first = {kind: next(file.name for file, name in named.items() if name == kind) for kind in kinds}
        listed = ", ".join(f"{first[kind]} ({kind})" for kind in kinds)
        raise UserError(f"{folder}: logs of several frameworks: {listed}; name one file")
    mine = [file for file, name in named.items() if name == (kinds[0] if kinds else "generic")]
    if len(mine) == 1:
        return to_log(mine[0], raws[mine[0]], mapping)
    if mine and _disjoint([raws[file] for file in mine]):
        return to_log(folder, _joined([raws[file] for file in mine]), mapping)
    if mine and not _numbered(mine):
        listed = ", ".join(file.name for file in mine[:6]) + (", …" if len(mine) > 6 else "")
        raise UserError(f"{folder}: several logs ({listed}); name one file")
    if mine or dumps:
        from delphic.runs.dumps import read_rollouts

        return log_of_rollouts(folder, *read_rollouts(folder, size, key))
    if refused is not None:
        raise refused
    raise UserError(f"{folder}: no log in it that is known (docs/logs.md lists what is read)")


def _read_all(folder: Path) -> tuple[dict[Path, tuple[str, Raw]], UserError | None]:
    """({file: (framework, rows)} of the logs right in a folder, why the first of the others cannot be read)."""
    files = sorted({file for pattern in LOGS for file in folder.glob(pattern) if file.is_file()})
    out: dict[Path, tuple[str, Raw]] = {}
    refused = None
    for file in files[:MOST]:
        try:
            raw = raw_of(file)
        except UserError as error:
            refused = refused or error
            continue
        if raw is not None:
            out[file] = (recognise(raw.table.columns).name, raw)
    return out, refused


def _numbered(files: list[Path]) -> bool:
    """One file a step, as dumps of completions are."""
    return all(re.search(r"\d", file.stem) for file in files)


def _disjoint(raws: list[Raw]) -> bool:
    """Files of one run that share nothing but steps and times (a trainer's and an orchestrator's)."""
    seen: set[str] = set()
    for raw in raws:
        names = {name for name in raw.table.columns if "step" not in name and "time" not in name}
        if names & seen:
            return False
        seen |= names
    return True


def _joined(raws: list[Raw]) -> Raw:
    """Their rows one after the other, by step."""
    table = pl.concat([raw.table for raw in raws], how="diagonal")
    problems = [problem for raw in raws for problem in raw.problems]
    if "step" in table.columns:
        table = table.sort("step", maintain_order=True)
    return Raw(table, problems, {k: v for raw in raws for k, v in raw.said.items()}, raws[0].form)
