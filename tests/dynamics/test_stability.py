"""Limits of the recurrence: special cases in closed form, everything else against running it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from delphic.dynamics.oscillator import OVERDAMPED_GAIN, exact_variance, inertial_time, oscillator, response
from delphic.dynamics.stability import (
    Lag,
    closed_form_limit,
    dominant_mode,
    exact_limit,
    gain_from_decay,
    max_interval,
    oscillation_onset,
    spectral_radius,
    stationary_variance,
)
from delphic.training.lag import source_step


def run(rate: float, lag: Lag, steps: int, noise: np.ndarray | None = None) -> np.ndarray:
    """[steps + 1] distances, step by step from the definition."""
    w = [1.0, 1.0]
    scale = rate * (1 - lag.momentum) if lag.averaged else rate
    for t in range(1, steps + 1):
        now, before, sampled = w[t], w[t - 1], w[source_step(t, lag.interval, lag.offset) + 1]
        fresh = now if lag.anchor == "reference" else now - sampled
        w.append(now + lag.momentum * (now - before) - scale * (lag.stiffness * sampled + lag.fresh * fresh))
        if noise is not None:
            w[-1] += noise[t - 1]
        elif abs(w[-1]) > 1e9:
            break
    return np.array(w[1:])


def growth(path: np.ndarray) -> float:
    """Largest distance in the last tenth over that of the tenth before the middle."""
    n = len(path)
    return float(np.abs(path[-n // 10 :]).max() / np.abs(path[4 * n // 10 : n // 2]).max())


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9, 0.99])
def test_special_cases_are_exact(momentum: float) -> None:
    assert exact_limit(Lag(1, 1, momentum)) == pytest.approx(1 - momentum, rel=1e-6)
    assert exact_limit(Lag(1, 0, momentum)) == pytest.approx(2 * (1 + momentum), rel=1e-6)
    assert oscillation_onset(Lag(1, 0, momentum)) == pytest.approx((1 - math.sqrt(momentum)) ** 2, rel=1e-6)
    assert exact_limit(Lag(3, 2, momentum, stiffness=5.0)) == pytest.approx(exact_limit(Lag(3, 2, momentum)) / 5)
    assert exact_limit(Lag(3, 2, momentum, averaged=True)) == pytest.approx(
        exact_limit(Lag(3, 2, momentum)) / (1 - momentum)
    )
    for lag in (2, 7, 33):
        assert exact_limit(Lag(1, lag)) == pytest.approx(2 * math.sin(math.pi / (2 * (2 * lag + 1))), rel=1e-9)
        assert oscillation_onset(Lag(1, lag)) == pytest.approx(lag**lag / (lag + 1) ** (lag + 1), rel=1e-6)
        assert exact_limit(Lag(lag, 0)) == pytest.approx(2 / lag, rel=1e-9)
        assert oscillation_onset(Lag(lag, 0)) == pytest.approx(1 / lag, rel=1e-6)


@pytest.mark.parametrize(
    ("lag", "unit", "limit", "onset"),
    [
        (Lag(1, 16), 16, 1.523, 0.357),
        (Lag(1, 64, 0.9), 64, 1.398, 0.317),
        (Lag(4, 0, 0.9), 4, 2.92, 0.097),
        (Lag(256, 0, 0.9), 256, 2.15, 0.709),
    ],
)
def test_published_table(lag: Lag, unit: int, limit: float, onset: float) -> None:
    x = unit / (1 - lag.momentum)
    assert exact_limit(lag) * x == pytest.approx(limit, rel=0.003)
    assert oscillation_onset(lag) * x == pytest.approx(onset, rel=0.01)


def test_limits_agree_with_running_the_recurrence() -> None:
    rng = np.random.default_rng(0)
    for _ in range(220):
        lag = Lag(
            int(rng.integers(1, 16)),
            int(rng.integers(0, 16)),
            float(rng.choice([0, 0.3, 0.5, 0.9])),
            float(rng.uniform(0.2, 3)),
            float(rng.choice([0, 0, 0.3, 2])),
            "behaviour" if rng.random() < 0.5 else "reference",
            bool(rng.random() < 0.5),
        )
        limit = exact_limit(lag)
        assert math.isfinite(limit), lag
        assert growth(run(0.99 * limit, lag, 6000)) < 1, lag
        assert growth(run(1.01 * limit, lag, 6000)) > 1, lag
        if lag.fresh == 0:
            assert closed_form_limit(lag) <= limit * (1 + 1e-9) or lag.largest == 0, "the closed form is a safe bound"


def test_the_limit_is_not_monotone_in_the_interval() -> None:
    assert exact_limit(Lag(5, 10)) == pytest.approx(0.1236, abs=1e-4)
    assert exact_limit(Lag(6, 10)) == pytest.approx(0.125, abs=1e-4)
    assert max_interval(0.1237, Lag(1, 10)) == 4, "6 would be stable again, 5 is not"


def test_fresh_forces_remove_the_threshold_where_theory_says() -> None:
    """Hold, μ = 0, a very long interval: behaviour anchor stable iff k > K/2; reference anchor iff K < k."""
    for fresh, stable in ((0.45, False), (0.55, True)):
        assert (spectral_radius(0.1, Lag(500, 0, fresh=fresh, anchor="behaviour")) < 1) is stable
    for fresh, stable in ((0.95, False), (1.05, True)):
        assert (spectral_radius(0.1, Lag(500, 0, fresh=fresh)) < 1) is stable
    assert max_interval(0.1, Lag(1, 0, fresh=1.05)) is None
    assert dominant_mode(0.1, Lag(500, 0, fresh=1.05, anchor="behaviour")).regime == "overdamped", "k > K: monotone"
    assert dominant_mode(0.1, Lag(500, 0, fresh=0.7, anchor="behaviour")).regime == "oscillatory"


def test_decay_rates_are_inverted_through_the_lag() -> None:
    for lag in (Lag(1, 16), Lag(8, 0), Lag(4, 5, 0.5), Lag(1, 0, 0.9)):
        gain = 0.5 * oscillation_onset(lag)
        path = np.abs(run(gain, lag, 20 * (lag.largest + 20)))
        m, n = lag.interval, len(path) // 2
        decay = float(np.log(path[n] / path[n + 5 * m]) / (5 * m))
        assert gain_from_decay(decay, lag) == pytest.approx(gain, rel=1e-3)
    assert gain_from_decay(0.01, Lag(1, 16)) == pytest.approx(math.exp(-0.16) * (1 - math.exp(-0.01)), rel=1e-6)
    assert gain_from_decay(1.0, Lag(1, 16)) is None, "a lag of 16 cannot decay that fast without swinging"


def test_dominant_mode_is_that_of_the_path() -> None:
    lag = Lag(1, 6)
    rate = 0.8 * exact_limit(lag)
    mode = dominant_mode(rate, lag)
    path = run(rate, lag, 400)[100:]
    crossings = np.flatnonzero(path[:-1] * path[1:] < 0)
    assert mode.regime == "oscillatory"
    assert mode.period == pytest.approx(2 * np.diff(crossings).mean(), rel=0.02)
    assert 0 < mode.damping_ratio < 1
    assert dominant_mode(1.1 * exact_limit(lag), lag).regime == "unstable"
    assert dominant_mode(1.1 * exact_limit(lag), lag).damping_ratio < 0


def test_stationary_variance_is_that_of_a_long_noisy_run() -> None:
    assert stationary_variance(0.3, Lag(1, 0, 0.5), 2.0) == pytest.approx(exact_variance(0.3, 0.5, 2.0), rel=1e-10)
    noise = np.random.default_rng(1).normal(size=300_000)
    for lag in (Lag(1, 5), Lag(6, 0, 0.5), Lag(3, 4, 0.3, fresh=0.2, anchor="behaviour")):
        rate = 0.5 * exact_limit(lag)
        seen = float(run(rate, lag, len(noise), noise)[1000:].var())
        # false failure below 1e-4: the standard error of the variance is under 1 % here
        assert seen == pytest.approx(stationary_variance(rate, lag, 1.0), rel=0.04)
    assert stationary_variance(3.0, Lag(1, 5), 1.0) == math.inf


def test_closed_forms_follow_the_recurrence_at_small_gain() -> None:
    system = oscillator(0.002, 0.9, 0)
    path = run(0.002, Lag(1, 0, 0.9), 400)
    assert np.abs(response(system, np.arange(401)) - path).max() < 0.02
    assert inertial_time(0.9) == pytest.approx(9.5)
    assert oscillator(0.01, 0.5, 10).regime == "overdamped"
    gain = OVERDAMPED_GAIN * 0.1 / 1e6
    assert oscillator(0.999 * gain, 0.9, 1e6).regime == "overdamped"
    assert oscillator(1.001 * gain, 0.9, 1e6).regime == "oscillatory"
    assert oscillator(1.001 * 0.1 / 1e6, 0.9, 1e6).regime == "unstable"
    assert oscillator(0.2, 0.0, 1.0).variance(1.0, 4) == pytest.approx(1 / (2 * 4 * 0.8 * 0.2))
    swinging = oscillator(0.3, 0.5, 1.5)
    assert swinging.period is not None
    late = response(swinging, np.linspace(0, 5 * swinging.period, 5001))
    assert np.diff(np.flatnonzero(late[:-1] * late[1:] < 0)).mean() == pytest.approx(500, rel=0.01), "half a period"
    assert -math.log(abs(late[5000] / late[4000])) == pytest.approx(swinging.rates[0].real * swinging.period, rel=1e-6)


@pytest.mark.parametrize(
    "wrong", [{"interval": 0}, {"offset": -1}, {"momentum": 1.0}, {"stiffness": 0.0}, {"fresh": -1.0}]
)
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        Lag(**wrong)  # type: ignore[arg-type]
