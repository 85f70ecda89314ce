"""Reward hacking: the reward that is trained goes on rising while the reward that is meant has stopped, or falls."""

from __future__ import annotations

import numpy as np

from delphic.diagnosis.finding import Finding, Skipped
from delphic.diagnosis.sequential import Mean, best_block, few, interval, mean, slope, threshold, z_of
from delphic.runs.log import RunLog

FEWEST_EVALS, BLOCKS = 6, 5
SHARE_OF_ALARMS = 2e-3  # evaluations are few, so a run has few looks at them
KEPT = 0.5  # of the best training reward: where that is lost, too, the run collapsed and nothing was hacked
MATTERS = 0.03  # of the range of rewards: a smaller fall is not worth a word
PAPER = "arXiv 2606.30789, reward hacking (train–eval decoupling)"


def decoupling(log: RunLog) -> Finding | Skipped | None:
    """The best of the held-out blocks against the last: it fell while the training reward did not (error). Or the gap between the two
    has grown while the held-out reward stands still (warning)."""
    if not log.has("eval_reward"):
        return Skipped("reward_hacking", "eval_reward (a held-out or true reward, logged now and then)")
    eval_steps, held_out = log.series("eval_reward")
    steps, reward = log.series("reward_mean")
    if len(held_out) < FEWEST_EVALS:
        return Skipped("reward_hacking", f"{FEWEST_EVALS} evaluations; there are {len(held_out)}")
    if not len(reward) or np.ptp(reward) == 0:
        return None  # nothing is learned from a reward that is always the same
    z = threshold(len(held_out), SHARE_OF_ALARMS)
    number = min(BLOCKS, len(held_out) // 2)
    parts = np.array_split(np.arange(len(held_out)), number)
    evals = [mean(held_out[part]) for part in parts]
    noise, free = pooled(held_out, parts)
    best = int(np.argmax([block.value for block in evals[:-1]]))
    fell = evals[best].value - evals[-1].value
    error = noise * np.sqrt(1 / len(parts[best]) + 1 / len(parts[-1]))
    spans = [(eval_steps[part[0]], eval_steps[part[-1]]) for part in (parts[best], parts[-1])]
    then, now = (reward[(steps >= low) & (steps <= high)] for low, high in spans)
    since = held_out[parts[best][0] :]
    falling = slope(np.arange(len(since), dtype=np.float64), since)
    steadily = len(since) >= 8 and z_of(falling.value, falling.error) < -few(z, len(since) - 2)
    whole = 1.0 if min(reward.min(), held_out.min()) >= 0 and reward.max() <= 1 else float(np.ptp(reward))
    if min(len(then), len(now)) >= 2 and fell > MATTERS * whole and (z_of(fell, error) > few(z, free) or steadily):
        before, after = mean(then), mean(now)
        rose = after.value - before.value
        earned = after.value > KEPT * best_block(reward) or reward.min() < 0
        if earned and z_of(rose, before.error, after.error) > -1 and rose > -0.25 * fell:
            return _finding(int(spans[0][0]), int(spans[1][1]), "error", rose, -fell, "fell")
    return _gap(log, z)


def pooled(values: np.ndarray, parts: list[np.ndarray]) -> tuple[float, int]:
    """(standard deviation of an evaluation around the line through its block, all blocks together; degrees of freedom)."""
    squares, free = 0.0, 0
    for part in parts:
        t = np.arange(len(part)) - (len(part) - 1) / 2
        y = values[part] - values[part].mean()
        if len(part) > 2:
            y = y - t * float(t @ y / (t @ t))
        squares, free = squares + float(y @ y), free + len(part) - (2 if len(part) > 2 else 1)
    return float(np.sqrt(squares / max(free, 1))), free


def _finding(first: int, last: int, severity: str, rose: float, fell: float, word: str) -> Finding:
    return Finding(
        "reward_hacking",
        "error" if severity == "error" else "warning",
        f"since step {first} the training reward changed by {rose:+.3g} while the held-out reward {word} by "
        f"{abs(fell):.3g}",
        (first, last),
        "read the best-rewarded completions; the verifier pays for something that it should not. Go back to the checkpoint with the best "
        "held-out reward",
        PAPER,
        "reward_hacking",
        {"train": rose, "eval": fell},
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
    if third < 4:
        return None
    noise, free = pooled(gap, np.array_split(np.arange(len(gap)), 3))
    early, late = (Mean(float(part.mean()), noise / np.sqrt(third), third) for part in (gap[:third], gap[-third:]))
    still = slope(eval_steps[-2 * third :].astype(np.float64), held_out[-2 * third :])
    grown = late.value - early.value
    scale = max(float(np.ptp(held_out)), float(np.ptp(reward)), 4 * MATTERS)
    if (
        z_of(grown, early.error, late.error) < few(z, free)
        or grown < 0.25 * scale
        or z_of(still.value, still.error) > 2
    ):
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
