"""delphic compare: seeds, power, and what one run a side can say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from delphic.cli import main
from delphic.reproduce.forecasts import ar1
from delphic.statistics.compare import (
    difference,
    late_level,
    noise_bound,
    noise_ratio,
    power,
    seed_bound,
    seeds_needed,
)
from delphic.statistics.step_noise import step_noise

T = np.arange(200)


def curve(rng: np.random.Generator, level: float, noise: float = 0.02) -> np.ndarray:
    """A rise to a level, under AR(1) noise."""
    e = np.zeros(len(T))
    for t in range(1, len(T)):
        e[t] = 0.5 * e[t - 1] + rng.normal(0, noise)
    return level * (1 - np.exp(-T / 30)) + e


def write(path: Path, rewards: np.ndarray) -> str:
    path.write_text(
        "".join(json.dumps({"step": int(t), "reward": float(r)}) + "\n" for t, r in zip(T, rewards, strict=False))
    )
    return str(path)


def test_seeds_that_differ_by_chance_are_not_called_different() -> None:
    """400 pairs of three seeds a side whose levels spread by .02: 5 % are meant to be called different; above 8 % once in 250."""
    rng = np.random.default_rng(0)
    called = 0
    for _ in range(400):
        one, two = (np.array([late_level(curve(rng, rng.normal(0.7, 0.02))).value for _ in range(3)]) for _ in range(2))
        called += difference(one, two).excludes_zero
    assert called <= 32


def test_power_is_that_of_simulated_t_tests() -> None:
    """4,000 tests: standard error .008; the band is four of them."""
    rng = np.random.default_rng(1)
    found = sum(difference(rng.normal(0, 1, 6), rng.normal(1.5, 1, 6)).excludes_zero for _ in range(4000)) / 4000
    assert power(1.5, 1.0, 6) == pytest.approx(found, abs=0.032)
    assert seeds_needed(1.5, 1.0) == 9  # as tables of the two-sample t test have it
    assert seeds_needed(1e-4, 1.0) is None


@pytest.mark.parametrize(("first", "second"), [(0.0, 0.0), (0.5, 0.5), (0.0, 0.5)])
def test_the_noise_ratio_covers_what_was_planted(first: float, second: float) -> None:
    """200 pairs of AR(1) noise: at 95 % meant, fewer than 180 once in 700. The median's standard error is 3 %."""
    rng = np.random.default_rng(2)
    smooth = 0.7 * (1 - np.exp(-np.arange(400) / 60))
    found = [noise_ratio(smooth + ar1(rng, 400, 0.02, first), smooth + ar1(rng, 400, 0.04, second)) for _ in range(200)]
    assert sum(f.low <= 4 <= f.high for f in found) >= 180
    assert np.median([f.value for f in found]) == pytest.approx(4, rel=0.15)


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_steps_that_differ_by_noise_alone_are_not_called_different(correlation: float) -> None:
    """400 pairs of the same level: 5 % are meant to pass the bound; above 9 % once in 2,000. A level three bounds away does."""
    rng = np.random.default_rng(5)
    called = seen = 0
    for _ in range(400):
        one, two = (late_level(ar1(rng, 200, 0.03, correlation)) for _ in range(2))
        bound = noise_bound(one, two)
        called += abs(two.value - one.value) > bound
        seen += abs(two.value + 3 * bound - one.value) > bound
    assert called <= 36
    assert seen >= 390


@pytest.mark.parametrize("counts", [(3, 1), (2, 1), (6, 1)])
def test_seeds_of_one_side_bound_a_single_run_of_the_other(counts: tuple[int, int]) -> None:
    """2,000 pairs from one population: Student's t is exact, so 5 %; four standard errors are 1.95 %."""
    rng = np.random.default_rng(6)
    many, single = rng.normal(0, 1, (2000, counts[0])), rng.normal(0, 1, 2000)
    bounds = np.array([seed_bound(float(m.std(ddof=1)), counts[0] - 1, counts) for m in many])
    assert (np.abs(many.mean(1) - single) > bounds).mean() == pytest.approx(0.05, abs=0.0195)


def test_step_noise_gives_back_what_a_line_takes_away() -> None:
    """Means over 300 curves of 200 steps; their standard errors are about 1.5 %, so the bands are five of them."""
    rng = np.random.default_rng(7)
    slope = np.linspace(0, 1, 200)
    for correlation in (0.0, 0.4):
        found = [step_noise(slope + ar1(rng, 200, 0.05, correlation)) for _ in range(300)]
        errors = np.array([f.variance for f in found]) / 0.05**2
        assert errors.mean() == pytest.approx(1, abs=0.1)
        assert np.mean([f.error_of_mean(20) for f in found]) == pytest.approx(
            np.sqrt(0.05**2 * sum((20 - abs(k)) * correlation ** abs(k) for k in range(-19, 20))) / 20, rel=0.08
        )
    assert step_noise(np.full(40, 0.5)).variance == 0


def test_one_run_a_side_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(3)
    a, b = (write(tmp_path / f"{n}.jsonl", curve(rng, level)) for n, level in (("a", 0.7), ("b", 0.75)))
    assert main(["compare", a, b]) == 0
    out = capsys.readouterr().out
    assert "one seed a side says nothing" in " ".join(out.split())
    assert "80 % power to see it" in out
    assert main(["compare", a, b, "--seed-spread", "0.05", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"].count("within what seeds differ") == 1
    assert found["seeds_needed"] == seeds_needed(found["difference"], 0.05)


def test_noise_that_is_not_determined_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(8)
    noisy = write(tmp_path / "a.jsonl", curve(rng, 0.7))
    for name, rewards in (("still", np.full(200, 0.5)), ("short", ar1(rng, 24, 0.03, 0.9))):
        other = write(tmp_path / f"{name}.jsonl", rewards)
        assert main(["compare", noisy, other]) == 0
        assert "not determined (too few steps" in capsys.readouterr().out
        assert main(["compare", noisy, other, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["noise"]["high"] is None


def test_several_runs_a_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(4)
    sides = [
        [write(tmp_path / f"{n}{k}.jsonl", curve(rng, rng.normal(level, 0.01))) for k in range(4)]
        for n, level in (("a", 0.6), ("b", 0.8))
    ]
    assert main(["compare", *sides[0], "--against", *sides[1], "--json", "--group-sizes", "8", "16"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["interval"]["low"] > 0.1
    assert found["verdict"].startswith("they differ by +0.")
    assert found["noise"]["expected_from_group_size"] == 0.5


def test_what_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "a.jsonl", curve(np.random.default_rng(0), 0.5))
    for arguments, said in (
        ([a], "two runs"),
        ([a, str(tmp_path / "b")], "no such file"),
        ([a, a, "--seed-spread", "-1"], "negative"),
        ([a, a, "--group-sizes", "0", "4"], "at least 1, got 0 and 4"),
    ):
        assert main(["compare", *arguments]) == 2
        assert said in capsys.readouterr().err
