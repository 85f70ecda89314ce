"""A plan in the terminal, and its picture as one self-contained page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

# Okabe-Ito colours and dashes of their own: told apart by colour-blind people and in print
STYLES = {
    "vanilla": ("#999999", "dot", "no baseline"),
    "loo": ("#0072B2", "solid", "leave-one-out (GRPO, RLOO)"),
    "self_inclusive": ("#56B4E9", "dashdot", "group mean (Dr. GRPO), its step shrunk"),
    "oracle": ("#009E73", "dash", "oracle baseline V(x)"),
    "best_baseline": ("#E69F00", "longdash", "best prompt-only baseline"),
}


def print_plan(plan: dict[str, Any], size: int) -> None:
    """What a reader needs on one screen."""
    console = Console(highlight=False, markup=False)
    pilot = plan["pilot"]
    left_out = f", {pilot['left_out']} left out (rewards not finite)" if pilot["left_out"] else ""
    console.print(
        f"pilot: {pilot['prompts']} prompts × {pilot['completions']} completions, {pilot['seconds']:.0f} s{left_out}"
    )
    figures = plan["rewards"]
    silent, expected = figures["silent_share"], figures["silent_share_expected"]
    explained = "" if expected is None else f" ({expected:.0%} explained by difficulty)"
    console.print(f"rewards: mean {_text(figures['mean'])}; silent groups {silent:.0%}{explained}")
    if plan["constants"] is not None:
        table = Table(box=None, padding=(0, 2))
        for heading in ("", "value", "95 % interval"):
            table.add_column(heading, justify="left" if not heading else "right")
        rows = [("c1  between prompts", "c1"), ("c2  the oracle's own noise", "c2"), ("c3  the baseline's noise", "c3")]
        for label, name in rows:
            table.add_row(label, *_cells(plan["constants"][name]))
        table.add_row("G*  best group size", *_cells(plan["g_star"]))
        console.print(table)
        if plan["units"] == "adam":
            plain = plan["gradient_units"]
            parts = ", ".join(f"{name} {_text(plain['constants'][name]['value'])}" for name in ("c1", "c2", "c3"))
            console.print(f"(of Adam's step; of the gradient itself: {parts}, G* {_text(plain['g_star']['value'])})")
        split = plan["noise_split"]
        parts = ", ".join(f"{name.replace('_', ' ')} {share:.0%}" for name, share in split.items())
        console.print(f"noise at G = {size}: {parts}")
        if plan.get("oracle_ratio"):
            console.print(f"at G = {size} the error is {plan['oracle_ratio']:.2f} × the oracle's")
        cost = plan["cost"]
        console.print(
            f"cost: a prompt {cost['prompt_seconds']:.3g} s, a completion {cost['completion_seconds']:.3g} s; "
            f"best G for time {cost['best_completions']}"
        )
        own = plan["moments"] == "pilot"  # which knows no critical batch of its own
        batch = (plan["gradient_units"] if own else plan)["critical_batch"]
        console.print(f"critical batch {_text(batch)} prompts{' (of the gradient itself)' if own else ''}")
    thirds = plan["by_difficulty"]
    if thirds and "allocation" in thirds[0] and thirds[0]["allocation"]["error"] is not None:
        counts = ", ".join(f"{row['prompts']} {row['allocation']['completions']}" for row in thirds)
        share = thirds[0]["allocation"]["error"]
        console.print(
            f"completions by difficulty ({counts}) instead of {size} each: {share:.2f} × the error within prompts"
        )
    advice = plan["recommendation"]
    if advice is not None:
        low, high = advice["within_two_percent"]
        verb = "keep" if advice["keep"] else "set"
        span = f"{low} completions lose" if low == high else f"{low} to {high} completions lose"
        console.print(f"\n{span} less than 2 %: {verb} {advice['completions']}")
        for host, line in advice["config"].items():
            console.print(f"  {host:8}{line}")
    for item in plan["refused"]:
        console.print(f"not estimated: {item['what']}; needs {item['needs']}")
    console.print("\nscope: " + plan["scope"][0])
    for line in plan["scope"][1:]:
        console.print("· " + line)


def _cells(interval: dict[str, float | None]) -> tuple[str, str]:
    return _text(interval["value"]), f"{_text(interval['low'])} – {_text(interval['high'])}"


def _text(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3g}"


def draw_plan(plan: dict[str, Any], size: int, path: Path) -> None:
    """Error against group size at the config's budget, every estimator with its interval."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for estimator, (colour, dash, label) in STYLES.items():
        rows = [row for row in plan["curve"] if row["estimator"] == estimator and row["mse"] > 0]
        if not rows:
            continue
        x, y = [row["G"] for row in rows], [row["mse"] for row in rows]
        if estimator in ("loo", "oracle"):
            band = [max(row["low"], 1e-30) for row in rows][::-1]
            figure.add_scatter(
                x=x + x[::-1],
                y=[row["high"] for row in rows] + band,
                fill="toself",
                fillcolor=colour,
                opacity=0.15,
                line={"width": 0},
                hoverinfo="skip",
                showlegend=False,
            )
        figure.add_scatter(x=x, y=y, name=label, line={"color": colour, "dash": dash, "width": 2.5})
    figure.add_vline(x=size, line={"color": "#555", "dash": "dot"}, annotation_text=f"now: G = {size}")
    star = plan["g_star"]
    if star and star["value"] is not None:
        figure.add_vline(x=star["value"], line={"color": "#D55E00"}, annotation_text=f"G* = {star['value']:.1f}")
    figure.update_xaxes(type="log", title="completions per prompt, G", tickvals=[2, 4, 8, 16, 32, 64, 128, 256])
    figure.update_yaxes(type="log", title="mean squared error of the gradient, same number of completions")
    figure.update_layout(template="simple_white", legend={"x": 0.02, "y": 0.98}, title="How good is the gradient?")
    figure.write_html(path, include_plotlyjs=True, full_html=True)
