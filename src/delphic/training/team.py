"""One run on several processes (`torchrun --nproc-per-node N -m delphic train …`): each samples and learns its share.

All members hold the same rollouts, take the same decisions and make the same update; only the first writes and speaks.
A completion's random numbers depend on its row, so the split changes nothing beyond rounding.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from delphic.errors import UserError
from delphic.policy.sampling import Completions
from delphic.training.metrics import Meter

T = TypeVar("T")


@dataclass(frozen=True)
class Team:
    """`size` processes; this one is number `rank`. One process alone is a team, too."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, count: int) -> np.ndarray:
        """This member's part of 0 … count − 1."""
        return np.arange(self.rank, count, self.size)

    def gather(self, mine: T) -> list[T]:
        """Every member's object, in the order of ranks, at every member."""
        if self.size == 1:
            return [mine]
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, mine)
        return everyone

    def same(self, make: Callable[[], T]) -> T:
        """What the first member makes, at every member: a user's function need not give the same twice.

        Raises:
            UserError: whatever the first member's `make` raised of it, at every member.
        """
        if self.size == 1:
            return make()
        holder: list[Any] = [None]
        if self.first:
            try:
                holder = [make()]
            except UserError as error:
                holder = [error]
        dist.broadcast_object_list(holder, src=0)
        if isinstance(holder[0], UserError):
            raise holder[0]
        return holder[0]

    def agree(self, flag: bool) -> bool:
        """Whether any member says so."""
        return any(self.gather(flag))

    def add_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Sum the members' gradients, in place."""
        if self.size > 1:
            for parameter in parameters:
                dist.all_reduce(parameter.grad)

    def add_meter(self, mine: Meter, meter: Meter) -> None:
        """Put every member's figures into `meter`."""
        for other in self.gather(mine):
            for name, total in other.sums.items():
                meter.add(name, total, other.counts.get(name, 1.0))

    def spread(self, rows: Sequence[Any], work: Callable[[np.ndarray], Sequence[Any]]) -> list[Any]:
        """`work` on the members' parts of row numbers 0 … len(rows) − 1; the results of all rows, in order."""
        mine = self.share(len(rows))
        out: list[Any] = [None] * len(rows)
        done = list(work(mine)) if len(mine) else []
        for rank, part in enumerate(self.gather(done)):
            out[rank :: self.size] = part
        return out

    def sample(
        self, prompts: Sequence[Any], count: int, rows: np.ndarray, work: Callable[..., Completions]
    ) -> Completions:
        """`work(prompts, rows)` on the members' parts of the prompts; the completions of all, in order."""
        if self.size == 1:
            return work(prompts, rows)
        by_prompt = rows.reshape(len(prompts), count)
        mine = self.share(len(prompts))
        part = work([prompts[i] for i in mine], by_prompt[mine].ravel()) if len(mine) else None
        every = self.gather(part)
        columns: dict[str, list[Any]] = {}
        for number in range(len(prompts)):
            source = every[number % self.size]
            assert source is not None
            start = number // self.size * count
            for name, values in vars(source).items():
                columns.setdefault(name, []).extend(values[start : start + count])
        columns["truncated"] = np.array(columns["truncated"], dtype=bool)  # type: ignore[assignment]
        return Completions(**columns)  # type: ignore[arg-type]


_team: Team | None = None


def join() -> Team:
    """The team that this process belongs to, as torchrun's environment says."""
    global _team
    if _team is None:
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size > 1 and not dist.is_initialized():
            dist.init_process_group("gloo" if not torch.cuda.is_available() else "cpu:gloo,cuda:nccl")
        _team = Team(dist.get_rank(), size) if size > 1 else Team()
    return _team


def leave() -> None:
    global _team
    if _team is not None and _team.size > 1:
        dist.destroy_process_group()
    _team = None
