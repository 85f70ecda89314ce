"""The study "dynamics": training as a damped oscillator (arXiv 2606.30789), in kind."""

from __future__ import annotations

from typing import Any

from delphic.reproduce.claims import Outcome
from delphic.reproduce.forecasts import PART as FORECASTS
from delphic.reproduce.limits import PART as LIMITS
from delphic.reproduce.neural import PART as NEURAL
from delphic.reproduce.neural import WAY
from delphic.reproduce.planted import PART as PLANTED
from delphic.reproduce.plateaus import PART as GROUP_SIZE
from delphic.reproduce.study import Study

ABOUT = (
    "The third paper's claims about the course of training, measured in a softmax bandit where K, the fixed point and the "
    "expected update are exact, on the built-in language model, and on curves whose end is known."
)

STATED = {
    "arXiv 2606.30789 (the paper)": [
        {"claim": "stability", "stated": "unstable from ηK·K_ref = 1 − μ, oscillating from .414 of it"},
        {
            "claim": "noise",
            "stated": "stationary variance ∝ 1/G, plateau independent of G; its second version concedes a residue",
        },
        {"claim": "laws", "stated": "a three-phase law fits reward curves better than a single exponential"},
    ]
}


def dynamics() -> Study:
    title = "Training is a damped oscillator: the claims, measured"
    return Study(
        "dynamics", "softmax bandits", title, ABOUT, [LIMITS, NEURAL, GROUP_SIZE, PLANTED, FORECASTS], STATED, draw
    )


def draw(outcomes: dict[str, Outcome]) -> list[Any]:
    figures = []
    if "limits" in outcomes:
        figures.append(thresholds(outcomes["limits"].tables["ηK at the threshold"]))
    if "neural" in outcomes:
        figures.append(ways(outcomes["neural"].tables[WAY]))
    return figures


def ways(rows: list[dict[str, Any]]) -> Any:
    """The language model's way along its stiffest direction, a line a learning rate."""
    import plotly.graph_objects as go

    figure = go.Figure()
    styles = [
        ("#999999", "dot"),
        ("#56B4E9", "dash"),
        ("#0072B2", "solid"),
        ("#D55E00", "solid"),
        ("#000000", "dashdot"),
    ]
    for number, multiple in enumerate(dict.fromkeys(row["η in limits"] for row in rows)):
        here = [row for row in rows if row["η in limits"] == multiple]
        colour, dash = styles[number % len(styles)]
        figure.add_scatter(
            x=[row["sync"] for row in here],
            y=[row["position"] for row in here],
            mode="lines+markers",
            line={"color": colour, "dash": dash},
            name=f"η = {multiple:.2g} of the limit",
        )
    figure.update_xaxes(title="sync")
    figure.update_yaxes(title="position along the stiffest direction")
    figure.update_layout(template="simple_white", title="A language model that settles, swings and diverges")
    return figure


def thresholds(rows: list[dict[str, Any]]) -> Any:
    """Thresholds against the lag: closed form, exact, and found by running."""
    import plotly.graph_objects as go

    figure = go.Figure()
    styles = {"closed form": ("#999999", "dot"), "exact": ("#0072B2", "solid"), "found by running": ("#D55E00", None)}
    for kind in ("constant", "hold"):
        for mu in dict.fromkeys(row["μ"] for row in rows):
            here = [row for row in rows if (row["kind"], row["μ"]) == (kind, mu)]
            for name, (colour, dash) in styles.items():
                line = {"color": colour, "dash": dash} if dash else {"color": colour}
                figure.add_scatter(
                    x=[row["K_ref"] for row in here],
                    y=[row[name] for row in here],
                    mode="lines" if dash else "markers",
                    line=line,
                    name=f"{kind}, μ = {mu:g}: {name}",
                )
    figure.update_xaxes(type="log", title="largest lag, steps")
    figure.update_yaxes(type="log", title="ηK at the threshold")
    figure.update_layout(template="simple_white", title="Where a lagged policy becomes unstable")
    return figure
