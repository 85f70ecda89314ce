"""Small pieces of the study of the dynamics: thresholds found by running, and what a verdict rests on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from delphic.cli import main
from delphic.dynamics.laws import LAWS
from delphic.dynamics.stability import Lag, exact_limit
from delphic.reproduce import plateaus, runs
from delphic.reproduce.claims import Claim, Outcome, Part
from delphic.reproduce.courses import (
    SHARE,
    SIZES,
    Courses,
    law_claim,
    law_rows,
    mean_field_claim,
    mean_field_row,
    mean_field_rows,
    model_courses,
)
from delphic.reproduce.dynamics import dynamics
from delphic.reproduce.forecasts import _verdict, bandit_curves, law_curve
from delphic.reproduce.limits import World, behaves, empirical_limit, variance_rows
from delphic.reproduce.planted import held
from delphic.reproduce.plateaus import PART, _row, bandit_rows, equivalence, exponent, fluctuation, inverse, model_rows
from delphic.reproduce.runs import Course
from delphic.reproduce.study import run_study
from delphic.statistics.interval import Interval


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
    assert [part.name for part in dynamics().parts] == ["limits", "neural", "group_size", "planted", "forecasts"]


def test_what_the_study_does_not_take_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "dynamics", "--model", "x"]) == 2
    assert "leave out --model" in capsys.readouterr().err


def test_levels_are_equal_apart_or_open() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 8)
    assert equivalence(noise) == "equal"
    assert equivalence(noise + 0.05) == "apart"
    assert equivalence(20 * noise) == "cannot tell"


def test_the_exponent_of_planted_noise_is_found_and_a_common_course_is_no_fluctuation() -> None:
    """400 runs: the standard error of the exponent is about 0.006; the band is five of them."""
    rng, t = np.random.default_rng(1), np.linspace(0, 1, 60)
    curves = [t**2 + rng.normal(0, size**-0.5, (400, 60)) for size in SIZES]
    variances = [fluctuation(c) for c in curves]
    assert [v.mean() for v in variances] == pytest.approx([1 / size for size in SIZES], rel=0.05)
    assert exponent(variances).value == pytest.approx(-1, abs=0.03)


def test_an_exponent_of_minus_one_is_said_only_where_it_is_known() -> None:
    assert inverse(Interval(-1.05, -1.2, -0.9)) == "yes"
    assert inverse(Interval(-0.9, -1.4, -0.4)) == "cannot tell"
    assert inverse(Interval(-0.5, -0.6, -0.4)) == "no"


def test_the_pair_that_decides_is_shown() -> None:
    """4 to 64 differs more, 4 to 16 is surer."""
    noise = np.array([-1.0, 1.0, -1.0, 1.0, -1.0, 1.0])
    ends = {4: 0.3 + 0 * noise, 16: 0.36 + 0.001 * noise, 64: 0.37 + 0.2 * noise}
    row = _row({}, ends, {size: 1 / size + 0.01 * np.abs(noise) / size for size in SIZES})
    assert row["levels"] == "apart"
    assert row["difference"].endswith("G = 4 to 16")


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


def planted_courses(gain: float = 0.0, steps: int = 80) -> Courses:
    """Exponential courses of 6 runs a G that end `gain` higher at the largest G; prompts that drift apart."""
    rng, t = np.random.default_rng(3), np.arange(1, steps + 1)

    def course(size: int) -> Course:
        reward = 0.2 + 0.5 * (1 - np.exp(-t / 8)) + rng.normal(0, 0.2 * size**-0.5, steps)
        end = 0.5 + gain * (size == SIZES[-1])
        held_out = {
            step: rng.binomial(4, np.clip(rng.normal(end, step / (5 * steps), 4000), 0, 1)) / 4
            for step in (0, steps // 2, steps)
        }
        return Course(reward, 0.16, held_out)

    return {("sgd", "mean"): {size: [course(size) for _ in range(6)] for size in SIZES}}


def test_rows_and_claims_of_the_models_runs_say_what_was_planted() -> None:
    courses = planted_courses()
    rows, parts = model_rows(courses, 80)
    assert rows[0]["levels"] == "equal"
    assert model_rows(planted_courses(0.1), 80)[0][0]["levels"] == "apart"
    assert [p["of it sampling, V_within/(BG)"] for p in parts] == [0.16 / (4 * size) for size in SIZES]
    laws, ahead = law_rows(courses)
    assert sum(row["best by AICc"] for row in laws) == 6
    exponential = next(row for row in laws if row["law"] == "exponential")
    assert exponential["median AICc − three-phase"] < 0
    assert ahead["runs"] == 6
    worse = exponential | {"three-phase better by 2": 1, "three-phase worse by 2": 5}
    better = exponential | {"three-phase better by 2": 4, "three-phase worse by 2": 0}
    assert law_claim([worse], False).verdict == "does not hold"
    assert law_claim([better], False).verdict == "holds"
    assert law_claim([better], True).verdict == "cannot tell"
    field, grown = mean_field_rows(courses, 80)
    assert [row["step"] for row in field] == [0, 40, 80]
    assert grown.low > 0
    assert mean_field_claim(grown, field, False).verdict == "holds"
    assert mean_field_claim(Interval(-0.2, -0.3, -0.1), field, False).verdict == "does not hold"
    assert [row[SHARE] for row in field] == sorted(row[SHARE] for row in field)


def test_the_part_in_its_quick_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plateaus, "model_courses", lambda *_: planted_courses(steps=12))
    outcome = PART.run(tmp_path, True, lambda _: None)
    assert len(outcome.claims) == 6
    assert {claim.verdict for claim in outcome.claims} == {"cannot tell"}
    assert all(outcome.tables.values())


def test_claims_of_a_full_run_say_where_they_fail() -> None:
    good = {"optimiser": "sgd", "advantage": "mean", "difference": "d", "levels": "equal", "∝ 1/G": "yes"}
    good["exponent of the fluctuation"] = "-1"
    bad = good | {"optimiser": "adam", "levels": "apart", "∝ 1/G": "no", "difference": "0.07"}
    level, noise = plateaus._level_claim, plateaus._fluctuation_claim
    assert level("w", [good], False).verdict == noise("w", [good], False).verdict == "holds"
    assert level("w", [good, bad], False).verdict == noise("w", [good, bad], False).verdict == "does not hold"
    assert "adam mean 0.07" in level("w", [good, bad], False).measured
    open_ = good | {"levels": "cannot tell", "∝ 1/G": "cannot tell"}
    assert level("w", [open_], False).verdict == noise("w", [open_], False).verdict == "cannot tell"


def test_the_models_runs_are_recorded_once_and_differ_by_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delphic.reproduce.courses.SIZES", (2, 4))
    courses = model_courses(tmp_path, 1, 2, 3, lambda _: None)
    assert list(courses) == [(o, s) for o in ("sgd", "adamw") for s in ("mean", "std")]
    run = courses["sgd", "mean"][4][0]
    assert run.reward.shape == (2,)
    assert sorted(run.held_out) == [0, 1, 2]
    assert run.held_out[0].shape == (3,)
    assert 0 <= run.within <= 1 / 3  # of four 0/1 rewards
    assert (courses["adamw", "std"][4][0].held_out[0] == run.held_out[0]).all()  # the same start, the same draws
    monkeypatch.setattr(runs, "build_parts", None)  # a second time nothing is trained
    again = model_courses(tmp_path, 1, 2, 3, lambda _: None)
    assert (again["sgd", "mean"][4][0].reward == run.reward).all()
