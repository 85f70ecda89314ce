"""What each command does, between the command line's words and the packages' functions."""

from __future__ import annotations

import argparse
import errno
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from delphic.config import RunConfig, parse_value
from delphic.errors import UserError


def run_train(config: RunConfig, path: Path, resume: bool, as_json: bool, arguments: Sequence[str]) -> int:
    """Train; `arguments` are those of the command, to say how to go on. Exit status 0 done, 1 halted, 130 interrupted."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise UserError(f"train needs {error.name}: pip install 'delphic[train]'") from None
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


def run_objective(options: argparse.Namespace) -> int:
    """Print the table, a row's formula, or what it does to given rewards."""
    from rich.console import Console
    from rich.table import Table

    from delphic.objective import PRESETS, build
    from delphic.objective.explain import explain, formula, table

    console = Console(highlight=False)
    if options.list:
        rows = table()
        if options.json:
            print(json.dumps(rows, ensure_ascii=False))
            return 0
        grid = Table(box=None, padding=(0, 1))
        shown = [heading for heading in rows[0] if heading != "source"]  # `delphic objective NAME` gives the source
        for heading in shown:
            grid.add_column(heading, no_wrap=heading == "name")
        for row in rows:
            grid.add_row(*(str(row[heading]) for heading in shown))
        console.print(grid)
        return 0
    if options.name is None:
        raise UserError("objective: which one? delphic objective --list shows them")
    choices: dict[str, Any] = {"preset": options.name}
    for item in options.set:
        key, equals, value = item.partition("=")
        if not equals:
            raise UserError(f'objective: --set reads KEY=VALUE, got "{item}"')
        choices[key.replace("-", "_")] = parse_value(value)
    goal = build(choices)
    if options.rewards is None:
        text = formula(goal)
        preset = PRESETS[options.name]
        if options.json:
            row = {"objective": goal.name, "formula": text, "source": preset.source, "about": preset.about}
            print(json.dumps({**row, "choices": goal.model_dump(mode="json")}, ensure_ascii=False))
        else:
            print(f"{goal.name}  ({preset.source})\n{preset.about}\n\n{text}")
        return 0
    result = explain(
        goal,
        options.rewards,
        ratios=options.ratios,
        lengths=options.lengths,
        values=options.values,
        score_norms=options.score_norms,
        reference_ratios=options.reference_ratios,
        max_length=options.max_length,
        seed=options.seed,
    )
    if options.json:
        print(json.dumps(result, allow_nan=False, ensure_ascii=False))
        return 0
    grid = Table(box=None, padding=(0, 2))
    for heading in ("group", "completion", "advantage", "weight", "penalty weight", "left out because"):
        grid.add_column(heading, justify="left" if heading.startswith("left") else "right")
    for g, advantages in enumerate(result["advantages"]):
        reasons = dict(zip(result["dropped"][g], result["drop_reasons"][g], strict=True))
        for i, advantage in enumerate(advantages):
            weight, penalty = result["weights"][g][i], result["penalty_weights"][g][i]
            grid.add_row(
                str(g + 1), str(i + 1), f"{advantage:.4g}", f"{weight:.4g}", f"{penalty:.4g}", reasons.get(i, "")
            )
    console.print(grid)
    for note in result["notes"]:
        console.print(f"· {note}")
    return 0
