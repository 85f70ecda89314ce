"""The lag schedule is the formula, and the run obeys it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Silent

from delphic.config import make_config
from delphic.rollouts import Rollouts
from delphic.training.lag import consumers, lag, source_step
from delphic.training.loop import train


def lags(interval: int, offset: int, steps: int = 200) -> list[int]:
    return [lag(t, interval, offset) for t in range(1, steps + 1)]


def test_on_policy_has_no_lag() -> None:
    assert set(lags(1, 0)) == {0}


def test_hold_of_20_counts_from_0_to_19_and_starts_again() -> None:
    assert lags(20, 0) == [*range(20)] * 10


def test_offset_of_10_is_a_constant_lag_of_10_once_warm() -> None:
    assert lags(1, 10) == [*range(10), *[10] * 190]


def test_hold_and_offset_together_stay_between_n_and_n_plus_m_minus_1() -> None:
    values = lags(20, 10)
    assert values[:30] == [*range(30)]
    assert values[30:50] == [*range(10, 30)]
    assert set(values[30:]) == set(range(10, 30))


def test_an_interval_beyond_the_run_is_offline_learning_from_the_initial_policy() -> None:
    assert lags(1000, 0, 50) == [*range(50)]
    assert {source_step(t, 1000, 0) for t in range(1, 51)} == {0}


@pytest.mark.parametrize("interval", [1, 3, 20])
@pytest.mark.parametrize("offset", [0, 1, 10])
def test_every_step_is_sampled_once_by_the_policy_that_the_formula_names(interval: int, offset: int) -> None:
    sampled = [(t, source) for source in range(70) for t in consumers(source, 60, interval, offset)]
    assert sorted(sampled) == [(t, source_step(t, interval, offset)) for t in range(1, 61)]


@pytest.mark.parametrize(("interval", "offset"), [(1, 0), (3, 0), (1, 2), (3, 2), (99, 0)])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_runs_versions_and_lags_are_the_formulas(
    interval: int, offset: int, minibatches: int, quick: dict[str, Any], tmp_path: Path
) -> None:
    quick["train"] |= {"steps": 7, "sync_interval": interval, "sync_offset": offset, "minibatches": minibatches}
    quick["evaluation"]["problems"] = 0
    rows = train(make_config(quick, "test"), tmp_path / "run", tmp_path, resume=False, display=Silent()).rows
    for row in rows:
        step = int(row["step"])
        recorded, _ = Rollouts.read(tmp_path / "run" / "rollouts" / f"step_{step:06d}.parquet")
        source = source_step(step, interval, offset)
        assert set(recorded.version) == {source * minibatches}, "versions count optimiser updates"
        first = lag(step, interval, offset) * minibatches
        assert row["lag_max"] == first + minibatches - 1, "several updates a batch show as lag"
        assert row["version"] == step * minibatches


def test_at_lag_0_the_ratio_is_1_to_rounding(lagged: dict[str, Any], reward_folder: Path, tmp_path: Path) -> None:
    lagged["train"] |= {"steps": 3, "sync_interval": 1, "sync_offset": 0, "minibatches": 1}
    rows = train(make_config(lagged, "test"), tmp_path / "run", reward_folder, resume=False, display=Silent()).rows
    for row in rows[1:]:
        assert row["lag_max"] == 0
        assert row["ratio_max_learned"] == pytest.approx(1, abs=1e-5)
        assert row["ratio_negative_learned"] == pytest.approx(1, abs=1e-5)
        assert row["kl_behaviour_learned"] == pytest.approx(0, abs=1e-6)
        assert row["masked_positive_learned"] == row["masked_negative_learned"] == 0
