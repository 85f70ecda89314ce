"""The neural runs of the study: the test of growth on recurrences whose limit is known, and a short run of the model."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from delphic.dynamics.stability import Lag, exact_limit
from delphic.reproduce import neural, neural_world, runs
from delphic.reproduce.neural import (
    GROWN,
    LOWEST,
    STEP,
    YARDSTICK,
    amplification,
    first_growth,
    onset_claim,
    recurrence_paths,
    seen_from,
    swing,
    turn,
    way_rows,
)
from delphic.reproduce.runs import train_steps


def test_the_first_growth_is_bracketed_from_both_sides() -> None:
    for true in (0.4, 0.8, 1.2, 2.5):
        low, high = first_growth(lambda multiple, true=true: 10.0 if multiple >= true else 1.0)
        assert low < true <= high
        assert high / low == pytest.approx(STEP)
    assert first_growth(lambda _: GROWN) == (0.0, pytest.approx(LOWEST))
    assert first_growth(lambda _: 1.0)[1] == math.inf


@pytest.mark.parametrize("lag", [Lag(1), Lag(8), Lag(8, momentum=0.5), Lag(1, momentum=0.9, averaged=True)])
def test_the_recurrence_is_seen_to_grow_near_its_limit(lag: Lag) -> None:
    assert seen_from(lag, 60 * lag.interval, lag.interval) == pytest.approx(1, abs=0.05)


def test_the_recurrence_is_that_of_the_limits() -> None:
    lag = Lag(4, 0, 0.3, 2.0)
    small, large = (np.abs(recurrence_paths(lag, x, 400)[:, -40:]).mean() for x in (0.97, 1.06))
    assert large > 20 * small
    noise_free = recurrence_paths(Lag(1, 0, 0.0, 1.0), 0.5, 3)  # η = 1: each step lands on its own noise
    assert noise_free[:, 1] == pytest.approx(np.random.default_rng(0).normal(size=(3, 300))[1])
    assert exact_limit(Lag(1)) == 2


def test_swings_are_measured_from_sync_to_sync() -> None:
    assert swing([1.0, 3.0, 5.0, 2.0], 2).tolist() == [3.0, 1.0]
    assert swing([1.0, math.inf], 1).tolist() == [1.0, math.inf]
    path = [(-1.0) ** t for t in range(1, 20)]
    assert turn(path, 1) == pytest.approx(-1, abs=0.05)
    assert turn([math.inf] * 4, 1) is None
    assert amplification(path, path, 2 * YARDSTICK, 1) == pytest.approx(0.5, rel=0.05)


def test_a_claim_counts_only_what_is_certified() -> None:
    row = {"importance weights": False, "certified": True, "found / limit": 1.2, "found / recurrence": 1.1}
    good = onset_claim([row], False, False)
    assert good.verdict == "holds"
    assert onset_claim([row, row | {"found / recurrence": 1.6}], False, False).verdict == "does not hold"
    assert onset_claim([row, row | {"found / recurrence": None, "found / limit": None}], False, False).verdict == (
        "does not hold"
    )
    open_ = onset_claim([row | {"certified": False}], False, False)
    assert open_.verdict == "cannot tell"
    assert "cannot certify" in open_.measured
    assert onset_claim([row], False, True).verdict == "cannot tell"


def test_rollouts_wait_for_the_next_sync() -> None:
    world = neural_world.World("sgd", False, None)
    config = world.config(1e-5, 3, 0, 5)
    config = config.model_copy(update={"sampling": config.sampling.model_copy(update={"prompts": 2})})
    parts = runs.build_parts(config, Path())
    versions = [set(rollouts.version.tolist()) for _, rollouts, _ in train_steps(parts)]
    assert versions == [{0}, {0}, {0}, {3}, {3}]


def test_the_part_in_its_quick_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight prompts a step, K from eight: the way is followed, kept, and read again without training."""
    monkeypatch.setattr(neural_world, "PROMPTS", 8)
    monkeypatch.setattr(neural, "QUICK", (8, 4))
    monkeypatch.setattr(neural, "settings", lambda _: iter([("adamw", False, 2, 0, 6)]))
    monkeypatch.setattr(neural_world, "WARM_STEPS", 2)
    outcome = neural.PART.run(tmp_path, True, lambda _: None)
    assert [claim.verdict for claim in outcome.claims] == ["cannot tell"]
    (row,) = outcome.tables[neural.ONSETS]
    assert row["limit of η"] > 0
    ways = outcome.tables[neural.WAY]
    assert ways == way_rows(
        [
            {"m": 2, "importance weights": False, "optimiser": "adamw", "seed": 0, "η in limits": m, "at syncs": at}
            for m in dict.fromkeys(r["η in limits"] for r in ways)
            for at in [[r["position"] for r in ways if r["η in limits"] == m]]
        ]
    )
    assert any(r["position"] for r in ways)
    monkeypatch.setattr(neural_world, "build_parts", None)
    assert neural.PART.run(tmp_path, True, lambda _: None) == outcome
