"""The CDF of a weighted χ² sum: closed forms, Imhof's integral by quadrature, and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import chi2, expon, gamma, kstest

from delphic.statistics.weighted_chi2 import weighted_chi2_cdf, weighted_chi2_quantile

POINTS = np.logspace(-6, 3, 200)


def test_one_weight_is_a_scaled_chi2() -> None:
    assert weighted_chi2_cdf(POINTS, np.array([0.7])) == pytest.approx(chi2.cdf(POINTS / 0.7, 1), abs=1e-13)


def test_two_equal_weights_are_exponential() -> None:
    assert weighted_chi2_cdf(POINTS, np.array([2.0, 2.0])) == pytest.approx(expon.cdf(POINTS, scale=4), abs=1e-13)


@pytest.mark.parametrize("count", [3, 5, 20, 50, 200, 500])
def test_equal_weights_are_a_gamma(count: int) -> None:
    law = gamma(count / 2, scale=0.6)
    points = np.concatenate([law.ppf(np.linspace(1e-4, 1 - 1e-4, 101)), 0.3 * count * np.array([0.1, 1, 10, 1e6])])
    assert weighted_chi2_cdf(points, np.full(count, 0.3)) == pytest.approx(law.cdf(points), abs=1e-12)


def test_pairs_of_weights_are_a_sum_of_exponentials() -> None:
    """Means a ≠ b of two exponentials: F = 1 − (a e^(−x/a) − b e^(−x/b))/(a − b)."""
    a, b = 6.0, 0.02
    exact = 1 - (a * np.exp(-POINTS / a) - b * np.exp(-POINTS / b)) / (a - b)
    assert weighted_chi2_cdf(POINTS, np.array([a, b, b, a]) / 2) == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("weights", [[3, 1, 0.2, 0.01], [1, 0.9, 0.5, 0.5, 0.1], [1] + [0.01] * 60])
def test_unequal_weights_agree_with_imhofs_integral(weights: list[float]) -> None:
    w = np.array(weights)

    def integrand(u: float, x: float) -> float:
        angle = 0.5 * float(np.arctan(w * u).sum()) - 0.5 * x * u
        return float(np.sin(angle) / (u * np.exp(0.25 * np.log1p((w * u) ** 2).sum())))

    for x in w.sum() * np.array([0.3, 1.0, 3.0]):
        exact = 0.5 - quad(integrand, 0, 3000, args=(x,), limit=20_000)[0] / np.pi
        assert float(weighted_chi2_cdf(x, w)) == pytest.approx(exact, abs=1e-7)  # the integral is cut at 3,000


def test_simulated_sums_follow_it() -> None:
    """Kolmogorov–Smirnov at level 1e-4 with a fixed seed."""
    w = np.array([1.0, 0.3, 0.05])
    sample = np.random.default_rng(5).chisquare(1, (5_000, 3)) @ w
    assert kstest(sample, lambda x: weighted_chi2_cdf(x, w)).pvalue > 1e-4
    assert kstest(sample, lambda x: weighted_chi2_cdf(x, 1.3 * w)).pvalue < 1e-4


@pytest.mark.parametrize("weights", [[2.0], [1.0, 0.01], [0.2] * 9, [1.0, 0.0, 0.5]])
def test_the_quantile_inverts_the_cdf(weights: list[float]) -> None:
    levels = np.array([[1e-4, 0.1, 0.5], [0.9, 0.99, 0.9999]])
    found = weighted_chi2_quantile(levels, np.array(weights))
    assert weighted_chi2_cdf(found, np.array(weights)) == pytest.approx(levels, abs=1e-11)


def test_ends_and_bad_input() -> None:
    ends = weighted_chi2_cdf(np.array([-1.0, 0.0, np.inf, np.nan]), np.array([1.0, 2.0]))
    assert ends == pytest.approx([0, 0, 1, np.nan], nan_ok=True)
    for bad in ([], [0.0], [1.0, -1.0], [np.inf]):
        with pytest.raises(ValueError, match="weights"):
            weighted_chi2_cdf(1.0, np.array(bad))
    with pytest.raises(ValueError, match="level"):
        weighted_chi2_quantile(1.0, np.array([1.0]))
