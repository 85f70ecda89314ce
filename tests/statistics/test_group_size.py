"""The best group size: its formula by search, its estimate without bias, its interval with the coverage it claims."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

from delphic.reproduce.worlds import simulate_pilots, world
from delphic.statistics.group_size import (
    Constants,
    Interval,
    Pilot,
    allocation,
    best_group_size,
    constants_of,
    cost_aware_group_size,
    critical_batch,
    error_moments,
    estimate_constants,
    flat_range,
    noise_split,
    recommend,
    relative_error,
)
from delphic.statistics.ustatistic import baseline_weights, prompt_moments

ARMS, DIMENSIONS = 6, 10


class World:
    """Prompts with softmax policies over arms. `common`: how much of rewards and features all prompts share: the more,
    the less their gradients differ, and the larger the best group."""

    def __init__(self, common: float, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.common, self.features, self.rewards = common, rng.normal(size=(ARMS, DIMENSIONS)), rng.random(ARMS)

    def prompt(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(probabilities, scores, rewards) of a fresh prompt."""
        mix = self.common
        p = mix * np.full(ARMS, 1 / ARMS) + (1 - mix) * rng.dirichlet(np.ones(ARMS))
        features = mix * self.features + (1 - mix) * rng.normal(size=(ARMS, DIMENSIONS))
        rewards = mix * self.rewards + (1 - mix) * rng.random(ARMS)
        return p, features - p @ features, rewards

    def pilot(self, rng: np.random.Generator, prompts: int = 64, completions: int = 32) -> Pilot:
        moments, gradients = [], []
        for _ in range(prompts):
            p, scores, z = self.prompt(rng)
            drawn = rng.choice(ARMS, size=completions, p=p)
            moments.append(prompt_moments(scores[drawn] @ scores[drawn].T, z[drawn]))
            gradients.append(baseline_weights(z[drawn], "loo") @ scores[drawn])
        g = np.array(gradients)
        return Pilot(moments, g @ g.T)


@settings(deadline=None, max_examples=50)
@given(st.floats(0.001, 1), st.floats(0.1, 10), st.floats(1, 2000))
def test_the_formula_is_where_the_curve_is_lowest(c1: float, c2: float, ratio: float) -> None:
    constants = (c1, c2, ratio * c1)
    sizes = np.arange(2, 200)
    found = sizes[np.argmin(relative_error(constants, sizes))]
    assert abs(found - max(2.0, best_group_size(c1, ratio * c1))) <= 1
    low, high = flat_range(constants)
    assert low <= found <= high
    assert sum(noise_split(constants, 8).values()) == pytest.approx(1)
    assert cost_aware_group_size(constants, 0.0, 1.0) == pytest.approx(found, abs=1), "free prompts: the same budget"
    assert cost_aware_group_size(constants, 50.0, 1.0) >= found, "dear prompts: more completions of each"


@pytest.mark.parametrize("star", [3, 12, 48])
def test_constants_are_unbiased_and_the_interval_covers(star: int) -> None:
    """2,000 pilots of 24 × 12 in worlds whose best group is 3, 12 and 48: means within three standard errors (by chance,
    each of the 24 would fail with 0.3 %); coverage of G* between 0.90 and 0.98. The seed is fixed."""
    bandit = world(star)
    theta, count = np.zeros(bandit.shape[2]), 2000
    truth = bandit.moments(theta)
    assert best_group_size(truth.constants[0], truth.constants[2]) == pytest.approx(star)
    pilots = simulate_pilots(bandit, theta, count, 24, 12, seed=1, distinct=False)
    gradient, spread, product = (pilots.columns[name] for name in ("gradient", "spread", "product"))
    found = [constants_of(gradient[m], spread[m], product[m], pilots.cross[m]) for m in range(count)]
    estimates = {name: pilots.columns[name].mean(1) for name in ("gradient", "spread", "product", "square")}
    for name in ("c1", "c2", "c3"):
        estimates[name] = np.array([getattr(c, name).value for c in found])
    estimates["mean"] = estimates["gradient"] - estimates["c1"]
    exact = dict(zip(("c1", "c2", "c3"), truth.constants, strict=True))
    for name, values in estimates.items():
        error = values.std(ddof=1) / np.sqrt(count)
        wanted = exact[name] if name in exact else getattr(truth, name)
        assert abs(values.mean() - wanted) < 3 * error, name
    covered = np.mean([c.g_star.low <= star <= c.g_star.high for c in found])
    assert 0.90 <= covered <= 0.98


def test_the_closed_form_is_the_jackknife() -> None:
    pilot = World(0.5).pilot(np.random.default_rng(2), 12, 8)
    found, count = estimate_constants(pilot), 12
    without = np.array([error_moments(pilot, 1 - np.eye(count)[b]).constants for b in range(count)])
    for k, interval in enumerate((found.c1, found.c2, found.c3)):
        half = student.ppf(0.975, 11) * np.sqrt(11 / 12 * ((without[:, k] - without[:, k].mean()) ** 2).sum())
        assert interval.value == pytest.approx(error_moments(pilot).constants[k], rel=1e-12)
        assert interval.high - interval.value == pytest.approx(half, rel=1e-9)


def sure(c1: float, c2: float, c3: float, wide: float = 1.0) -> Constants:
    star = best_group_size(c1, c3)
    parts = [Interval(c, c, c) for c in (c1, c2, c3)]
    return Constants(*parts, Interval(star, star / np.sqrt(wide), star * np.sqrt(wide)))


def test_the_recommendation_is_a_power_of_two_near_the_best() -> None:
    found = recommend(sure(1.0, 120.0, 121.0), 64)
    assert found is not None
    assert found.completions == 16, "12 lies between 8 and 16, nearer to 16 on a log scale"
    assert found.low <= 12 <= found.high
    narrow = recommend(sure(1.0, 0.0, 4.0), 64)
    assert narrow is not None
    assert (narrow.completions, narrow.low, narrow.high) == (3, 3, 3), "no power of two loses less than 2 %"
    assert recommend(sure(1.0, 120.0, 121.0, wide=4.1), 64) is None
    assert recommend(sure(1.0, 120.0, 121.0), 15) is None
    assert recommend(sure(0.0, 120.0, 121.0), 64) is None, "an interval that is infinite at both ends"


def test_prompts_that_do_not_differ_have_no_largest_group() -> None:
    assert best_group_size(0.0, 1.0) == float("inf")
    assert np.isnan(best_group_size(1.0, 0.0))
    assert critical_batch((1.0, 1.0, 1.0), 4, 0.0) == float("inf")


def test_too_small_a_pilot_is_refused() -> None:
    world, rng = World(0.3), np.random.default_rng(0)
    with pytest.raises(ValueError, match="three are needed"):
        estimate_constants(world.pilot(rng, 2, 8))
    with pytest.raises(ValueError, match="four completions"):
        estimate_constants(world.pilot(rng, 8, 3))


def test_completions_go_where_the_noise_is() -> None:
    world, rng = World(0.0), np.random.default_rng(1)
    moments = world.pilot(rng, 20, 16).prompts
    oracle = np.array([m.spread - m.gradient for m in moments])
    whole = allocation(oracle, 160)
    assert whole.sum() == 160
    assert whole.min() >= 2
    noise = np.maximum(oracle, 0)
    assert (noise / whole).sum() <= (noise / 8).sum()
    with pytest.raises(ValueError, match="at least 40"):
        allocation(oracle, 39)
