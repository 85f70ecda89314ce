"""Drift and noise of group updates: against closed forms and enumeration."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from delphic.objective import build
from delphic.statistics.empirical import group_updates
from delphic.statistics.error import prompt_error
from delphic.statistics.ustatistic import prompt_moments

STD = build({"baseline": "mean", "scale": "std", "scale_epsilon": 0.0})
LOO, MEAN = build({"baseline": "leave_one_out"}), build({"baseline": "mean"})


def std_drift(p: float, size: int) -> float:
    """E u_G / E u_∞ for binary rewards: both lie along g(x). With k of G successes the update's part along E[S | success]
    is k(1 − k/G)/(Gσ) on average, σ the sample deviation; in the limit √(p(1−p))."""
    total = 0.0
    for k in range(1, size):
        share = k / size
        deviation = np.sqrt(share * (1 - share) * size / (size - 1))
        total += comb(size, k) * p**k * (1 - p) ** (size - k) * share * (1 - share) / deviation
    return float(total / np.sqrt(p * (1 - p)))


def pilot(p: float, prompts: int, completions: int, exact: bool, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores that successes and failures share, with noise of their own: rewards [P, G₀], Gram matrices."""
    rng = np.random.default_rng(seed)
    rewards = (rng.random((prompts, completions)) < p).astype(float)
    if exact:
        rewards = np.zeros((prompts, completions))
        rewards[:, : round(p * completions)] = 1
    direction = rng.normal(size=(prompts, 1, 6))
    scores = (rewards[..., None] - p) * direction + 0.3 * rng.normal(size=(prompts, completions, 6))
    return rewards, scores @ scores.transpose(0, 2, 1)


def test_the_closed_form_gives_the_known_shares() -> None:
    assert round(std_drift(0.05, 4), 2) == 0.32
    assert round(std_drift(0.05, 16), 2) == 0.69


def test_std_normalised_steps_shrink_where_successes_are_rare() -> None:
    """Pilots with exactly 5 % successes among 400: the limit is then exact. Seeded."""
    rewards, grams = pilot(0.05, 6, 400, exact=True)
    found = {u.size: u for u in group_updates(STD, rewards, grams, (4, 16), draws=300)}
    assert found[4].drift.value == pytest.approx(0.32, abs=0.03)
    assert found[16].drift.value == pytest.approx(0.69, abs=0.03)


@pytest.mark.parametrize("size", [2, 4, 16])
def test_the_mean_alone_has_no_such_loss(size: int) -> None:
    rewards, grams = pilot(0.3, 24, 32, exact=False)
    (loo,), (mean,) = (group_updates(o, rewards, grams, (size,)) for o in (LOO, MEAN))
    assert loo.drift.value == pytest.approx(1.0, abs=0.02)
    assert mean.drift.value == pytest.approx((size - 1) / size * loo.drift.value, rel=1e-9)
    assert mean.noise == pytest.approx(((size - 1) / size) ** 2 * loo.noise, rel=1e-9)


def test_a_pilot_of_32_reads_the_drift_a_little_too_high() -> None:
    rewards, grams = pilot(0.05, 300, 32, exact=False)
    (found,) = group_updates(STD, rewards, grams, (4,), draws=100)
    assert 0.35 < found.drift.value < 0.52, "as its docstring says"


def test_noise_is_the_error_of_the_leave_one_out_gradient() -> None:
    """Within a prompt: (c₂ + c₃/(G−1))/G of theory section 1, from the prompts' own unbiased moments: two unbiased
    estimates of the same number from the same completions, within 8 %."""
    rewards, grams = pilot(0.4, 100, 32, exact=False)
    moments = [prompt_moments(k, z) for k, z in zip(grams, rewards, strict=True)]
    c2 = np.mean([m.spread - m.gradient for m in moments])
    c3 = np.mean([m.product + m.gradient for m in moments])
    for found in group_updates(LOO, rewards, grams, (2, 4, 8), draws=200):
        assert found.noise == pytest.approx(float(prompt_error((0.0, c2, c3), found.size)), rel=0.08)


def test_what_the_pilot_cannot_tell_is_refused() -> None:
    rewards, grams = pilot(0.4, 4, 8, exact=False)
    with pytest.raises(ValueError, match="half of the pilot's 8 completions, not 5"):
        group_updates(STD, rewards, grams, (2, 5))
    with pytest.raises(ValueError, match="no infinite-group limit"):
        group_updates(build("red_drop"), rewards, grams, (2,))
    (silent,) = group_updates(STD, np.zeros((4, 8)), grams, (2,))
    assert np.isnan(silent.drift.value)
