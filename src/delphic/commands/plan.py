"""A pilot and its advice, or what recorded rewards alone tell."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from delphic.commands import need_torch
from delphic.config import RunConfig
from delphic.errors import UserError


def run_plan(config: RunConfig, path: Path, options: argparse.Namespace) -> int:
    """A pilot and its advice; writes plan.json and plan.html into the output folder."""
    need_torch("plan")
    if options.prompts < 1 or options.completions < 2:
        raise UserError(
            f"plan: --prompts must be 1 or more and --completions 2 or more, got {options.prompts} and {options.completions}"
        )
    from rich.console import Console
    from rich.progress import Progress

    from delphic.planning.advice import advise
    from delphic.planning.pilot import run_pilot
    from delphic.report.plan import draw_plan, print_plan
    from delphic.training.run_folder import write_json

    folder = Path(options.to)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"plan: --to {folder} cannot be made ({error.strerror})") from None
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("pilot", total=2 * options.prompts)
        measured = run_pilot(
            config, path.resolve().parent, options.prompts, options.completions, lambda n: progress.advance(bar, n)
        )
    plan = advise(measured, config)
    write_json(folder / "plan.json", plan)
    size = config.sampling.completions
    if plan["curve"]:
        draw_plan(plan, size, folder / "plan.html")
    if options.json:
        print(json.dumps(plan, allow_nan=False))
    else:
        print_plan(plan, size)
        written = " and plan.html" if plan["curve"] else ""
        print(f"\nwritten: {folder}/plan.json{written}")
    return 0


def run_rewards(path: Path, as_json: bool) -> int:
    """What recorded rewards alone tell."""
    from delphic.runs.dumps import read_rollouts
    from delphic.statistics.rewards import rewards_report

    rollouts, problems = read_rollouts(path)
    report = rewards_report(rollouts["reward"].to_numpy(), rollouts["group"].to_numpy()) | {"problems": problems}
    if as_json:
        print(json.dumps(report, allow_nan=False))
        return 0
    low, high = report["group_size"]["smallest"], report["group_size"]["largest"]
    print(f"{report['groups']} groups of {low if low == high else f'{low} to {high}'} completions")
    for name, value in report["rewards"].items():
        print(f"{name.replace('_', ' '):24}{'–' if value is None else format(value, '.4g')}")
    for row in report["informative_share"]:
        print(f"informative at G = {row['G']:<7}{row['share']:.4g}")
    for item in report["refused"]:
        print(f"not estimated: {item['what']}; needs {item['needs']}")
    for problem in problems:
        print(f"note: {problem}")
    return 0
