"""The study "ustat": GRPO's gradient is a U-statistic (arXiv 2603.01162), in kind."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from delphic.config import RunConfig, load_config, make_config
from delphic.errors import UserError, nearest
from delphic.policy.load import is_somewhere, resolve
from delphic.report.plan import STYLES
from delphic.reproduce.claims import Outcome, Part, interval_of
from delphic.reproduce.study import Study

USTAT = [  # module:part, in the order of the report
    "delphic.reproduce.errors:ERRORS",
    "delphic.reproduce.scaling:SCALING",
    "delphic.reproduce.sweep:RECOMMENDED",
    "delphic.reproduce.sweep:SWEEP",
    "delphic.reproduce.advice:PART",
    "delphic.reproduce.gap:PART",
]

ABOUT = (
    "The first paper's claims about the gradient of group-relative RL, measured on the built-in model (482,016 parameters, "
    "integer arithmetic in five kinds) unless a row says otherwise. Brackets hold 95 % intervals over problems or seeds."
)

STATED = {
    "arXiv 2603.01162 (the paper; figures as it gives them)": [
        {
            "experiment": "500 synthetic integer problems, five kinds in equal shares, exact match, G = 4 to 64",
            "found": "no baseline worst; leave-one-out close to the oracle from G = 8",
        },
        {
            "experiment": "GSM8K, N = 1024",
            "found": "G* = 32 at almost every checkpoint count; differences mostly statistically insignificant",
        },
        {"experiment": "MATH, 7B model", "found": "G* = 64 at N = 1024 and 2048, 128 at N = 4096"},
    ],
    "What others found against it": [
        {"experiment": "arXiv 2603.12151 (IsoCompute)", "found": "the best G grows with compute, then saturates"},
        {
            "experiment": "arXiv 2510.00977 (2-GRPO)",
            "found": "G = 2 reaches 97.6 % of G = 16 with 12.5 % of the rollouts",
        },
    ],
}


def ustat(model: str | None, task: str | None) -> Study:
    """The study on the built-in model, or its errors alone on a user's model and task.

    Raises:
        UserError: there is no such model, task or config.
    """
    title = "GRPO's gradient is a U-statistic: the claims, measured"
    if model is None and task is None:
        return Study("ustat", "the built-in model", title, ABOUT, [_load(name) for name in USTAT], STATED, draw)
    from delphic.reproduce.errors import errors_part

    config, folder = own_config(model, task)
    what = f"{resolve(config.model.path, folder)} on {task or 'arithmetic'}"
    about = f"The errors of five estimators of the gradient, measured on {what}, at temperature {config.sampling.temperature:g}."
    setting = f"{what} ({config.fingerprint()})"
    return Study("ustat", setting, title, about, [errors_part(config, folder)], STATED, draw)


def _load(name: str) -> Part:
    module, attribute = name.split(":")
    return getattr(import_module(module), attribute)


def own_config(model: str | None, task: str | None) -> tuple[RunConfig, Path]:
    """The config of `--model` and `--task`, and the folder that its paths are looked up in."""
    if task is not None and task.endswith(".toml"):
        config, folder = load_config(Path(task)), Path(task).resolve().parent
    elif task in (None, "arithmetic"):
        config, folder = make_config({}, "reproduce"), Path()
    else:
        raise UserError(f'reproduce: --task: there is no task "{task}"{nearest(task, ["arithmetic", "config.toml"])}')
    if model is None:
        return config, folder
    if not is_somewhere(model):
        raise UserError(f'reproduce: --model: there is nothing at "{model}"')
    path = resolve(model, Path())
    return config.model_copy(update={"model": config.model.model_copy(update={"path": path})}), folder


def draw(outcomes: dict[str, Outcome]) -> list[Any]:
    """Errors against G, and what training at each G reached."""
    figures = []
    if "errors" in outcomes:
        title, rows = next((t, r) for t, r in outcomes["errors"].tables.items() if t.startswith("Mean squared error"))
        figures += [_errors(f"{title}: {name}", [r for r in rows if r["model"] == name]) for name in _distinct(rows)]
    if "sweep" in outcomes:
        figures.append(_accuracy(outcomes["sweep"].tables["Accuracy by G"]))
    return figures


def _distinct(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in rows))


def _errors(title: str, rows: list[dict[str, Any]]) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    styles = {**STYLES, "critic": ("#CC79A7", "longdashdot", "learned critic")}
    for estimator in (key for key in rows[0] if key in styles):
        colour, dash, label = styles[estimator]
        shown = [interval_of(row[estimator]) for row in rows]
        figure.add_scatter(
            x=[row["G"] for row in rows],
            y=[i.value for i in shown],
            error_y={
                "array": [i.high - i.value for i in shown],
                "arrayminus": [i.value - i.low for i in shown],
                "symmetric": False,
            },
            name=label,
            line={"color": colour, "dash": dash, "width": 2.5},
        )
    figure.update_xaxes(type="log", title="completions per prompt, G", tickvals=[row["G"] for row in rows])
    figure.update_yaxes(type="log", title="mean squared error of the gradient")
    figure.update_layout(template="simple_white", title=title)
    return figure


def _accuracy(rows: list[dict[str, Any]]) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    looks = zip(("#0072B2", "#D55E00", "#009E73", "#E69F00"), ("solid", "dash", "dot", "dashdot"), strict=True)
    settings = dict.fromkeys((row["N"], row["steps"]) for row in rows)
    for (budget, steps), (colour, dash) in zip(settings, looks, strict=False):
        here = [row for row in rows if (row["N"], row["steps"]) == (budget, steps)]
        figure.add_scatter(
            x=[row["G"] for row in here],
            y=[row["held-out accuracy"] for row in here],
            error_y={"array": [row["± 95 %"] for row in here]},
            name=f"N = {budget}, {steps} steps",
            line={"color": colour, "dash": dash, "width": 2.5},
        )
    figure.update_xaxes(type="log", title="completions per prompt, G", tickvals=sorted({row["G"] for row in rows}))
    figure.update_yaxes(title="held-out accuracy after training")
    figure.update_layout(template="simple_white", title="Which G learns best at a fixed number of completions")
    return figure
