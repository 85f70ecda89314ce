"""A comparison of runs in the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def print_compare(result: dict[str, Any]) -> None:
    console = Console(highlight=False, markup=False)
    console.print(result["verdict"], style="bold")
    table = Table(box=None, padding=(0, 2))
    for heading in ("", "run", "mean of the last steps", "error over steps", "steps"):
        table.add_column(heading)
    for name, side in zip("AB", result["sides"], strict=True):
        for run in side:
            table.add_row(name, run["run"], f"{run['level']:.4g}", f"{run['error']:.2g}", str(run["steps"]))
    console.print(table)
    if result["seed_spread"] is None and result["spread_that_would_show"]:
        parts = ", ".join(
            f"{n} seeds a side if they spread by {x:.2g} or less" for n, x in result["spread_that_would_show"].items()
        )
        console.print(f"80 % power to see it: {parts}")
    noise = result["noise"]
    if noise["high"] is None:
        console.print("noise of B over A: not determined (too few steps, or none of it)")
    else:
        expected = noise["expected_from_group_size"]
        beside = "" if expected is None else f"; the group sizes explain {expected:.2g}"
        console.print(
            f"noise of B over A (variance): {noise['ratio']:.2g} ({noise['low']:.2g} to {noise['high']:.2g}){beside}"
        )
    for name, rate in zip("AB", result["rates"], strict=True):
        text = "not determined" if rate is None else f"{rate['value']:.4g} ({rate['low']:.4g} to {rate['high']:.4g})"
        console.print(f"{name}: step at 95 % of the way to its plateau: {text}")
