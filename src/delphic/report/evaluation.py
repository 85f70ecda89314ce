"""An evaluation in the terminal: how far it is, on stderr, and its tables, on stdout."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from delphic.evaluation.measure import Measured
from delphic.evaluation.specs import Exam


class EvaluationProgress:
    """A bar over the problems of a task; one line a task where there is no terminal."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.bar: Progress | None = None

    def start(self, model: str, exam: Exam, samples: int) -> None:
        self.text = f"{model} on {exam.label}: {len(exam.problems)} problems × {samples}"
        if self.console.is_terminal:
            columns = MofNCompleteColumn(), BarColumn(bar_width=32), TimeElapsedColumn(), TimeRemainingColumn()
            self.bar = Progress(TextColumn("{task.description}"), *columns, console=self.console, transient=True)
            self.bar.add_task(self.text, total=len(exam.problems))
            self.bar.start()

    def advance(self, problems: int) -> None:
        if self.bar is not None:
            self.bar.advance(self.bar.task_ids[0], problems)

    def finish(self, result: Measured) -> None:
        self.close()
        line = f"{self.text}, {result.seconds:.1f} s, {result.tokens_per_second:.0f} tokens/s"
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def print_evaluation(result: dict[str, Any]) -> None:
    """The tables of a result, and in words what they alone would not say."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 200  # into a file: no column is cut
    _print_tasks(console, result["model"], result["tasks"])
    before, comparison, transfer = result["before"], result["comparison"], result["transfer"]
    if before is not None and "tasks" in before:
        _print_tasks(console, f"before: {before['model']}", before["tasks"])
    if comparison is not None:
        rows = [[task, *_gain(row["gain"])] for task, row in comparison.items()]
        title = f"{result['model']} over {before.get('file', before['model'])}"
        _print(console, title, ["task", "gain", "95 % interval", "excludes 0"], rows)
    if transfer is not None:
        rows = [[transfer["trained_on"], "0", *_gain(transfer["gain"])]] if transfer["gain"] else []
        rows += [[row["task"], f"{row['distance']:.3f}", *_gain(row["gain"])] for row in transfer["tasks"]]
        title = f"transfer: trained on {transfer['trained_on']}"
        _print(console, title, ["task", "distance", "gain", "95 % interval", "excludes 0"], rows)
        if transfer["spearman"]:
            s = transfer["spearman"]
            kind = "exact" if s["exact"] else "random permutations"
            console.print(
                f"gain against distance over {s['tasks']} other tasks: Spearman ρ = {s['rho']:.2f}, p = {s['p']:.3g} ({kind})"
            )
    for text in notes(result):
        console.print(f"· {text}", soft_wrap=True)


def notes(result: dict[str, Any]) -> list[str]:
    """Sentences on completions left out, rewards between 0 and 1, and settings that differ between before and after."""
    out = []
    for task, row in result["tasks"].items():
        if row["left_out"]:
            out.append(f"{task}: {row['left_out']} completions without a reward were left out")
        if abs(row["reward"]["mean"] - row["accuracy"]["mean"]) > 1e-9:
            out.append(f"{task}: mean reward {_interval(row['reward'])}; accuracy counts rewards of 1 or more")
    for task, row in (result["comparison"] or {}).items():
        for key, (then, now) in row["settings_changed"].items():
            out.append(f"{task}: {key} was {then!r} before and is {now!r} now; the gain holds that, too")
    return out


def _print_tasks(console: Console, title: str, tasks: dict[str, Any]) -> None:
    ks = [k for k in next(iter(tasks.values()))["pass_at"] if k != "1"]  # pass@1 is the accuracy
    headings = ["task", "problems", "accuracy (95 %)", *(f"pass@{k}" for k in ks), "majority", "truncated", "length"]
    rows = []
    for task, row in tasks.items():
        rows.append(
            [
                task,
                f"{row['problems']} × {row['samples']}",
                _interval(row["accuracy"]),
                *(_number(row["pass_at"][k]["mean"]) for k in ks),
                _number(row["majority"]["mean"]),
                f"{row['truncated_share']:.2f}",
                f"{row['mean_length']:.1f}",
            ]
        )
    _print(console, title, headings, rows)


def _print(console: Console, title: str, headings: list[str], rows: list[list[str]]) -> None:
    console.print(title, style="bold", soft_wrap=True)
    grid = Table(box=None, padding=(0, 1))
    for place, heading in enumerate(headings):
        grid.add_column(heading, justify="right" if place else "left", no_wrap=True, header_style="dim")
    for row in rows:
        grid.add_row(*row)
    console.print(grid)


def _gain(gain: dict[str, Any]) -> list[str]:
    if gain["mean"] is None:
        return ["–", "–", "–"]
    return [
        f"{gain['mean']:+.3f}",
        f"{gain['low']:+.3f} to {gain['high']:+.3f}",
        "yes" if gain["excludes_zero"] else "no",
    ]


def _interval(value: dict[str, Any]) -> str:
    return f"{_number(value['mean'])} ({_number(value['low'])}–{_number(value['high'])})"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
