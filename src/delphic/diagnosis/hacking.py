"""Reward hacking: the reward that is trained goes on rising while the reward that is meant has stopped, or falls."""

from __future__ import annotations

import numpy as np

from delphic.diagnosis.finding import Finding, Skipped
from delphic.diagnosis.sequential import interval, mean, slope, threshold, z_of
from delphic.runs.log import RunLog

FEWEST_EVALS = 6
PAPER = "arXiv 2606.30789, reward hacking (train–eval decoupling)"


def decoupling(log: RunLog) -> Finding | Skipped | None:
    """Over the part of the run since the held-out reward was at its best half-way, or its second half: train up, eval down (error),
    or train up by far more than eval (warning)."""
    if not log.has("eval_reward"):
        return Skipped("reward_hacking", "eval_reward (a held-out or true reward, logged now and then)")
    eval_steps, held_out = log.series("eval_reward")
    steps, reward = log.series("reward_mean")
    if len(held_out) < FEWEST_EVALS:
        return Skipped("reward_hacking", f"{FEWEST_EVALS} evaluations; there are {len(held_out)}")
    z = threshold(len(held_out))
    for share in (0.5, 0.33, 0.0):
        since = eval_steps[0] + share * (eval_steps[-1] - eval_steps[0])
        late_eval, late = eval_steps >= since, (steps >= since) & (steps <= eval_steps[-1])
        if late_eval.sum() < FEWEST_EVALS or late.sum() < 8:
            continue
        t = eval_steps[late_eval].astype(np.float64)
        falling = slope(t, held_out[late_eval])
        rising = slope(steps[late].astype(np.float64), reward[late])
        if z_of(rising.value, rising.error) > z and z_of(falling.value, falling.error) < -z:
            return _finding(int(since), int(eval_steps[-1]), "error", rising.value, falling.value, "fell")
    return _gap(log, z)


def _finding(first: int, last: int, severity: str, rising: float, falling: float, word: str) -> Finding:
    span = last - first
    return Finding(
        "reward_hacking",
        "error" if severity == "error" else "warning",
        f"since step {first} the training reward rose by {rising * span:.3g} while the held-out reward {word} by "
        f"{abs(falling) * span:.3g}",
        (first, last),
        "read the best-rewarded completions; the verifier pays for something that it should not. Go back to the checkpoint with the best "
        "held-out reward",
        PAPER,
        "reward_hacking",
        {"train": rising * span, "eval": falling * span},
    )


def _gap(log: RunLog, z: float) -> Finding | None:
    """The gap between train and held-out, late against early, beyond both noises; the held-out reward stands still."""
    eval_steps, held_out = log.series("eval_reward")
    steps, reward = log.series("reward_mean")
    nearest = np.searchsorted(steps, eval_steps).clip(0, len(steps) - 1)
    width = max(1, int(np.median(np.diff(nearest))) // 2) if len(nearest) > 1 else 1
    around = np.array([reward[max(0, i - width) : i + width + 1].mean() for i in nearest])
    gap = around - held_out
    third = len(gap) // 3
    if third < 3:
        return None
    early, late = mean(gap[:third]), mean(gap[-third:])
    still = slope(eval_steps[-2 * third :].astype(np.float64), held_out[-2 * third :])
    grown = late.value - early.value
    scale = max(float(np.ptp(held_out)), float(np.ptp(reward)), 1e-12)
    if z_of(grown, early.error, late.error) < z or grown < 0.25 * scale or z_of(still.value, still.error) > 2:
        return None
    first, last = int(eval_steps[-2 * third]), int(eval_steps[-1])
    return Finding(
        "reward_hacking",
        "warning",
        f"the training reward is above the held-out one by {interval(late)}, {grown:.3g} more than early on, and the held-out reward "
        "no longer rises",
        (first, last),
        "read the best-rewarded completions, and compare them with held-out ones; stop here if the verifier is right (it is memory then)",
        PAPER,
        "reward_hacking",
        {"gap": grown},
    )


CHECKS = (decoupling,)
