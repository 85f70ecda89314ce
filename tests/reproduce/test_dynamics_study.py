"""Small pieces of the study of the dynamics: thresholds found by running, and what a verdict rests on."""

from __future__ import annotations

import numpy as np
import pytest

from delphic.cli import main
from delphic.dynamics.stability import Lag, exact_limit
from delphic.reproduce.forecasts import _verdict, bandit_curves, law_curve
from delphic.reproduce.limits import World, behaves, empirical_limit, variance_rows


def test_the_worlds_fixed_point_and_stiffness_are_exact() -> None:
    world = World()
    assert np.abs(world.step(world.point)).max() < 1e-12
    assert world.step(world.point + 1e-6 * world.top) @ world.top == pytest.approx(-1e-6 * world.stiffness, rel=1e-4)


@pytest.mark.parametrize("schedule", [(1, 4, 0.5), (5, 0, 0.0)])
def test_the_threshold_found_by_running_is_the_exact_one(schedule: tuple[int, int, float]) -> None:
    world = World()
    lag = Lag(*schedule, world.stiffness)
    assert empirical_limit(world, lag, 600) == pytest.approx(exact_limit(lag), rel=0.01)


def test_paths_are_told_apart() -> None:
    t = np.arange(401)
    assert behaves(0.9**t, 400) == "monotone"
    assert behaves(0.95**t * np.cos(t), 400) == "oscillating"
    assert behaves(1.01**t, 400) == "diverging"
    assert behaves(1.5 ** t[:20], 400) == "diverging"


def test_the_spread_is_that_of_the_recurrence() -> None:
    """Standard error about 2 %; the band is five of them."""
    world = World()
    (row,) = variance_rows(world, [Lag(1, 4, 0.5, world.stiffness)], 250, 600)
    assert row["ratio"] == pytest.approx(1, abs=0.1)


def test_curves_are_those_of_the_seed_and_verdicts_need_both() -> None:
    one, two = (law_curve(np.random.default_rng(3), 50) for _ in range(2))
    assert one[0] == two[0]
    assert (one[1] == two[1]).all()
    name, curves = bandit_curves(np.random.default_rng(4), 0, 30)
    assert curves.shape == (2, 30)
    assert "," in name
    row = {"runs": 100, "answered": 60, "coverage": 0.95, "coverage_low": 0.85, "coverage_high": 0.99}
    assert _verdict(row) == "holds"
    assert _verdict(row | {"answered": 40}) == "does not hold"
    assert _verdict(row | {"coverage": 0.8, "coverage_high": 0.89}) == "does not hold"
    assert _verdict(row | {"coverage": 0.99}) == "cannot tell"


def test_what_the_study_does_not_take_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "dynamics", "--model", "x"]) == 2
    assert "leave out --model" in capsys.readouterr().err
