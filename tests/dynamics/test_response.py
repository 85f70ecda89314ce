"""Step responses: the gain that was simulated is found, and noise is not read as an answer."""

from __future__ import annotations

import numpy as np
import pytest

from delphic.dynamics.response import Branch, curve_basis, fit_response, reward_change
from delphic.dynamics.stability import Lag, spectral_radius


def branches(gain: float, noise: float, seed: int, momentum: float = 0.0, averaged: bool = False) -> list[Branch]:
    rng = np.random.default_rng(seed)
    out = []
    for factor in (1.0, 4.0):
        mean = curve_basis(np.array([gain]), factor, 8, momentum, averaged)[0] @ [1.0, 0.3 if momentum else 0.0]
        out.append(Branch(factor, [m + noise * rng.normal(size=16) for m in mean]))
    return out


@pytest.mark.parametrize(("momentum", "averaged"), [(0.0, False), (0.9, False), (0.9, True)])
def test_the_curve_decays_as_the_stability_maps_own_root(momentum: float, averaged: bool) -> None:
    gain = 0.02
    curve = curve_basis(np.array([gain]), 1.0, 4001, momentum, averaged)[0, :, 0]
    rate = (np.abs(curve[3000:]).max() / np.abs(curve[2000:3001]).max()) ** (1 / 1000)
    assert rate == pytest.approx(spectral_radius(gain, Lag(momentum=momentum, averaged=averaged)), abs=2e-3)


@pytest.mark.parametrize(("gain", "swings"), [(0.1, False), (0.4, True)])
def test_a_clear_response_gives_the_gain_and_says_whether_it_swings(gain: float, swings: bool) -> None:
    found = fit_response(branches(gain, 0.1, 0), 0.0, False)
    assert found.low <= gain <= found.high
    assert found.high - found.low < 0.1
    assert found.swings is swings
    assert ("does not swing" in found.sentence) is not swings
    assert found.misfit < 3


def test_momentum_is_part_of_the_curve() -> None:
    found = fit_response(branches(0.2, 0.05, 1, 0.9, True), 0.9, True)
    assert found.low <= 0.2 <= found.high


def test_the_interval_covers_and_noise_is_not_read_as_an_answer() -> None:
    """40 responses, 95 % intervals: fewer than 33 covering comes once in 1,400 (binomial). Without any signal an answer
    that is sure of a decay is allowed 3 times in 20."""
    hits = sum(f.low <= 0.2 <= f.high for f in (fit_response(branches(0.2, 0.4, s), 0.0, False) for s in range(40)))
    assert hits >= 33
    rng = np.random.default_rng(9)
    sure = 0
    for _ in range(20):
        noise = [Branch(f, [rng.normal(size=16) for _ in range(8)]) for f in (1.0, 4.0)]
        sure += not fit_response(noise, 0.0, False).sentence.startswith("cannot tell")
    assert sure <= 3
    with pytest.raises(ValueError, match="two prompts"):
        fit_response([Branch(1.0, [np.ones(1)])], 0.0, False)


def test_the_change_of_reward_covers_what_was_put_in() -> None:
    """400 pairs, 95 % intervals: fewer than 364 covering comes once in 3,400 (binomial). The first step, before any update
    at either rate, does not count."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(400):
        own, raised = ([rng.beta(0.5, 0.5, 16) for _ in range(5)] for _ in range(2))
        raised = [raised[0] + 100, *(v - 0.1 for v in raised[1:])]
        found = reward_change(own, raised)
        hits += found.low <= -0.1 <= found.high
    assert hits >= 364
    assert reward_change([np.ones(4)] * 3, [np.zeros(4)] * 3).excludes_zero
