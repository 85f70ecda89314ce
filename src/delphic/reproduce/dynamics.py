"""The study "dynamics": training as a damped oscillator (arXiv 2606.30789), in kind."""

from __future__ import annotations

from typing import Any

from delphic.reproduce.claims import Outcome
from delphic.reproduce.forecasts import PART as FORECASTS
from delphic.reproduce.limits import PART as LIMITS
from delphic.reproduce.planted import PART as PLANTED
from delphic.reproduce.plateaus import PART as GROUP_SIZE
from delphic.reproduce.study import Study

ABOUT = (
    "The third paper's claims about the course of training, measured in a softmax bandit where K, the fixed point and the "
    "expected update are exact, and on curves whose end is known."
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
    return Study("dynamics", "softmax bandits", title, ABOUT, [LIMITS, GROUP_SIZE, PLANTED, FORECASTS], STATED, draw)


def draw(outcomes: dict[str, Outcome]) -> list[Any]:
    """Thresholds against the lag: closed form, exact, and found by running."""
    import plotly.graph_objects as go

    if "limits" not in outcomes:
        return []
    rows = outcomes["limits"].tables["ηK at the threshold"]
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
    return [figure]
