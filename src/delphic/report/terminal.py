"""The live display of a run, plain lines where there is no terminal, and the summary at its end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from delphic.training.metrics import REGIMES

if TYPE_CHECKING:  # not needed to report on other runs
    from delphic.config import RunConfig

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 48) -> str:
    """The curve in one line; each character is the mean of its share of the values, scaled to their range."""
    if not values:
        return ""
    n = min(width, len(values))
    parts = [values[i * len(values) // n : (i + 1) * len(values) // n] for i in range(n)]
    means = [sum(part) / len(part) for part in parts]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(BLOCKS[min(int((m - low) / span * len(BLOCKS)), len(BLOCKS) - 1)] for m in means)


class TerminalDisplay:
    """Follows a run on stderr, so that stdout stays free for --json."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.rewards: list[float] = []
        self.evaluation = "–"
        self.outlook = ""
        self.live: Live | None = None

    def start(self, config: RunConfig, done: int) -> None:
        self.total, self.first = config.train.steps, done
        self.began = time.monotonic()
        s = config.sampling
        text = (
            f"{config.objective.name} on {config.task.name}: {self.total} steps of {s.prompts} prompts × "
            f"{s.completions} completions → {config.output}"
        )
        self.console.print(text, highlight=False, soft_wrap=True)
        if done:
            self.console.print(f"resumed after step {done}", highlight=False)
        if self.console.is_terminal:
            self.progress = Progress(
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(bar_width=32),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            self.bar = self.progress.add_task("train", total=self.total, completed=done)
            self.live = Live(self._panel({}, {}), console=self.console, refresh_per_second=4)
            self.live.start()

    def step(self, row: dict[str, float], timing: dict[str, float]) -> None:
        if "reward_mean" in row:
            self.rewards.append(row["reward_mean"])
        if "eval_accuracy" in row:
            half = row["eval_accuracy_high"] - row["eval_accuracy"]
            self.evaluation = f"{row['eval_accuracy']:.3f} ± {half:.3f}"
        if "forecast_refused" in row:
            pace = (time.monotonic() - self.began) / max(row["step"] - self.first, 1)
            self.outlook = "\n".join(outlook_lines(row, pace))
        if self.live is not None:
            self.progress.update(self.bar, completed=row["step"])
            self.live.update(self._panel(row, timing))
        elif row["step"] == 0:
            self.console.print(f"before training: held-out accuracy {self.evaluation}", highlight=False)
        elif row["step"] == self.total or row["step"] % max(1, self.total // 20) == 0 or "eval_accuracy" in row:
            self.console.print(self._line(row, timing), highlight=False, soft_wrap=True)
        if self.live is None and "forecast_refused" in row:
            for line in self.outlook.splitlines():
                self.console.print(f"  {line}", highlight=False, soft_wrap=True)

    def _line(self, row: dict[str, float], timing: dict[str, float]) -> str:
        parts = [f"step {row['step']}/{self.total}"]
        parts += [f"{label} {row[key]:.3f}" for label, key in SHOWN if key in row]
        if "tokens_per_second" in timing:
            parts.append(f"{timing['tokens_per_second']:.0f} tokens/s")
        if "eval_accuracy" in row:
            parts.append(f"held-out {self.evaluation}")
        return "  ".join(parts)

    def _panel(self, row: dict[str, float], timing: dict[str, float]) -> Group:
        table = Table.grid(padding=(0, 2))
        cells = [(label, f"{row[key]:.3f}") for label, key in SHOWN if key in row]
        cells.append(("held-out accuracy", self.evaluation))
        if "tokens_per_second" in timing:
            cells.append(("tokens/s", f"{timing['tokens_per_second']:.0f}"))
            split = [(k, timing.get(f"seconds_{k}", 0.0)) for k in ("sample", "score", "learn", "sync")]
            total = sum(seconds for _, seconds in split) or 1.0
            cells.append(("time", "  ".join(f"{k} {100 * v / total:.0f}%" for k, v in split)))
        for label, value in cells:
            table.add_row(Text(label, style="dim"), value)
        return Group(self.progress, Text(f"reward {sparkline(self.rewards)}"), table, Text(self.outlook))

    def message(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None


def outlook_lines(row: Mapping[str, float], pace: float) -> list[str]:
    """The forecast and the stability of a metrics row that holds them, in words; `pace` is the seconds of a step."""

    def interval(*names: str, digits: str = ".3f") -> str:
        value, low, high = (f"{row[name]:{digits}}" for name in names)
        return f"{value} ({low} – {high})"

    if row["forecast_refused"]:
        lines = ["no forecast: the curve so far does not say where it is heading"]
    else:
        text = f"forecast: last tenth {interval('forecast_final', 'forecast_low', 'forecast_high')}"
        known = "forecast_plateau" in row
        names = [f"forecast_plateau{part}" for part in ("", "_low", "_high")]
        lines = [f"{text}, plateau {interval(*names) if known else 'not determined'}"]
        if "forecast_step_95" in row:
            names = [f"forecast_step_95{part}" for part in ("", "_low", "_high")]
            left = (row["forecast_step_95"] - row["step"]) * pace
            when = f"in {_duration(left)}" if left > 0 else "behind"
            lines.append(f"95 % of the way at step {interval(*names, digits='.0f')}, {when}")
    if "stability_regime" in row:
        certified = "certified" if row["stability_certified"] else "not certified"
        margin = row.get("stability_margin")
        size = (
            "not known"
            if margin is None
            else f"{margin:.3g}, {certified}"
            if margin < 100
            else f"over 100, {certified}"
        )
        lines.append(f"{REGIMES[int(row['stability_regime'])]}; margin {size}")
    return lines


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


SHOWN = (
    ("reward", "reward_mean"),
    ("entropy", "entropy"),
    ("silent", "silent_share"),
    ("lag", "lag"),
    ("grad", "gradient_norm"),
    ("truncated", "truncated_share"),
)


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Before, after and best held-out accuracy, and the reward's course, from metrics rows."""
    steps = [row for row in rows if "reward_mean" in row]
    evaluations = [row for row in rows if "eval_accuracy" in row]

    def point(row: dict[str, Any]) -> dict[str, float]:
        return {
            "step": row["step"],
            "accuracy": row["eval_accuracy"],
            "low": row["eval_accuracy_low"],
            "high": row["eval_accuracy_high"],
        }

    out: dict[str, Any] = {"steps": steps[-1]["step"] if steps else 0}
    if steps:
        tenth = max(1, len(steps) // 10)
        out["reward_first_tenth"] = sum(row["reward_mean"] for row in steps[:tenth]) / tenth
        out["reward_last_tenth"] = sum(row["reward_mean"] for row in steps[-tenth:]) / tenth
    if steps and "steps_saved" in steps[-1]:
        last = steps[-1]
        out["ended_at_plateau"] = {"steps_saved": last["steps_saved"], "gain_at_most": last["forecast_gain_high"]}
    if evaluations:
        out["before"], out["after"] = point(evaluations[0]), point(evaluations[-1])
        out["best"] = point(max(evaluations, key=lambda row: row["eval_accuracy"]))
    return out


def print_summary(rows: Sequence[dict[str, Any]], output: str) -> None:
    console = Console(stderr=True)
    summary = summarise(rows)
    rewards = [row["reward_mean"] for row in rows if "reward_mean" in row]
    if rewards:
        console.print(f"reward  {rewards[0]:.3f} {sparkline(rewards)} {rewards[-1]:.3f}", highlight=False)
    if "ended_at_plateau" in summary:
        found = summary["ended_at_plateau"]
        console.print(
            f"ended at its plateau: {found['steps_saved']:.0f} steps saved, expected to gain {found['gain_at_most']:+.3g} at most",
            highlight=False,
        )
    if "before" in summary:
        table = Table(box=None, padding=(0, 2))
        for heading in ("held-out accuracy", "step", "mean", "95 % interval"):
            table.add_column(heading)
        for name in ("before", "after", "best"):
            p = summary[name]
            if name != "before" and p["step"] == summary["before"]["step"]:
                continue
            table.add_row(name, str(p["step"]), f"{p['accuracy']:.3f}", f"{p['low']:.3f} – {p['high']:.3f}")
        console.print(table)
    console.print(f"metrics: {output}/metrics.jsonl · weights: {output}/checkpoints", highlight=False, soft_wrap=True)
