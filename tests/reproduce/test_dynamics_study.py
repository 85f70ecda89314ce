"""Small pieces of the study of the dynamics: thresholds found by running, and what a verdict rests on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from delphic.cli import main
from delphic.dynamics.laws import LAWS
from delphic.dynamics.stability import Lag, exact_limit
from delphic.reproduce.claims import Claim, Outcome, Part
from delphic.reproduce.dynamics import dynamics
from delphic.reproduce.forecasts import _verdict, bandit_curves, law_curve
from delphic.reproduce.limits import World, behaves, empirical_limit, variance_rows
from delphic.reproduce.planted import held
from delphic.reproduce.plateaus import (
    SIZES,
    bandit_rows,
    equivalence,
    exponent,
    fluctuation,
    law_rows,
    mean_field_row,
    mean_field_rows,
    model_rows,
)
from delphic.reproduce.runs import Course
from delphic.reproduce.study import run_study


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
    assert one.law is two.law
    assert (one.rewards == two.rewards).all()
    name, curves = bandit_curves(np.random.default_rng(4), 0, 30)
    assert curves.shape == (2, 30)
    assert "," in name
    row = {"runs": 100, "answered": 60, "coverage": 0.95, "coverage_low": 0.85, "coverage_high": 0.99}
    assert _verdict(row) == "holds"
    assert _verdict(row | {"answered": 40}) == "does not hold"
    assert _verdict(row | {"coverage": 0.8, "coverage_high": 0.89}) == "does not hold"
    assert _verdict(row | {"coverage": 0.99}) == "cannot tell"


def test_planted_curves_are_held_by_their_own_intervals() -> None:
    """Four curves a law, 68 intervals. The study's 500 curves give a coverage of .926; the intervals of a curve miss together,
    so that this is about 30 independent ones: below .8 with a chance under 1 %."""
    rng = np.random.default_rng(0)
    seen = [held(law_curve(rng, law=law), rng) for law in LAWS for _ in range(4)]
    assert set(seen[0]) == {"start", "plateau", "decay", "swing"}
    inside = [hit for one in seen for hit in one.values()]
    assert len(inside) == 4 * 17
    assert np.mean(inside) >= 0.8


def test_the_study_runs_draws_and_reports(tmp_path: Path) -> None:
    row = {"kind": "hold", "K_ref": 4, "μ": 0.0, "closed form": 0.25, "exact": 0.4, "found by running": 0.41}
    claim = Claim("c", "s", "m", "holds")
    parts = [
        Part(n, "about", lambda *_: Outcome([claim], {"ηK at the threshold": [row]})) for n in ("limits", "planted")
    ]
    report = run_study(replace(dynamics(), parts=parts), tmp_path, True, lambda *_: None)
    assert [c["verdict"] for c in report["claims"]] == ["holds", "holds"]
    page = (tmp_path / "report.html").read_text()
    assert "found by running" in page
    assert [part.name for part in dynamics().parts] == ["limits", "group_size", "planted", "forecasts"]


def test_what_the_study_does_not_take_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "dynamics", "--model", "x"]) == 2
    assert "leave out --model" in capsys.readouterr().err


def test_levels_are_equal_apart_or_open() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 8)
    assert equivalence(noise) == "equal"
    assert equivalence(noise + 0.05) == "apart"
    assert equivalence(20 * noise) == "cannot tell"


def test_the_exponent_of_planted_noise_is_found_and_a_trend_is_no_fluctuation() -> None:
    """400 runs: the standard error of the exponent is about 0.006; the band is five of them."""
    rng, t = np.random.default_rng(1), np.linspace(0, 1, 60)
    curves = [t + rng.normal(0, size**-0.5, (400, 60)) for size in SIZES]
    found = exponent([fluctuation(c) for c in curves])
    assert found.value == pytest.approx(-1, abs=0.03)
    assert fluctuation(2 * t[None] + 1)[0] == pytest.approx(0, abs=1e-20)


def test_the_mean_field_share_is_exact_and_free_of_sampling_noise() -> None:
    exact = np.array([0.1, 0.5, 0.9])
    row = mean_field_row(exact, 0)
    assert row["deviation over prompts"] == pytest.approx(exact.std())
    assert row["share of p̄(1−p̄) that lies between prompts"] == pytest.approx(exact.var() / 0.25)
    sampled = np.random.default_rng(2).binomial(4, np.tile(exact, 20_000)) / 4
    assert mean_field_row(sampled, 0, 4)["deviation over prompts"] == pytest.approx(exact.std(), rel=0.01)


def test_the_bandits_levels_depend_on_g_only_where_they_are_normalised() -> None:
    """Plain SGD with an anchor: the largest difference of exact levels is within 0.05 of 0 (standard error 0.01)."""
    rows, path = bandit_rows(4, 200, lambda _: None)
    assert len(rows) == 12
    assert [row["step"] for row in path] == sorted(row["step"] for row in path)
    plain = next(r for r in rows if (r["optimiser"], r["advantage"], r["KL anchor"]) == ("sgd", "mean", 0.5))
    assert abs(plain["G = 64"] - plain["G = 4"]) < 0.05
    alone = next(r for r in rows if r["prompts"] == 1 and r["advantage"] == "mean")
    assert -1.5 < alone["exponent of the gradient's error"] < -1  # c₁ = 0; c₃'s part falls faster
    assert "exponent of the gradient's error" not in next(r for r in rows if r["advantage"] == "std")


def test_rows_of_the_models_runs_say_what_was_planted() -> None:
    rng, steps = np.random.default_rng(3), 40
    t = np.arange(1, steps + 1)

    def course(size: int) -> Course:
        reward = 0.2 + 0.5 * (1 - np.exp(-t / 8)) + rng.normal(0, 0.2 * size**-0.5, steps)
        held_out = {step: rng.binomial(4, np.clip(rng.normal(0.5, step / 200, 2000), 0, 1)) / 4 for step in (0, 20, 40)}
        return Course(reward, 0.16, held_out)

    courses = {("sgd", "mean"): {size: [course(size) for _ in range(6)] for size in SIZES}}
    rows, parts = model_rows(courses, steps)
    assert rows[0]["levels"] == "equal"
    assert [p["of it sampling, V_within/(BG)"] for p in parts] == [0.16 / (4 * size) for size in SIZES]
    laws, ahead = law_rows(courses)
    assert sum(row["best by AICc"] for row in laws) == 6
    exponential = next(row for row in laws if row["law"] == "exponential")
    assert exponential["median AICc − three-phase"] < 0
    assert ahead["runs"] == 6
    field, grown = mean_field_rows(courses, steps)
    assert [row["step"] for row in field] == [0, 20, 40]
    assert grown.low > 0
