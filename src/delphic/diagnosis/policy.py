"""The policy itself: concentration (entropy spent before the reward is earned), collapse of entropy, KL that runs away."""

from __future__ import annotations

import numpy as np

from delphic.diagnosis.finding import Finding, Skipped
from delphic.diagnosis.sequential import mean, slope, threshold, z_of
from delphic.runs.log import RunLog

FEWEST = 16
FIRST = 5  # steps that count as the start
SPENT = 0.06  # of the entropy at the start
AHEAD = 0.4  # the share of entropy left, over the share of reward left to earn
PAPER = "arXiv 2606.30789, policy concentration"


def ends(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last tenth, five values at the least."""
    k = max(len(values) // 10, 5)
    return values[:k], values[-k:]


def concentration(log: RunLog) -> Finding | Skipped | None:
    """Entropy falls with any learning: a policy that always earns the full reward has none left. So the entropy that is left, as a
    share of the start, is held against the reward that is left to earn, as a share of the start."""
    if not log.has("entropy"):
        return Skipped("policy_concentration", "entropy")
    steps, entropy = log.series("entropy")
    _, reward = log.series("reward_mean")
    if len(entropy) < FEWEST or len(reward) < FEWEST:
        return None
    first, last = ends(entropy)
    start, end = float(first[:FIRST].mean()), float(last.mean())
    if start <= 0:
        return None
    left = max(end, 0.0) / start
    r_last = mean(ends(reward)[1])
    top = 1.0 if reward.min() >= 0 and reward.max() <= 1 else float(reward.max())
    room = top - float(reward[:FIRST].mean())
    to_earn = (top - r_last.value) / room if room > 0 else 0.0
    z = threshold(len(reward))
    sure = (top - r_last.value - z * r_last.error) / room if room > 0 else 0.0
    if left > SPENT or left > AHEAD * sure:
        return None
    return Finding(
        "policy_concentration",
        "error" if to_earn > 0.25 else "warning",
        f"entropy fell from {start:.3g} to {end:.3g} ({left:.0%} left) while {to_earn:.0%} of the reward that was to be earned at "
        "the start is still missing: the policy has stopped exploring",
        (int(steps[np.argmax(entropy < 2 * max(end, 1e-12))]), int(steps[-1])),
        "go back to a checkpoint before the fall; lower the learning rate, clip the high side wider (clip_high = 0.28), or add an "
        "anchor (kl_coefficient)",
        PAPER,
        "policy_concentration",
        {"entropy_left": left, "reward_left": to_earn},
    )


def gibberish(log: RunLog) -> Finding | Skipped | None:
    """Entropy well above the start while the reward is well below what it was."""
    if not log.has("entropy"):
        return Skipped("entropy_rise", "entropy")
    steps, entropy = log.series("entropy")
    _, reward = log.series("reward_mean")
    if len(entropy) < FEWEST or len(reward) < FEWEST:
        return None
    first, last = (mean(part) for part in ends(entropy))
    third = len(reward) // 3
    before, now = mean(reward[: max(third, 5)]), mean(ends(reward)[1])
    rise = last.value - first.value
    if last.value < 2 * max(first.value, 0.1) or z_of(rise, first.error, last.error) < threshold(len(entropy)):
        return None
    fell = z_of(before.value - now.value, before.error, now.error) > threshold(len(reward))
    where = int(steps[np.argmax(entropy > first.value + rise / 2)])
    return Finding(
        "entropy_rise",
        "error" if fell else "warning",
        f"entropy rose from {first.value:.3g} to {last.value:.3g} nats a token"
        + (f" while the reward fell from {before.value:.3g} to {now.value:.3g}: the text dissolves" if fell else ""),
        (where, int(steps[-1])),
        f"go back to a checkpoint before step {where}; lower the learning rate, and anchor the policy (kl_coefficient)",
        "public logs of collapsed runs (docs/diagnosis.md)",
        "collapse" if fell else None,
        {"entropy_first": first.value, "entropy_last": last.value},
    )


def kl_blow_up(log: RunLog) -> Finding | Skipped | None:
    if not log.has("kl_reference"):
        return Skipped("kl_blow_up", "kl_reference")
    steps, kl = log.series("kl_reference")
    if len(kl) < FEWEST:
        return None
    early, late = kl[: max(len(kl) // 2, 8)], ends(kl)[1]
    usual = max(float(np.quantile(np.abs(early), 0.9)), 1e-3)
    now = float(np.median(late))
    growth = slope(steps[len(steps) // 2 :].astype(np.float64), kl[len(kl) // 2 :])
    reward_steps, reward = log.series("reward_mean")
    late_half = reward_steps >= steps[len(steps) // 2]
    if late_half.sum() >= 8:
        earned = slope(reward_steps[late_half].astype(np.float64), reward[late_half])
        if z_of(earned.value, earned.error) > 2:
            return None  # a policy that learns moves away from its reference
    if now < 10 * usual or now < 0.5 or z_of(growth.value, growth.error) < threshold(len(kl)):
        return None
    return Finding(
        "kl_blow_up",
        "error",
        f"KL to the reference ({log.kind('kl_reference')}) is {now:.3g}, {now / usual:.3g} times what it was in the first half, and rises",
        (int(steps[np.argmax(kl > 3 * usual)]), int(steps[-1])),
        "raise kl_coefficient or halve the learning rate",
        "derived",
        "dynamic_instability",
        {"kl": now, "factor": now / usual},
    )


CHECKS = (concentration, gibberish, kl_blow_up)
