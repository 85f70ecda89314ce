"""What is wrong with a run, once or while it grows."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from delphic.errors import UserError

if TYPE_CHECKING:
    from delphic.diagnosis.verdict import Diagnosis
    from delphic.runs.log import RunLog


def read(options: argparse.Namespace) -> RunLog:
    """The run that a command's options name, its planned end and its settings as given."""
    from delphic.runs.read import read_run

    for name in ("end", "learning_rate", "sync_interval", "group_size"):
        value = getattr(options, name, None)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"--{name.replace('_', '-')} must be positive, got {value:g}")
    log = read_run(
        options.path, mapping(options.map), getattr(options, "group_size", None), getattr(options, "group_key", None)
    )
    return with_settings(
        log, steps=options.end, learning_rate=options.learning_rate, sync_interval=options.sync_interval
    )


def with_settings(log: RunLog, **given: float | None) -> RunLog:
    """The log with settings that the user knows better."""
    from dataclasses import replace

    known = {key: value for key, value in given.items() if value is not None}
    return replace(log, settings={**log.settings, **known}) if known else log


def mapping(pairs: list[str]) -> dict[str, str]:
    """["reward=my_column"] → {"reward_mean": "my_column"}; short names of canonical columns are taken."""
    from delphic.errors import nearest
    from delphic.runs.columns import CANONICAL, COMPONENT

    short = {"reward": "reward_mean", "eval": "eval_reward", "length": "length_mean", "kl": "kl_reference"}
    out = {}
    for pair in pairs:
        name, equals, key = pair.partition("=")
        if not equals or not key:
            raise UserError(f'diagnose: --map takes NAME=COLUMN, such as reward=score, got "{pair}"')
        name = short.get(name, name)
        if name != "step" and name not in CANONICAL and not name.startswith(COMPONENT):
            raise UserError(f'diagnose: --map knows no column "{name}"{nearest(name, [*CANONICAL, "step", *short])}')
        out[name] = key
    return out


def run_diagnose(options: argparse.Namespace) -> int:
    """Read, judge, show; exit status 0 nothing above info, 1 a warning or error, 3 cannot tell."""
    from delphic.diagnosis.verdict import diagnose
    from delphic.report.diagnosis import print_columns, print_diagnosis, to_json

    log = read(options)
    if options.columns:
        if options.json:
            print(json.dumps({"columns": [vars(column) for column in log.columns], "unread": list(log.unread)}))
        else:
            print_columns(log)
        return 0
    found = diagnose(log)
    if options.html is not None:
        from delphic.report.diagnosis_page import draw_diagnosis

        try:
            draw_diagnosis(log, found, options.html)
        except OSError as error:
            raise UserError(f"diagnose: cannot write to {options.html}: {error.strerror}") from None
    if options.json:
        print(json.dumps(to_json(log, found), allow_nan=False))
    else:
        print_diagnosis(log, found)
        if options.html is not None:
            print(f"page: {options.html}")
    return found.status


def run_watch(options: argparse.Namespace) -> int:
    """Judge a growing log again whenever it has grown; say what is new. Ends with Ctrl-C, or at the first warning if asked."""
    from delphic.diagnosis.verdict import diagnose

    if not options.every > 0:
        raise UserError(f"watch: --every must be above 0 seconds, got {options.every:g}")
    seen: set[str] = set()
    before: tuple[float, int] | None = None
    status = 0
    began = time.monotonic()
    try:
        while True:
            now = _size(options.path)
            if now != before:
                before = now
                log = _growing(options, seen)
                if log is not None:
                    found = diagnose(log, ahead=False)
                    status = found.status
                    _tell(options, log, found, seen)
                    if options.until_finding and status == 1:
                        return status
            if options.seconds is not None and time.monotonic() - began >= options.seconds:
                return status
            time.sleep(options.every)
    except KeyboardInterrupt:
        return status


def _growing(options: argparse.Namespace, seen: set[str]) -> RunLog | None:
    """The log as it is now; None while there is nothing to read yet in a file that exists, or no reward (said once)."""
    from delphic.runs.meaning import NoRewardsError

    try:
        return read(options)
    except NoRewardsError as error:
        if not seen:
            print(f"delphic: waiting for rewards; {error}", file=sys.stderr)
            seen.add("waiting")
        return None
    except UserError:
        if options.path.exists() and _size(options.path)[1] == 0:
            return None
        raise


def _size(path: Path) -> tuple[float, int]:
    """(last change, bytes) of a file, or of all files in a folder."""
    try:
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        stats = [file.stat() for file in files]
    except OSError:
        return 0.0, 0
    return max((s.st_mtime for s in stats), default=0.0), sum(s.st_size for s in stats)


def _tell(options: argparse.Namespace, log: RunLog, found: Diagnosis, seen: set[str]) -> None:
    """One line for the state; a finding in full when it is new."""
    from delphic.report.diagnosis import print_finding

    new = [f for f in found.findings if f.name not in seen]
    seen.update(f.name for f in found.findings)
    step = int(log.steps[-1]) if len(log.steps) else 0
    if options.json:
        rows = [{"name": f.name, "severity": f.severity, "evidence": f.evidence, "advice": f.advice} for f in new]
        print(json.dumps({"step": step, "verdict": list(found.verdict), "new": rows}), flush=True)
        return
    late = f", reward {log.series('reward_mean')[1][-10:].mean():.3g}" if log.has("reward_mean") else ""
    print(f"step {step}{late}: {', '.join(found.verdict).replace('_', ' ')}", flush=True)
    for finding in new:
        print_finding(finding)
