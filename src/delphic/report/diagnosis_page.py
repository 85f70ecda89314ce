"""A diagnosis as one self-contained page: the verdict first, then every curve, with no network."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from delphic.diagnosis.finding import Finding
from delphic.diagnosis.sequential import thin
from delphic.diagnosis.verdict import Diagnosis
from delphic.report.diagnosis import outlook, reading, words
from delphic.runs.columns import CANONICAL
from delphic.runs.log import RunLog

POINTS = 1600  # of a curve
SAMPLES, LONGEST = 60, 4000  # completions shown; characters of one
# Okabe-Ito colours, each with a dash and a marker of its own
STYLES = (
    ("#0072B2", "solid"),
    ("#D55E00", "dash"),
    ("#009E73", "dot"),
    ("#CC79A7", "dashdot"),
    ("#000000", "longdash"),
)
PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Groups", ("silent_share", "silent_share_expected", "solved_all_share", "solved_none_share")),
    ("Noise budget", ("reward_std", "advantage_variance")),
    ("Entropy", ("entropy",)),
    ("KL", ("kl_reference", "kl_update", "kl_sampler")),
    ("Sampler against trainer", ("sampler_difference", "ratio_max", "ratio_mean")),
    ("Lag", ("lag", "lag_max")),
    ("Length", ("length_mean", "length_max", "length_terminated_mean")),
    ("Truncated and clipped", ("truncated_share", "clip_share", "clip_low_share", "clip_high_share")),
    ("Gradient and update", ("gradient_norm", "update_norm")),
    ("Learning rate", ("learning_rate",)),
)


def draw_diagnosis(log: RunLog, found: Diagnosis, path: Path) -> None:
    """Write the page.

    Raises:
        OSError: it cannot be written.
    """
    from jinja2 import Environment, PackageLoader
    from plotly.offline import get_plotlyjs

    environment = Environment(loader=PackageLoader("delphic.report", "templates"), autoescape=True)
    figures = pictures(log, found)
    content = environment.get_template("diagnosis.html").render(
        title=log.path.name or "run",
        verdicts=[words(v) for v in found.verdict],
        grave=[f for f in found.findings if f.severity != "info"],
        mild=[f for f in found.findings if f.severity == "info"],
        outlook=outlook(log, found),
        gauge=_gauge(found),
        figures=[(f"figure{k}", title) for k, (title, _) in enumerate(figures)],
        data=_script({f"figure{k}": figure for k, (_, figure) in enumerate(figures)}),
        columns=[(c, CANONICAL[c.canonical].meaning if c.canonical in CANONICAL else "") for c in log.columns],
        reading=reading(log),
        skipped=found.skipped,
        samples=samples(log),
        plotly=get_plotlyjs(),
        style=files("delphic.report").joinpath("templates/diagnosis.css").read_text(encoding="utf-8"),
    )
    path.write_text(content, encoding="utf-8")


def _script(content: Any) -> str:
    """JSON that cannot end a script element."""
    return json.dumps(content, allow_nan=False).replace("<", "\\u003c").replace("\u2028", "").replace("\u2029", "")


def pictures(log: RunLog, found: Diagnosis) -> list[tuple[str, dict[str, Any]]]:
    """(title, plotly figure) of the reward and of every panel that has a column."""
    out = []
    if log.has("reward_mean") and len(log.series("reward_mean")[1]):
        out.append((f"Reward ({log.kind('reward_mean') or 'mean'})", _reward(log, found)))
    for title, names in PANELS:
        there = [name for name in names if log.has(name) and len(log.series(name)[1])]
        if there:
            kinds = [f"{name}: {log.kind(name)}" for name in there if log.kind(name)]
            out.append((title + (f" ({', '.join(kinds)})" if kinds else ""), _panel(log, found, there)))
    if found.groups is not None and found.groups["informative_share"]:
        out.append(("Groups that carry a signal, by completions per prompt", _informative(found.groups)))
    return out


def _informative(groups: dict[str, Any]) -> dict[str, Any]:
    """Share of groups of G that are not silent."""
    rows = groups["informative_share"]
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [row["G"] for row in rows],
        "y": _short(np.array([row["share"] for row in rows])),
        "line": {"color": STYLES[0][0], "width": 2},
    }
    axes = {"xaxis": {"title": {"text": "G", "standoff": 6}}, "yaxis": {"rangemode": "tozero", "automargin": True}}
    return {"data": [line], "layout": {"margin": {"l": 56, "r": 12, "t": 8, "b": 40}, "height": 300, **axes}}


def _line(log: RunLog, name: str, number: int) -> dict[str, Any]:
    steps, values, _ = thin(*log.series(name), POINTS)
    colour, dash = STYLES[number % len(STYLES)]
    sparse = len(values) <= 40
    return {
        "type": "scatter",
        "mode": "lines+markers" if sparse else "lines",
        "name": name.replace("_", " "),
        "x": _short(steps),
        "y": _short(values),
        "line": {"color": colour, "dash": dash, "width": 2},
        "marker": {"symbol": number},
    }


def _short(values: np.ndarray) -> list[float]:
    """Seven digits: finer than any screen; in full, a long run's page is a tenth larger."""
    return [float(f"{value:.7g}") for value in values.tolist()]


