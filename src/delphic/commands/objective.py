"""What an objective is, and what it does to rewards."""

from __future__ import annotations

import argparse
import json
from typing import Any

from delphic.config import parse_value
from delphic.errors import UserError


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
