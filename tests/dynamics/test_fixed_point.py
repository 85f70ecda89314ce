"""Fixed points against running the recursion, slopes against differences, cycles against both."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit

from delphic.dynamics.fixed_point import FixedPoint, Recursion, fixed_points, stiffness, two_cycles


@pytest.mark.parametrize("reference", [0.05, 0.3, 0.8])
def test_mean_only_has_one_fixed_point_in_closed_form(reference: float) -> None:
    (point,) = fixed_points(Recursion(reference, 0.5, scaled=False))
    assert point.value == pytest.approx(expit(logit(reference) + 2), abs=1e-12)
    assert point.slope == 0
    assert stiffness(Recursion(reference, 0.5, scaled=False), point) == pytest.approx(
        0.5 * point.value * (1 - point.value)
    )


@pytest.mark.parametrize("recursion", [Recursion(0.3, 2.0), Recursion(0.1, 1.0, 3.0), Recursion(0.6, 5.0)])
def test_stable_points_attract_and_lie_above_the_reference(recursion: Recursion) -> None:
    points = fixed_points(recursion)
    assert points
    for point in points:
        assert point.value > recursion.reference
        assert float(recursion(point.value)) == pytest.approx(point.value, abs=1e-10)
        h = 1e-6 * point.value * (1 - point.value)
        slope = float(recursion(point.value + h) - recursion(point.value - h)) / (2 * h)
        assert point.slope == pytest.approx(slope, abs=1e-4)
        near = recursion.path(point.value + 1e-4 * (1 - point.value), 200)[-1]
        assert (abs(float(near) - point.value) < 1e-6) == point.stable


def test_two_cycles_are_where_the_recursion_ends_when_its_fixed_point_repels() -> None:
    found = [
        (r, two_cycles(r)) for r in (Recursion(p, b, epsilon=0.01) for p in (0.001, 0.01, 0.05) for b in (1, 1.5, 2, 3))
    ]
    cycling = [(r, cycles) for r, cycles in found if cycles]
    assert cycling, "a low reference with a moderate anchor swings"
    for recursion, cycles in cycling:
        for p, q in cycles:
            assert float(recursion(p)) == pytest.approx(q, abs=1e-9)
            assert float(recursion(q)) == pytest.approx(p, abs=1e-9)
            assert p < q
        if not any(f.stable for f in fixed_points(recursion)):
            tail = np.sort(recursion.path(0.3, 2000)[-2:])
            assert min(abs(tail - np.array(c)).max() for c in cycles) < 1e-6


def test_mirror_descent_has_no_fixed_point_and_goes_to_one() -> None:
    mirror = Recursion(0.2, 0.0, 1.0)
    assert fixed_points(mirror) == []
    assert two_cycles(mirror) == []
    path = mirror.path(0.2, 30)
    assert (np.diff(path) >= 0).all()
    assert path[-1] > 0.999


def test_stiffness_is_the_slope_of_the_bandits_own_update() -> None:
    """One logit x, p = σ(x): expected update v·Ω(p) − β·v·(x − x_ref), v = p(1−p); K = −d(update)/dx at p*."""
    for recursion in (Recursion(0.3, 2.0), Recursion(0.3, 0.5, scaled=False)):
        point = fixed_points(recursion)[0]
        assert point.stable

        def update(x: float, r: Recursion = recursion) -> float:
            p = float(expit(x))
            return p * (1 - p) * (float(r.gap(p)) - r.to_reference * (x - float(logit(r.reference))))

        x = float(logit(point.value))
        seen = -(update(x + 1e-5) - update(x - 1e-5)) / 2e-5
        assert stiffness(recursion, point) == pytest.approx(seen, rel=1e-5)
    with pytest.raises(ValueError, match="reference alone"):
        stiffness(Recursion(0.3, 1.0, 1.0), FixedPoint(0.5, 0.0))


@pytest.mark.parametrize("wrong", [(0.0, 1.0, 0.0), (0.3, 0.0, 0.0), (0.3, -1.0, 2.0)])
def test_impossible_recursions_are_refused(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        Recursion(*wrong)
