"""The best group size: its formula by search, its estimate without bias, its interval with the coverage it claims."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delphic.statistics.group_size import (
    Pilot,
    allocation,
    best_group_size,
    cost_aware_group_size,
    critical_batch,
    error_moments,
    estimate_constants,
    flat_range,
    noise_split,
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

    def truth(self, prompts: int = 30_000) -> np.ndarray:
        rng = np.random.default_rng(99)
        gradients, c2, c3 = [], [], []
        for _ in range(prompts):
            p, scores, z = self.prompt(rng)
            value, norms = p @ z, (scores**2).sum(1)
            g = (p * (z - value)) @ scores
            gradients.append(g)
            c2.append(p @ (norms * (z - value) ** 2) - g @ g)
            c3.append((p @ norms) * (p @ (z - value) ** 2) + g @ g)
        g = np.array(gradients)
        squares = (g**2).sum(1)
        mean2 = (g.sum(0) @ g.sum(0) - squares.sum()) / (prompts * (prompts - 1))
        return np.array([squares.mean() - mean2, np.mean(c2), np.mean(c3)])

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


@pytest.mark.parametrize("common", [0.3, 0.8])
def test_constants_are_unbiased_and_the_interval_covers(common: float) -> None:
    """300 pilots of 32 × 8: means within four standard errors (false-failure rate 6e-5 each); coverage of G* within
    [0.90, 0.985], which 300 intervals of true coverage 0.95 leave with chance 2e-4."""
    world = World(common)
    truth = world.truth()
    rng = np.random.default_rng(7)
    found, covered = [], 0
    wanted = best_group_size(truth[0], truth[2])
    for _ in range(300):
        pilot = world.pilot(rng, 32, 8)
        constants = estimate_constants(pilot)
        found.append(error_moments(pilot).constants)
        covered += constants.g_star.low <= wanted <= constants.g_star.high
    errors = np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(np.mean(found, axis=0) - truth) < 4 * errors).all()
    assert 0.90 <= covered / 300 <= 0.985


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
    whole = allocation(moments, 160)
    assert whole.sum() == 160
    assert whole.min() >= 2
    noise = np.maximum([m.spread - m.gradient for m in moments], 0)
    assert (noise / whole).sum() <= (noise / 8).sum()
    with pytest.raises(ValueError, match="at least 40"):
        allocation(moments, 39)
