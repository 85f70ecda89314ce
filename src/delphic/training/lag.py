"""Which policy version samples which step's rollouts (theory: lag of sync_interval m and sync_offset n)."""

from __future__ import annotations

from delphic.dynamics.schedule import source_step as source_step


def lag(step: int, interval: int, offset: int) -> int:
    """Steps between the policy that samples and the one that learns, (t − 1) − source; in [n, n + m − 1] once warm."""
    return step - 1 - source_step(step, interval, offset)


def consumers(source: int, steps: int, interval: int, offset: int) -> list[int]:
    """The steps whose rollouts the policy after `source` steps samples, in order."""
    if source % interval:
        return []
    first = 1 if source == 0 else source + offset + 1
    return [t for t in range(first, min(source + offset + interval, steps) + 1)]
