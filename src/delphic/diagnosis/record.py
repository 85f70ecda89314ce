"""The log itself: numbers that are not finite, a resume that did not continue, rewards that cancel."""

from __future__ import annotations

import itertools

import numpy as np

from delphic.diagnosis.finding import Finding, Skipped
from delphic.diagnosis.sequential import mean, threshold, z_of
from delphic.runs.columns import COMPONENT
from delphic.runs.log import RunLog

FEWEST = 12
CANCEL = -0.8


def non_finite(log: RunLog) -> Finding | Skipped | None:
    """NaN or infinity in figures of the update are errors; in the rest a note."""
    if not log.non_finite:
        return None
    grave = [
        name for name in log.non_finite if name in ("loss", "gradient_norm", "reward_mean", "ratio_max", "update_norm")
    ]
    steps = sorted(step for where in log.non_finite.values() for step in where)
    listed = ", ".join(
        f"{name} at {len(where)} step{'s' if len(where) > 1 else ''}"
        for name, where in itertools.islice(log.non_finite.items(), 6)
    )
    return Finding(
        "non_finite",
        "error" if grave else "info",
        f"not finite: {listed}",
        (steps[0], steps[-1]),
        "go back to the last checkpoint before the first of them; look at that step's longest completion and largest ratio"
        if grave
        else "a figure without a value in some steps; nothing to change",
        "verl #721",
        "non_finite" if grave else None,
        {"steps": float(len(steps))},
    )


def resumed(log: RunLog) -> Finding | Skipped | None:
    """The reward's level before and after a resume."""
    steps, reward = log.series("reward_mean")
    for at in log.resumed:
        before, after = reward[steps < at][-FEWEST:], reward[steps >= at][:FEWEST]
        if min(len(before), len(after)) < 5:
            continue
        one, two = mean(before), mean(after)
        z = z_of(two.value - one.value, one.error, two.error)
        if z > -threshold(len(reward)):
            continue
        return Finding(
            "resume_lost",
            "error",
            f"after the resume at step {at} the reward is {two.value:.3g}, before it was {one.value:.3g}: the run did not continue "
            "where it stopped",
            (at, int(steps[-1])),
            "check that weights, optimiser and data position all come from the checkpoint",
            "TRL #3148, NeMo-RL #3599",
            "resume_lost",
            {"before": one.value, "after": two.value},
        )
    return None


def cancelling(log: RunLog) -> Finding | Skipped | None:
    """Two reward functions that move against each other, so that their sum stands still."""
    names = [name for name in log.table.columns if name.startswith(COMPONENT)]
    if len(names) < 2:
        return Skipped("cancelling_rewards", "two reward functions (reward/<name>)")
    table = log.table.select("step", *names, "reward_mean").drop_nulls()
    if len(table) < FEWEST:
        return None
    steps = table["step"].to_numpy()
    for one, two in itertools.combinations(names, 2):
        x, y = table[one].to_numpy(), table[two].to_numpy()
        if np.std(x) == 0 or np.std(y) == 0 or np.std(x + y) > 0.5 * max(np.std(x), np.std(y)):
            continue
        r = float(np.corrcoef(x, y)[0, 1])
        z = np.arctanh(np.clip(r, -0.999999, 0.999999)) * np.sqrt(max(len(x) - 3, 1))
        if r > CANCEL or z > -threshold(len(x)):
            continue
        return Finding(
            "cancelling_rewards",
            "warning",
            f"{one} and {two} move against each other (correlation {r:.2f}): each varies by {np.std(x):.3g} and {np.std(y):.3g}, their sum "
            f"by {np.std(x + y):.3g}",
            (int(steps[0]), int(steps[-1])),
            'weigh them differently (task.reward_weights), or normalise each (reward_normalization = "per_reward")',
            "TRL #3857",
            "cancelling_rewards",
            {"correlation": r},
        )
    return None


CHECKS = (non_finite, resumed, cancelling)