def _layout(found: Diagnosis, log: RunLog) -> dict[str, Any]:
    """Axes, and the steps of grave findings shaded."""
    shapes = [
        {"type": "rect", "xref": "x", "yref": "paper", "x0": f.steps[0], "x1": f.steps[1], "y0": 0, "y1": 1, "fillcolor": "#E69F00", "opacity": 0.12, "line": {"width": 0}}
        for f in found.findings
        if f.severity != "info" and _partial(f, log)
    ]  # fmt: skip
    return {
        "margin": {"l": 56, "r": 12, "t": 8, "b": 40},
        "xaxis": {"title": {"text": "step", "standoff": 6}, "zeroline": False},
        "yaxis": {"zeroline": False, "automargin": True},
        "legend": {"orientation": "h", "y": -0.26, "yanchor": "top"},  # above, it would cover the curves where it wraps
        "shapes": shapes,
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "height": 300,
    }


def _partial(finding: Finding, log: RunLog) -> bool:
    """Whether it concerns a part of the run only: shading all of it says nothing."""
    return len(log.steps) > 0 and finding.steps[1] - finding.steps[0] < 0.95 * float(np.ptp(log.steps))


def _panel(log: RunLog, found: Diagnosis, names: list[str]) -> dict[str, Any]:
    return {"data": [_line(log, name, k) for k, name in enumerate(names)], "layout": _layout(found, log)}


def _reward(log: RunLog, found: Diagnosis) -> dict[str, Any]:
    data = []
    if found.band is not None and not (found.forecast or {}).get(
        "refused"
    ):  # a band that is no answer would look like one
        t, low, high = (np.asarray(found.band[key], dtype=np.float64) for key in ("t", "low", "high"))
        fine = np.isfinite(t) & np.isfinite(low) & np.isfinite(high)
        edge = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
        data.append({**edge, "x": _short(t[fine]), "y": _short(high[fine]), "showlegend": False})
        data.append(
            {
                **edge,
                "x": _short(t[fine]),
                "y": _short(low[fine]),
                "fill": "tonexty",
                "fillcolor": "rgba(86,180,233,0.25)",
                "name": "forecast, 95 %",
            }
        )
    data.append(_line(log, "reward_mean", 0))
    if log.has("eval_reward"):
        held_out = _line(log, "eval_reward", 1)
        data.append(
            {**held_out, "mode": "lines+markers", "name": "held-out", "marker": {"symbol": "diamond", "size": 7}}
        )
    layout = _layout(found, log)
    layout |= {"height": 420, "legend": layout["legend"] | {"y": -0.16}}
    if found.forecast is not None:
        end = found.forecast["end"]
        layout["shapes"] = [
            *layout["shapes"],
            {"type": "line", "xref": "x", "yref": "paper", "x0": end, "x1": end, "y0": 0, "y1": 1, "line": {"dash": "dot", "color": "#666666"}},
        ]  # fmt: skip
    return {"data": data, "layout": layout}


def _gauge(found: Diagnosis) -> dict[str, Any] | None:
    """How much of the stable range of the learning rate is used, in percent."""
    if found.stability is None:
        return None
    used = 1 / found.stability["margin"]
    return {"percent": min(100.0, 100 * used), "text": f"{used:.1%} of the exact limit, {found.stability['regime']}"}


def samples(log: RunLog) -> list[dict[str, Any]]:
    """Completions from the best to the worst reward, evenly chosen."""
    rollouts = log.rollouts
    if rollouts is None or "completion" not in rollouts.columns:
        return []
    told = rollouts.drop_nulls(["completion", "reward"]).sort("reward", descending=True)
    if not len(told):
        return []
    chosen = told[np.unique(np.linspace(0, len(told) - 1, SAMPLES).astype(int)).tolist()]
    keep = [name for name in ("step", "group", "reward", "prompt", "completion") if name in chosen.columns]
    return [
        {k: (v[:LONGEST] + " …" if isinstance(v, str) and len(v) > LONGEST else v) for k, v in row.items()}
        for row in chosen.select(keep).iter_rows(named=True)
    ]
