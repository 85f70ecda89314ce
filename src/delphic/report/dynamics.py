"""Stability and forecasts in the terminal, and the forecast's picture as one self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from delphic.report.terminal import sparkline
from delphic.runs.measured import needed


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def gauge(share: float, width: int = 40) -> str:
    """A bar of how much of the stable range is used; past the end it is unstable."""
    filled = min(width, max(0, round(share * width)))
    return "█" * filled + "░" * (width - filled) + ("▌" if share > 1 else "")


def print_stability(result: dict[str, Any]) -> None:
    console = Console(highlight=False, markup=False)
    rate, limit = result["learning_rate"], result["exact_limit"]
    if limit:
        share = rate / limit
        console.print(f"{gauge(share)} {share:.0%} of the exact limit")
    swing = f", period {_text(result['period'])} steps" if result["period"] else ""
    console.print(f"{result['regime']}: damping ratio {_text(result['damping_ratio'])}{swing}")
    table = Table(box=None, padding=(0, 2))
    table.add_column("")
    table.add_column("", justify="right")
    for label, key in (
        ("gain ηK·d", "gain"),
        ("learning rate: safe bound (closed form)", "closed_form_limit"),
        ("learning rate: exact limit", "exact_limit"),
        ("learning rate: oscillates from", "oscillation_onset"),
        ("spectral radius per step", "spectral_radius"),
        ("largest learning rate, with the margin", "max_learning_rate"),
        ("largest sync interval, with the margin", "max_sync_interval"),
    ):
        table.add_row(label, _text(result[key]))
    console.print(table)
    if result.get("what_if"):
        grid = Table(box=None, padding=(0, 2))
        for heading in ("change", "regime", "share of the limit", "damping ratio"):
            grid.add_column(heading)
        for row in result["what_if"]:
            share = "–" if row["share_of_limit"] is None else f"{row['share_of_limit']:.0%}"
            grid.add_row(row["change"], row["regime"], share, _text(row["damping_ratio"]))
        console.print(grid)
    for note in result["notes"]:
        console.print(f"· {note}")


VERDICTS = {"stable": "stable", "unstable": "unstable", "cannot tell": "stable or not, the interval does not tell"}


def print_probe(result: dict[str, Any]) -> None:
    console = Console(highlight=False, markup=False)
    what = "delayed part of the update's derivative" if result["part"] == "delayed" else "update's derivative"
    units = "Adam's units" if result["units"] == "adam" else "units of plain gradient steps"
    console.print(
        f"step {result['step']}: K = {_text(result['stiffness'])} ({_text(result['low'])} – {_text(result['high'])}), the "
        f"top eigenvalue of the {what}, {units}"
    )
    if result["certified"]:
        console.print("certified: the ends of the interval agree within a factor of 2")
    else:
        more = needed(result["prompts_needed"])
        console.print(f"K cannot be certified from {result['prompts']} prompts: its ends differ by more than 2{more}")
    margins = [result[key] for key in ("margin", "margin_at_low")]
    between = " – ".join("none" if m is None else f"{m:.3g} ×" for m in margins)
    console.print(
        f"learning rate {result['learning_rate']:g}: the expected update is {VERDICTS[result['verdict']]}; its limit {between} the learning rate"
    )
    if result["response"] is not None:
        response = result["response"]
        change = response["reward_change"]
        console.print(
            f"{response['factor']:g} × the rate for {response['steps']} steps: reward {change['value']:+.3f} "
            f"({change['low']:+.3f} – {change['high']:+.3f}) against the run's own rate"
        )
        console.print(f"step response: {response['sentence']}")
    for note in result["notes"]:
        console.print(f"· {note}")
    console.print(
        f"· {result['prompts']} prompts × {result['completions']} completions, mean reward {result['reward']:.3f}, "
        f"{result['products']} products, {result['seconds']:.0f} s"
    )


def print_forecast(result: dict[str, Any], values: Sequence[float]) -> None:
    console = Console(highlight=False, markup=False)
    console.print(f"{result['metric']}  {values[0]:.3g} {sparkline(list(values))} {values[-1]:.3g}")
    if result["refused"]:
        console.print(f"no forecast: {result['reason']}")
    else:
        for label, key in (
            (f"mean of the last tenth, up to step {result['end']:g}", "final"),
            ("plateau", "plateau"),
            ("step at 95 % of the way", "steps_to_95_percent"),
        ):
            found = result[key]
            text = (
                "not determined"
                if found is None
                else f"{found['value']:.4g} ({found['low']:.4g} – {found['high']:.4g})"
            )
            console.print(f"{label}: {text}")
        console.print(result["advice"])
    if "actual" in result:
        console.print(f"actual: {result['actual']:.4g}")
    if result["laws"]:
        table = Table(box=None, padding=(0, 2))
        for heading in ("law", "AICc", "weight", "r²", "plateau"):
            table.add_column(heading, justify="left" if heading == "law" else "right")
        best = result["laws"][0]["aicc"]
        for row in result["laws"]:
            cells = (
                f"+{row['aicc'] - best:.1f}",
                f"{row['weight']:.2f}",
                f"{row['r2']:.3f}",
                _text(row["parameters"]["plateau"]),
            )
            table.add_row(row["name"], *cells)
        console.print(table)
    for problem in result["problems"]:
        console.print(f"· {problem}")


def draw_forecast(
    result: dict[str, Any],
    steps: np.ndarray,
    values: np.ndarray,
    seen: int,
    band: dict[str, np.ndarray] | None,
    path: Path,
) -> None:
    """The curve, where the forecast stood, and the band up to the planned end."""
    import plotly.graph_objects as go

    figure = go.Figure()
    if band is not None:
        t = band["t"]
        figure.add_scatter(
            x=np.concatenate([t, t[::-1]]),
            y=np.concatenate([band["high"], band["low"][::-1]]),
            fill="toself",
            fillcolor="#0072B2",
            opacity=0.18,
            line={"width": 0},
            hoverinfo="skip",
            name=f"{result['level']:.0%} band of the curve",
        )
        figure.add_scatter(x=t, y=band["middle"], line={"color": "#0072B2", "width": 2.5}, name="middle of the laws")
    for name, part, colour, symbol in (
        ("seen", slice(0, seen), "#333333", "circle"),
        ("not seen by the forecast", slice(seen, None), "#D55E00", "x"),
    ):
        if len(steps[part]):
            marker = {"color": colour, "size": 5, "symbol": symbol, "opacity": 0.6}
            figure.add_scatter(x=steps[part], y=values[part], mode="markers", marker=marker, name=name)
    figure.update_xaxes(title="step")
    figure.update_yaxes(title=result["metric"])
    title = f"no forecast: {result['reason']}" if result["refused"] else result["advice"]
    figure.update_layout(template="simple_white", title=title, legend={"orientation": "h", "y": -0.2})
    figure.write_html(path, include_plotlyjs=True, full_html=True)


def print_backtest(result: dict[str, Any]) -> None:
    table = Table(box=None, padding=(0, 2))
    for heading in ("at", "runs", "answered", "median error", "last value", "exponential", "covered", "95 % interval"):
        table.add_column(heading, justify="left" if heading == "at" else "right")
    for row in result["summary"]:
        covered = "–" if row["coverage"] is None else f"{row['coverage']:.0%}"
        interval = "–" if row["coverage"] is None else f"{row['coverage_low']:.0%} – {row['coverage_high']:.0%}"
        errors = (_text(row[key]) for key in ("median_error", "median_error_last_value", "median_error_exponential"))
        table.add_row(f"{row['at']:.0%}", str(row["runs"]), str(row["answered"]), *errors, covered, interval)
    console = Console(highlight=False, markup=False)
    console.print(table)
    for item in result["left_out"]:
        console.print(f"· left out: {item}")
