"""The papers' experiments."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from delphic.commands import need_torch
from delphic.errors import UserError, nearest

STUDIES = ("ustat", "dynamics", "detection")


def run_reproduce(options: argparse.Namespace) -> int:
    """Run a study, or what of it is left; print its claims or report.json. Exit status 0 done, 130 Ctrl-C."""
    need_torch("reproduce")
    if options.study not in STUDIES:
        raise UserError(f'reproduce: there is no study "{options.study}"{nearest(options.study, STUDIES)}')
    from delphic.report.study import StudyProgress, print_claims
    from delphic.reproduce.study import run_study

    if options.study != "ustat" and (options.model is not None or options.task is not None):
        raise UserError(f"reproduce: {options.study} has worlds of its own; leave out --model and --task")
    if options.study == "dynamics":
        from delphic.reproduce.dynamics import dynamics

        study = dynamics()
    elif options.study == "detection":
        from delphic.reproduce.detection import detection

        study = detection()
    else:
        from delphic.reproduce.ustat import ustat

        study = ustat(options.model, options.task)
    own = "" if options.model is None and options.task is None else "-own"
    folder = options.to or Path("runs/reproduce") / f"{study.name}{own}"
    progress = StudyProgress([part.name for part in study.parts])
    try:
        report = run_study(study, folder, options.quick, progress.note)
    except KeyboardInterrupt:
        progress.close()
        print("delphic: stopped; the same command goes on from the last finished part", file=sys.stderr)
        return 130
    finally:
        progress.close()
    if options.json:
        print(json.dumps(report, allow_nan=False, ensure_ascii=False))
    else:
        print_claims(report["claims"])
        print(f"\nwritten: {folder}/report.md, report.html and report.json")
    return 0
