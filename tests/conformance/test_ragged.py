"""The batches of the conformance tests meet every edge that an objective may have: otherwise agreement says little."""

from __future__ import annotations

import pytest
import torch
from ragged import Batch, make_batch, our_advantage


def signed(b: Batch) -> list[torch.Tensor]:
    a = torch.from_numpy(our_advantage("rec_oneside_is", b))[:, None]
    return [(a > 0) & (b.mask > 0), (a < 0) & (b.mask > 0)]


@pytest.mark.parametrize("seed", range(3))
def test_every_side_of_the_clip_with_either_sign(seed: int) -> None:
    b = make_batch(seed)
    for sign in signed(b):
        for side in (b.ratio < 1 / 1.3, (b.ratio > 0.8) & (b.ratio < 1.2), b.ratio > 1.3):
            assert (sign & side).any()


@pytest.mark.parametrize("seed", range(2))
def test_every_part_of_the_ring_with_either_sign(seed: int) -> None:
    b = make_batch(seed, drift=1.2)
    for sign in signed(b):
        for low, high in ((0, 0.4), (0.4, 0.8), (0.8, 1.2), (1.2, 3), (3, torch.inf)):
            assert (sign & (b.ratio > low) & (b.ratio < high)).any()


@pytest.mark.parametrize("seed", range(2))
def test_every_side_of_the_sequence_clip(seed: int) -> None:
    s = make_batch(seed, drift=1e-3).sequence_ratio
    assert (s < 1 - 3e-4).any()
    assert (s > 1 + 4e-4).any()
    assert ((s > 1 - 3e-4) & (s < 1 + 4e-4)).any()


def test_lengths_and_groups_are_ragged() -> None:
    b = make_batch()
    assert {1, 9} <= set(b.lengths.tolist())
    assert len({tuple(b.rewards[b.groups == g] == b.rewards[b.groups == g][0]) for g in set(b.groups.tolist())}) > 2
    assert our_advantage("grpo", b)[b.groups == 2].tolist() == [0.0] * 3  # the silent group
