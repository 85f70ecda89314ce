"""Which policy version samples which step's rollouts: the lag of sync_interval m and sync_offset n (theory section 2)."""

from __future__ import annotations


def source_step(step: int, interval: int, offset: int) -> int:
    """Number of finished steps of the policy that samples the rollouts of step t = 1, 2, …

    m · ⌊max(t − 1 − n, 0) / m⌋: the sampler is refreshed every m steps, and its rollouts wait n steps.
    """
    return interval * (max(step - 1 - offset, 0) // interval)
