"""Training a run."""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from delphic.commands import need_torch
from delphic.config import RunConfig


def run_train(config: RunConfig, path: Path, resume: bool, as_json: bool, arguments: Sequence[str]) -> int:
    """Train; `arguments` are those of the command, to say how to go on. Exit status 0 done, 1 halted, 130 interrupted."""
    need_torch("train")
    from delphic.report.terminal import TerminalDisplay, print_summary, summarise
    from delphic.training.learner import NonFiniteError
    from delphic.training.loop import train

    output = Path(config.output)
    again = shlex.join(["delphic", "train", *arguments, *([] if resume else ["--resume"])])
    try:
        display: Any = TerminalDisplay()
        if config.trackers:
            from delphic.report.trackers import Tracked

            display = Tracked(display, config.trackers)
        outcome = train(config, output, path.resolve().parent, resume, display)
    except NonFiniteError as error:
        print(
            f"delphic: halted: {error}. The rollout is in {output}/halted; the last checkpoint is untouched.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print(f"delphic: stopped at once; go on from the last checkpoint with: {again}", file=sys.stderr)
        return 130
    except OSError as error:
        full = error.errno == errno.ENOSPC
        reason = "the disk is full. Make room, then" if full else f"{error}. Once that is put right"
        print(f"delphic: cannot write to {output}: {reason}: {again}", file=sys.stderr)
        return 1
    if os.environ.get("RANK", "0") != "0":  # of several processes, only the first speaks
        return 130 if outcome.interrupted else 0
    if as_json:
        summary = {"output": str(output), "finished": not outcome.interrupted, **summarise(outcome.rows)}
        print(json.dumps(summary, allow_nan=False))
    print_summary(outcome.rows, str(output))
    if outcome.interrupted:
        print(f"stopped after step {outcome.finished} and saved; go on with: {again}", file=sys.stderr)
        return 130
    return 0
