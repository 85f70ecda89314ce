"""The study of the group-size advice: its verdicts on made-up regrets, its worlds, and its quick form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from delphic.reproduce.advice import PART, QUICK, exact_advice, judge, lowest
from delphic.reproduce.claims import run_part
from delphic.reproduce.worlds import WorldSize, world
from delphic.statistics.group_size import best_group_size


def regrets(means: dict[int, float], noise: float = 0.005) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(0)
    rates = np.array([[1.1], [1.0], [1.1]])  # lowest at the middle rate
    return {g: m * rates + noise * rng.normal(size=(3, QUICK.seeds)) for g, m in means.items()}


@pytest.mark.parametrize(
    ("means", "advised", "verdict"),
    [
        ({2: 0.20, 8: 0.10, 96: 0.15}, {8: 1.0}, "holds"),
        ({2: 0.20, 8: 0.10, 96: 0.15}, {96: 1.0}, "does not hold"),
        ({2: 0.20, 8: 0.10, 96: 0.15}, {8: 0.5, 2: 0.5}, "does not hold"),
        ({2: 0.20, 8: 0.10, 16: 0.1045, 96: 0.15}, {16: 1.0}, "cannot tell"),
        ({2: 0.11, 8: 0.10, 96: 0.115}, {96: 1.0}, "the choice matters little"),
    ],
)
def test_the_verdict_is_about_what_the_advice_loses(
    means: dict[int, float], advised: dict[int, float], verdict: str
) -> None:
    row = judge(regrets(means), advised, {"exact advice": 8, "carry a recommendation": 1.0}, QUICK)
    assert row["verdict"] == verdict
    assert row["best G"] == 8
    assert row["loss of the advice, low"] <= row["loss of the advice"] <= row["loss of the advice, high"]


def test_without_a_recommendation_the_exact_advice_is_judged() -> None:
    row = judge(regrets({2: 0.2, 8: 0.1}), {2: 1.0}, {"exact advice": 8, "carry a recommendation": 0.4}, QUICK)
    assert (row["advice"], row["verdict"]) == ("exact", "holds")


def test_the_lowest_point_of_three_rates() -> None:
    x = np.array([-1.0, 0.0, 1.0])
    parabolas = np.stack([2 * (x - 0.3) ** 2 + 0.1, 2 * (x - 1.5) ** 2 + 0.1, 0.5 - x**2], axis=1)
    np.testing.assert_allclose(lowest(parabolas), [0.1, 0.6, -0.5], atol=1e-12)


@pytest.mark.parametrize(("star", "advice"), [(3, 3), (12, 16), (48, 64)])
def test_worlds_have_the_best_group_that_they_are_built_for(star: int, advice: int) -> None:
    bandit = world(star)
    theta = np.zeros(bandit.shape[2])
    c1, _, c3 = bandit.moments(theta).constants
    assert best_group_size(c1, c3) == pytest.approx(star, rel=1e-6)
    assert exact_advice(bandit, theta) == advice
    values = bandit.values(theta)
    assert values.std() > 0.05, "prompts are of mixed difficulty"


def test_a_world_that_cannot_be_built_is_refused() -> None:
    with pytest.raises(ValueError, match="best group size 3"):
        world(3, size=WorldSize(20, 24, 24, 1.0))


def test_the_quick_form(tmp_path: Path) -> None:
    outcome = run_part(PART, tmp_path, quick=True, note=lambda text: None)
    cells = {c["learner"]: c for c in outcome.tables["cells"]}
    assert set(cells) == {"sgd", "adam", "grpo"}
    assert cells["grpo"]["worst G"] == 2, "std-normalised pairs step too little against the KL term"
    assert cells["grpo"]["loss of the worst G"] > 1
    for row in outcome.tables["group sizes"]:
        assert -3 * row["standard error"] < row["regret"] < 1, "training leaves the start and does not pass the optimum"
    assert len(outcome.tables["group sizes"]) == len(cells) * len(QUICK.groups)
    assert len(outcome.claims) == len(cells)
    again = run_part(PART, tmp_path, quick=True, note=lambda text: pytest.fail("it was finished before"))
    assert again == outcome
