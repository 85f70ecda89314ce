"""Exact facts about the family on small softmax policies, by enumeration: no sampling, float64.

One-token completions throughout: an arm of a bandit is a completion.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from delphic.objective import Objective, StepInputs, Totals, build, coefficients, penalty, prepare, token_weights


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max())
    return e / e.sum()


def scores(pi: np.ndarray) -> np.ndarray:
    """[arms, arms] ∇_z log π(arm) = e_arm − π, one row an arm."""
    return np.eye(len(pi)) - pi


# -- (a) what the KL estimators' gradients do

PI, REF, BEHAVIOUR = softmax(np.array([0.4, -0.3, 0.9])), np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.3, 0.1])
DELTA = np.log(PI / REF)
FORWARD = PI * (DELTA - PI @ DELTA)  # ∇_z KL(π‖ref)
OTHER = PI - REF  # ∇_z KL(ref‖π)


def expected_gradient(estimator: str, corrected: bool, behaviour: np.ndarray) -> np.ndarray:
    factor = penalty.kl_factor(DELTA, PI / behaviour, estimator, corrected)
    return (behaviour * factor) @ scores(PI)


def test_the_two_kl_gradients_are_those_of_the_kls() -> None:
    z, h = np.log(PI), 1e-6
    for gradient, kl in [
        (FORWARD, lambda p: p @ np.log(p / REF)),
        (OTHER, lambda p: REF @ np.log(REF / p)),
    ]:
        numeric = [(kl(softmax(z + h * e)) - kl(softmax(z - h * e))) / (2 * h) for e in np.eye(3)]
        np.testing.assert_allclose(gradient, numeric, atol=1e-9)


def test_k1_and_k3_estimate_the_kl_without_bias() -> None:
    kl = PI @ DELTA
    assert PI @ penalty.kl_value(DELTA, "k1") == pytest.approx(kl, abs=1e-15)
    assert PI @ penalty.kl_value(DELTA, "k3") == pytest.approx(kl, abs=1e-15)
    assert (penalty.kl_value(DELTA, "k3") >= 0).all()


def test_k1_in_the_loss_has_zero_expected_gradient() -> None:
    np.testing.assert_allclose(expected_gradient("k1", False, PI), 0, atol=1e-15)


def test_k2_in_the_loss_descends_kl_of_policy_to_reference() -> None:
    np.testing.assert_allclose(expected_gradient("k2", False, PI), FORWARD, atol=1e-15)


def test_k3_in_the_loss_descends_the_other_kl() -> None:
    np.testing.assert_allclose(expected_gradient("k3", False, PI), OTHER, atol=1e-15)
    assert np.abs(OTHER - FORWARD).max() > 0.05


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("behaviour", [PI, BEHAVIOUR], ids=["on_policy", "off_policy"])
def test_corrected_estimators_descend_the_right_kl_whoever_sampled(estimator: str, behaviour: np.ndarray) -> None:
    np.testing.assert_allclose(expected_gradient(estimator, True, behaviour), FORWARD, atol=1e-15)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_uncorrected_estimators_are_wrong_off_policy(estimator: str) -> None:
    gradient = expected_gradient(estimator, False, BEHAVIOUR)
    assert min(np.abs(gradient - FORWARD).max(), np.abs(gradient - OTHER).max()) > 0.05


# -- (b) stale samples: which policy's gradient a step follows

OLD, NOW, REWARD = np.array([0.3, 0.6, 0.1]), softmax(np.array([0.5, -0.2, 0.3])), np.array([0.0, 0.8, 1.0])


def objective_gradient(pi: np.ndarray) -> np.ndarray:
    """∇_z J(π) for J = π · r."""
    return pi * (REWARD - pi @ REWARD)


def expected_step(objective: Objective, size: int, behaviour: np.ndarray = OLD, now: np.ndarray = NOW) -> np.ndarray:
    """E over all groups of `size` drawn from `behaviour` of the step that the objective takes at `now`."""
    factor, chance, arms = enumerate_groups(objective, size, behaviour, now)
    return np.einsum("pg,p,pgk->k", factor, chance, scores(now)[arms])


def enumerate_groups(
    objective: Objective, size: int, behaviour: np.ndarray, now: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every group of `size` arms: the factors of ∇ log π [P, G], the group's chance [P], its arms [P, G]."""
    arms = np.array(list(itertools.product(range(len(behaviour)), repeat=size)))
    flat = arms.reshape(-1)
    prepared = prepare(objective, StepInputs(REWARD[flat], np.repeat(np.arange(len(arms)), size)))
    mask = np.ones((len(flat), 1))
    log_ratio = np.log(now / behaviour)[flat][:, None]
    factors = coefficients(objective, prepared.coefficient[:, None], mask, log_ratio, mask)
    # every group is a step of its own: G completions of one token
    weight = token_weights(mask, mask, objective.aggregation, Totals(size, size), max_length=1)
    return (weight * factors.policy).reshape(-1, size), behaviour[arms].prod(axis=1), arms


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("importance", ["none", "ratio"])
def test_leave_one_out_follows_the_old_gradient_and_exact_ratios_the_current_one(size: int, importance: str) -> None:
    target = objective_gradient(OLD if importance == "none" else NOW)
    step = expected_step(build({"baseline": "leave_one_out", "importance": importance}), size)
    np.testing.assert_allclose(step, target, atol=1e-12)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("importance", ["none", "ratio"])
