"""Draw a run: reward, held-out accuracy, and what the step felt. plot_run.py RUN_FOLDER PICTURE.(svg|png)"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Okabe–Ito colours: told apart by colour-blind people
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#999999"


def smooth(values: list[float], span: int) -> list[float]:
    """Centred moving average that shortens at the ends."""
    half = span // 2
    windows = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def draw(run: Path, picture: Path) -> None:
    rows: list[dict[str, Any]] = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "reward_mean" in row]
    evaluations = [row for row in rows if "eval_accuracy" in row]
    x = [row["step"] for row in steps]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), constrained_layout=True)

    reward = [row["reward_mean"] for row in steps]
    left.plot(x, reward, color=GREY, linewidth=0.8, label="reward of each step")
    left.plot(x, smooth(reward, max(3, len(x) // 15)), color=BLUE, linewidth=2, label="the same, smoothed")
    centre = [row["eval_accuracy"] for row in evaluations]
    error = [
        [row["eval_accuracy"] - row["eval_accuracy_low"] for row in evaluations],
        [row["eval_accuracy_high"] - row["eval_accuracy"] for row in evaluations],
    ]
    left.errorbar(
        [row["step"] for row in evaluations],
        centre,
        yerr=error,
        fmt="o",
        color=ORANGE,
        capsize=3,
        label="held-out accuracy, 95 % interval",
    )
    left.set(xlabel="step", ylabel="reward", title="Reward")
    left.legend(frameon=False, fontsize=8, loc="best")

    for name, label, colour, style in (
        ("silent_share", "silent groups", ORANGE, "-"),
        ("silent_share_expected", "silent groups that difficulty explains", ORANGE, ":"),
        ("entropy", "entropy, nats/token", GREEN, "-"),
    ):
        points = [(row["step"], row[name]) for row in steps if name in row]
        if points:
            ys = smooth([y for _, y in points], max(3, len(points) // 15))
            right.plot([p for p, _ in points], ys, style, color=colour, label=label)
    right.set(xlabel="step", title="Signal and spread")
    right.set_ylim(bottom=0)
    right.legend(frameon=False, fontsize=8, loc="best")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=150)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
