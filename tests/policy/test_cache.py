"""The cache grows in place, and sampling refills the batch: what makes them worth having."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from delphic.policy.cache import GrowingLayer
from delphic.policy.load import load_policy
from delphic.policy.model import Policy
from delphic.policy.sampling import SamplingSettings, sample
from delphic.randomness import Purpose


def states(length: int) -> torch.Tensor:
    return torch.randn(3, 2, length, 4)


def test_a_new_position_copies_nothing_but_itself() -> None:
    with torch.no_grad():
        layer, parts = GrowingLayer(), [states(5), states(1), states(1), states(1)]
        places = set()
        for part in parts:
            keys, values = layer.update(part, -part)
            places.add(keys.data_ptr())
        assert torch.equal(keys, torch.cat(parts, -2))
        assert torch.equal(values, -torch.cat(parts, -2))
        assert len(places) == 2, "the prompt's own memory, then one buffer"
        layer.batch_select_indices(torch.tensor([2, 0]))
        keys, _ = layer.update(states(1)[:2], states(1)[:2])
        assert torch.equal(keys[:, :, :-1], torch.cat(parts, -2)[[2, 0]]), "a selection moves into a buffer of its own"


def test_a_full_buffer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delphic.policy.cache.ROOM", 2)
    with torch.no_grad():
        layer, parts = GrowingLayer(), [states(2), *[states(1) for _ in range(7)]]
        for part in parts:
            keys, _ = layer.update(part, part)
        assert torch.equal(keys, torch.cat(parts, -2))


def test_with_gradients_nothing_is_written_in_place() -> None:
    layer, first, second = GrowingLayer(), states(2).requires_grad_(), states(1).requires_grad_()
    layer.update(first, first)
    keys, values = layer.update(second, second)
    (keys * values).sum().backward()
    assert torch.allclose(first.grad, 2 * first)  # type: ignore[arg-type]
    assert torch.allclose(second.grad, 2 * second)  # type: ignore[arg-type]


def test_waiting_groups_start_before_the_running_ones_have_all_ended(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = load_policy(str(tiny_model))
    calls = []
    extend = Policy.extend
    monkeypatch.setattr(Policy, "extend", lambda self, *a: calls.append(1) or extend(self, *a))
    settings = SamplingSettings(1.0, 1.0, max_new_tokens=30, stop="", batch_rows=16)
    taken, tokens = {}, {}
    for joins in (True, False):
        policy.joins_cache = joins
        calls.clear()
        rows = np.arange(64)
        drawn = sample(policy, ["1+2="] * 16, 4, settings, seed=0, purpose=Purpose.EVALUATE, step=0, rows=rows)
        taken[joins], tokens[joins] = len(calls), [t.tolist() for t in drawn.tokens]
    assert tokens[True] == tokens[False]
    assert taken[True] < 0.9 * taken[False], taken