def test_the_self_inclusive_mean_shrinks_both_by_g_minus_1_over_g(size: int, importance: str) -> None:
    target = objective_gradient(OLD if importance == "none" else NOW)
    step = expected_step(build({"baseline": "mean", "importance": importance}), size)
    np.testing.assert_allclose(step, target * (size - 1) / size, atol=1e-12)


# -- (c), (d) the limits of learning from fixed data

POPULATION = np.repeat([0, 1, 2], [3, 6, 1])  # ten completions with exactly the shares (.3, .6, .1)


def population_force(choices: dict[str, object], value: float | None = None) -> np.ndarray:
    """[arms] expected A · w of each arm under the data, with the mean of an infinite group as group mean."""
    values = None if value is None else np.full(10, value)
    prepared = prepare(build(choices), StepInputs(REWARD[POPULATION], np.zeros(10, dtype=int), values=values))
    return np.bincount(POPULATION, prepared.coefficient / 10, minlength=3)


def limit(force: np.ndarray, steps: int = 30_000, rate: float = 1.0) -> np.ndarray:
    """Where gradient ascent on Σ force · log π ends, from the policy that made the data."""
    z = np.log(OLD)
    for _ in range(steps):
        z = z + rate * (force - softmax(z) * force.sum())
    return softmax(z)


def test_reinforce_on_fixed_data_ends_at_the_frequent_good_arm_not_the_best() -> None:
    np.testing.assert_allclose(
        limit(population_force({"preset": "reinforce", "baseline": "mean"})), [0, 1, 0], atol=1e-6
    )


def test_red_weight_keeps_some_of_the_best_arm() -> None:
    np.testing.assert_allclose(limit(population_force({"preset": "red_weight"})), [0, 0.884, 0.116], atol=5e-4)


def test_red_weight_with_groups_of_four_keeps_less() -> None:
    factor, chance, arms = enumerate_groups(build("red_weight"), 4, OLD, OLD)
    force = np.bincount(arms.reshape(-1), (factor * chance[:, None]).reshape(-1), minlength=3)
    np.testing.assert_allclose(limit(force), [0, 0.927, 0.073], atol=5e-4)


def test_asymre_with_a_shift_of_a_tenth_ends_at_the_frequent_good_arm() -> None:
    np.testing.assert_allclose(
        limit(population_force({"preset": "asymre", "baseline_shift": 0.1})), [0, 1, 0], atol=1e-6
    )


def asymre_limit(value: float) -> np.ndarray:
    """[a − τ′]₊/(V^μ − V) with a = μ(r − V) and τ′ such that it sums to 1."""
    a, total = OLD * (REWARD - value), OLD @ REWARD - value
    low, high = a.min() - 1, a.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(a - middle, 0).sum() > total else (low, middle)
    return np.maximum(a - low, 0) / total


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, [0, 0.8276, 0.1724]), (0.2, [0, 0.868, 0.132]), (0.4, [0, 1, 0]), (0.5, [0, 1, 0])],
)
def test_asymre_below_the_value_of_the_data_has_a_closed_limit(value: float, expected: list[float]) -> None:
    np.testing.assert_allclose(asymre_limit(value), expected, atol=5e-4)
    # at V = .4 exactly, arm 3 dies like 1/steps; elsewhere exponentially
    reached = limit(population_force({"baseline": "oracle"}, value))
    np.testing.assert_allclose(reached, asymre_limit(value), atol=1e-3)
