"""Shares and means with their exact intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, ttest_1samp

from delphic.statistics.interval import Interval, mean_interval, share


@pytest.mark.parametrize(("hits", "count"), [(0, 7), (3, 10), (95, 100), (12, 12)])
def test_a_share_has_its_clopper_pearson_interval(hits: int, count: int) -> None:
    found = share(hits, count)
    assert found.value == hits / count
    if hits:
        assert binom.sf(hits - 1, count, found.low) == pytest.approx(0.025)
    if hits < count:
        assert binom.cdf(hits, count, found.high) == pytest.approx(0.025)


def test_excluding_zero_is_strict() -> None:
    assert Interval(1.0, 0.5, 2.0).excludes_zero
    assert Interval(-1.0, -2.0, -0.1).excludes_zero
    assert not Interval(1.0, 0.0, 2.0).excludes_zero


def test_a_mean_has_students_interval() -> None:
    values = np.random.default_rng(0).normal(1, 2, 7)
    found, ends = mean_interval(values, 0.9), ttest_1samp(values, 0).confidence_interval(0.9)
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high))
