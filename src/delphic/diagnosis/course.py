"""The reward's course: lost again, at its plateau, still rising, or too short and too noisy to tell."""

from __future__ import annotations

from typing import Any

import numpy as np

from delphic.diagnosis.finding import Finding, Skipped
from delphic.diagnosis.instability import noise, quantum_noise, scaled
from delphic.diagnosis.sequential import Mean, best_block, interval, mean, slope, thin, threshold, z_of
from delphic.runs.log import RunLog

FEWEST = 20
LOST = 0.5  # of the level that was reached
FELL = 0.1  # of the level at the start: a smaller fall is not worth a warning
BLOCKS, START = 8, 3
HARDLY = (
    2  # smallest steps of the reward, such as one completion of the batch: what was never farther away was not lost
)
STILL = 0.005  # of the whole range of the rewards: no more than this is no change


def collapse(log: RunLog) -> Finding | Skipped | None:
    """The best of eight blocks, or the first three steps, against the lowest block after it: half of it is gone."""
    steps, reward = log.series("reward_mean")
    if len(reward) < 3 * BLOCKS:
        return Skipped("collapse", f"{3 * BLOCKS} steps with a reward")
    level = scaled(reward)
    parts = [np.arange(START), *np.array_split(np.arange(len(reward)), BLOCKS)]
    blocks = [mean(level[part]) for part in parts]
    means = np.array([reward[part].mean() for part in parts])
    best = int(np.argmax([b.value for b in blocks[:-1]]))
    last = int(np.argmin([b.value for b in blocks[best + 1 :]])) + best + 1
    floor = min(float(reward.min()), 0.0) if reward.min() >= 0 else float(reward.min())
    lost = (means[best] - means[last]) / (means[best] - floor) if means[best] > floor else 0.0
    own = max(noise(level), quantum_noise(reward)) / np.sqrt(len(parts[best]))
    error = own if best == 0 else max(blocks[best].error, own)  # too few steps at the start to say how much they vary
    z = z_of(blocks[best].value - blocks[last].value, error, blocks[last].error)
    if lost < LOST or z < threshold(len(reward)) + 0.5:
        return None
    middle = (means[best] + means[last]) / 2
    width = max(len(reward) // 20, 2)
    padded = np.pad(reward, width, mode="edge")
    smooth = np.convolve(padded, np.ones(2 * width + 1) / (2 * width + 1), mode="valid")
    begin, end = int(parts[best][0]), int(parts[last][-1])
    after = np.flatnonzero(smooth[begin : end + 1] < middle)
    where = int(steps[begin + (after[0] if len(after) else 0)])
    back = means[-1] > (means[best] + means[last]) / 2
    return Finding(
        "collapse",
        "error",
        f"the reward fell from {means[best]:.3g} to {means[last]:.3g} around step {where}"
        + (f" and came back to {means[-1]:.3g}" if back else ""),
        (where, int(steps[end])),
        f"go back to a checkpoint before step {where}; halve the learning rate and anchor the policy (kl_coefficient)",
        "derived",
        "collapse",
        {"lost": float(lost)},
    )


def stuck(log: RunLog) -> Finding | Skipped | None:
    """The reward does not change at all, for half of the run and at the end."""
    steps, reward = log.series("reward_mean")
    if len(reward) < FEWEST:
        return None
    level = float(np.median(reward[-FEWEST // 2 :]))
    same = np.abs(reward - level) <= STILL * float(np.ptp(reward))
    k = max(len(reward) // 3, FEWEST // 2)
    if same[-k:].mean() < 0.95:
        return None
    if level >= 0.99 and reward.max() <= 1:
        return None  # everything solved: what groups say of that is said there
    run = (
        len(same)
        if same.all()
        else int(len(same) - 1 - np.flatnonzero(~same & (np.arange(len(same)) < len(same) - k)).max(initial=-1))
    )
    before = same[: len(same) - run]
    away = np.abs(reward[: len(before)] - level)
    never = len(before) == 0 or best_block(away) < HARDLY * float(np.diff(np.unique(reward)).min())
    if same.all() and _teaches(log):
        return Finding(
            "reward_not_used",
            "info",
            f"the reward is {reward[-1]:g} at every step, yet the policy moves: it is driven by something else (a teacher, a loss)",
            (int(steps[0]), int(steps[-1])),
            "name the column that is trained on with --map reward_mean=…",
            "derived",
            None,
        )
    return Finding(
        "constant_reward",
        "error",
        f"the reward is {level:.4g} for the last {run} steps: "
        + (_hardly(before, level) if never else "one behaviour is left, and nothing to learn from"),
        (int(steps[-run]), int(steps[-1])),
        "check the verifier by hand on a completion; easier prompts, partial credit"
        if never
        else "go back to before it; an anchor (kl_coefficient) or a reward that grades the attempt",
        "derived",
        "no_signal" if never else "collapse" if reward[:FEWEST].mean() > level else "policy_concentration",
    )


def _hardly(before: np.ndarray, level: float) -> str:
    """before [n]: whether a step had the same reward as the end, which is `level`."""
    others = int((~before).sum())
    if not others:
        return "it never changed" if level else "nothing was ever paid"
    return f"it was another in {others} step{'s' if others > 1 else ''} before that, so hardly anything was ever paid"


def _teaches(log: RunLog) -> bool:
    """Whether the policy changes though the reward does not."""
    if log.has("gradient_norm"):
        return bool((log.series("gradient_norm")[1] > 0).mean() > 0.5)
    if log.has("entropy"):
        _, entropy = log.series("entropy")
        k = max(len(entropy) // 5, 3)
        return bool(
            len(entropy) >= FEWEST and abs(np.log(max(entropy[-k:].mean(), 1e-9) / max(entropy[:k].mean(), 1e-9))) > 1
        )
    return False


TRENDS = ("still_rising", "plateau", "falling", "flat")


def trend(log: RunLog, forecast: dict[str, Any] | None) -> Finding:
    """What the course says where nothing is wrong: an info."""
    steps, reward = log.series("reward_mean")
    if len(reward) < FEWEST:
        seen = "1 step has" if len(reward) == 1 else f"{len(reward)} steps have"
        return Finding(
            "too_short",
            "info",
            f"{seen} a reward; {FEWEST} are needed to tell a course from noise",
            (int(steps[0]), int(steps[-1])) if len(steps) else (0, 0),
            f"look again after {FEWEST} steps",
            "derived",
        )
    t, y, _ = thin(steps, reward, 400)
    half = len(y) // 2
    late = slope(t[half:], y[half:])
    span = float(t[-1] - t[half])
    first, last = (mean(part) for part in (y[: max(len(y) // 5, 5)], y[-max(len(y) // 5, 5) :]))
    rose = z_of(last.value - first.value, first.error, last.error)
    where = (int(steps[0]), int(steps[-1]))
    if z_of(late.value, late.error) > 3:
        text = f"the reward rose by {late.value * span:.3g} over the last half"
        advice = "going on pays" + _outlook(forecast, last)
        return Finding("still_rising", "info", text, where, advice, "derived")
    if rose > 3:
        text = f"the reward is at {interval(last)}; the last half added {late.value * span:.3g}"
        return Finding(
            "plateau", "info", text, where, "stop here, or change what limits it" + _outlook(forecast, last), "derived"
        )
    if rose < -3:
        sure = rose < -threshold(len(reward)) and first.value - last.value > FELL * abs(first.value)
        return Finding(
            "falling",
            "warning" if sure else "info",
            f"the reward went from {interval(first)} in the first fifth to {interval(last)} in the last",
            where,
            "go back to the best checkpoint; a lower learning rate or an anchor (kl_coefficient)",
            "derived",
            "falling" if sure else None,
        )
    text = f"no change that stands out of the noise, from {interval(first)} to {interval(last)}: it was done before, or has not begun"
    advice = "check that it learns at all: a higher learning rate, larger groups, more prompts a step"
    return Finding("flat", "info", text, where, advice, "derived")


def _outlook(forecast: dict[str, Any] | None, level: Mean) -> str:
    if not forecast or forecast.get("refused") or not forecast.get("final"):
        return ""
    final = forecast["final"]
    if final["high"] < level.value - 2 * level.error:
        return ""  # the laws miss where the reward is now
    return f"; the forecast is {final['value']:.3g} ({final['low']:.3g} to {final['high']:.3g})"


CHECKS = (collapse, stuck)
