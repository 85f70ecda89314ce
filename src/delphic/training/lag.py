"""Which policy version samples which step's rollouts (theory: lag of sync_interval m and sync_offset n), and what that is to
the recurrence whose limits `dynamics.stability` knows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from delphic.config import RunConfig
from delphic.dynamics.schedule import source_step as source_step
from delphic.dynamics.stability import Lag


def lag(step: int, interval: int, offset: int) -> int:
    """Steps between the policy that samples and the one that learns, (t − 1) − source; in [n, n + m − 1] once warm."""
    return step - 1 - source_step(step, interval, offset)


def consumers(source: int, steps: int, interval: int, offset: int) -> list[int]:
    """The steps whose rollouts the policy after `source` steps samples, in order."""
    if source % interval:
        return []
    first = 1 if source == 0 else source + offset + 1
    return [t for t in range(first, min(source + offset + interval, steps) + 1)]


def recurrence(config: RunConfig, interval: int | None = None) -> Lag:
    """A run's lag in optimiser updates, K = 1: those of a step share its rollouts, so m and n count `updates_per_step` each.
    With full importance weights, or on fixed data, no lag counts.

    Args:
        interval: m in steps (default: the config's).
    """
    train = config.train
    adam, updates = train.optimizer == "adamw", train.updates_per_step
    free = config.objective.cancels_lag or train.offline is not None
    return Lag(
        1 if free else updates * (train.sync_interval if interval is None else interval),
        0 if free else updates * train.sync_offset,
        momentum=train.betas[0] if adam else train.momentum,
        averaged=adam,
    )


@dataclass(frozen=True)
class Schedule:
    """The lag of a run whose interval may change at a sync: each part (start, m) begins anew at step `start`, and the
    rollouts of steps up to start + offset were sampled before it. One part is the plain schedule."""

    offset: int
    parts: tuple[tuple[int, int], ...]

    @property
    def interval(self) -> int:
        """m from the last change on."""
        return self.parts[-1][1]

    def _part(self, finished: int) -> tuple[int, int]:
        """The part in which `finished` steps lie; a change holds from its sync on."""
        return next((start, m) for start, m in reversed(self.parts) if start <= finished)

    def source_step(self, step: int) -> int:
        """As `source_step`, within the part to which the step's rollouts belong."""
        start, interval = self._part(max(step - 1 - self.offset, 0))
        return start + source_step(step - start, interval, self.offset)

    def consumers(self, source: int, steps: int) -> list[int]:
        """As `consumers`."""
        start, interval = self._part(source)
        if source == 0:
            return consumers(0, steps, interval, self.offset)
        if (source - start) % interval:
            return []
        return list(range(source + self.offset + 1, min(source + self.offset + interval, steps) + 1))

    def syncs(self, finished: int) -> bool:
        """Whether the sampler gets new weights after so many steps."""
        start, interval = self._part(finished)
        return (finished - start) % interval == 0

    def change(self, finished: int, interval: int) -> Schedule:
        """The interval from the next sync on, `finished` itself included."""
        start, old = self.parts[-1]
        at = start if finished <= start else start - (start - finished) // old * old
        kept: Iterable[tuple[int, int]] = self.parts[:-1] if at == start else self.parts
        return Schedule(self.offset, (*kept, (at, interval)))
