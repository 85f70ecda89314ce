"""delphic compare: seeds, power, and what one run a side can say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from delphic.cli import main
from delphic.statistics.compare import difference, late_level, noise_ratio, power, seeds_needed

T = np.arange(200)


def curve(rng: np.random.Generator, level: float, noise: float = 0.02) -> np.ndarray:
    """A rise to a level, under AR(1) noise."""
    e = np.zeros(len(T))
    for t in range(1, len(T)):
        e[t] = 0.5 * e[t - 1] + rng.normal(0, noise)
    return level * (1 - np.exp(-T / 30)) + e


def write(path: Path, rewards: np.ndarray) -> str:
    path.write_text(
        "".join(json.dumps({"step": int(t), "reward": float(r)}) + "\n" for t, r in zip(T, rewards, strict=True))
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


def test_the_noise_ratio_covers_what_was_planted() -> None:
    """200 pairs: at 95 % meant, fewer than 180 once in 700."""
    rng = np.random.default_rng(2)
    smooth = 0.7 * (1 - np.exp(-T / 30))
    held = 0
    for _ in range(200):
        found = noise_ratio(smooth + rng.normal(0, 0.02, 200), smooth + rng.normal(0, 0.04, 200))
        held += found.low <= 4 <= found.high
    assert held >= 180


def test_one_run_a_side_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(3)
    a, b = (write(tmp_path / f"{n}.jsonl", curve(rng, level)) for n, level in (("a", 0.7), ("b", 0.75)))
    assert main(["compare", a, b]) == 0
    out = capsys.readouterr().out
    assert "one seed a side says nothing" in " ".join(out.split())
    assert "80 % power to see it" in out
    assert main(["compare", a, b, "--seed-spread", "0.05", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"].count("within what two seeds differ") == 1
    assert found["seeds_needed"] == seeds_needed(found["difference"], 0.05)


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
    ):
        assert main(["compare", *arguments]) == 2
        assert said in capsys.readouterr().err
