"""Completions that are cut off, or grow without earning more."""

from __future__ import annotations

import numpy as np

from delphic.diagnosis.finding import Finding, Skipped
from delphic.diagnosis.sequential import mean, threshold, z_of
from delphic.runs.log import RunLog

FEWEST = 8
ALL = 0.95


def all_truncated(log: RunLog) -> Finding | Skipped | None:
    name = "truncated_share"
    if not log.has(name):
        return Skipped("all_truncated", name)
    steps, values = log.series(name)
    if len(values) < FEWEST:
        return None
    k = max(len(values) // 5, FEWEST)
    late = mean(values[-k:])
    if late.value - threshold(len(values)) * late.error < ALL:
        return None
    since = int(np.flatnonzero(np.append(True, values[:-k] < ALL / 2))[-1])  # after the last step that was not
    return Finding(
        "all_truncated",
        "error",
        f"{late.value:.1%} of the completions are cut off at the length limit over the last {k} steps, so their reward says nothing",
        (int(steps[since]), int(steps[-1])),
        "raise sampling.max_new_tokens, ask for shorter answers in the prompt, or punish length (overlong_buffer); check the stop token",
        "autocontext #1067",
        "all_truncated",
        {"truncated_share": late.value},
    )


def runaway(log: RunLog) -> Finding | Skipped | None:
    """Length doubled while the reward did not rise over the same steps."""
    if not log.has("length_mean"):
        return Skipped("length_runaway", "length_mean")
    steps, length = log.series("length_mean")
    reward_steps, reward = log.series("reward_mean")
    if len(length) < 4 * FEWEST or len(reward) < 4 * FEWEST:
        return None
    half = len(length) // 2
    k = max(len(length) // 10, 5)
    before, now = mean(length[half - k : half]), mean(length[-k:])
    earned, earns = (
        mean(reward[reward_steps <= steps[half]][-k:]),
        mean(reward[-k:]),
    )
    z = threshold(len(length))
    if now.value < 1.5 * before.value or z_of(now.value - before.value, before.error, now.error) < z:
        return None
    if z_of(earns.value - earned.value, earns.error, earned.error) > 1.96:
        return None
    return Finding(
        "length_runaway",
        "warning",
        f"completions grew from {before.value:.4g} to {now.value:.4g} tokens over the last half; the reward went from "
        f"{earned.value:.3g} to {earns.value:.3g}",
        (int(steps[half]), int(steps[-1])),
        'aggregation = "token_mean" or "constant" instead of a mean per completion, and an overlong punishment (overlong_buffer)',
        "Dr. GRPO, arXiv 2503.20783",
        "length_runaway",
        {"factor": now.value / before.value},
    )


CHECKS = (all_truncated, runaway)
