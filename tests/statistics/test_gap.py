"""Bounds against exact recursions, noise against enumeration, the limit's weights against a Lyapunov solver."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import solve_continuous_lyapunov
from test_ustatistic import Policy

from delphic.statistics.gap import (
    UNBIASED,
    EnumeratedPrompt,
    Landscape,
    completion_noise,
    constant_step_bound,
    decaying_step_bound,
    decaying_step_limit,
    estimator_weights,
    gap_weights,
    noise_covariance,
)
from delphic.statistics.ustatistic import baseline_weights


def quadratic(curvature: np.ndarray, noise: np.ndarray, start: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """[n] exact E Δ of −½ Σ λ x²: E x² ← (1 − bλ)² E x² + b²γ."""
    square, out = start**2, []
    for b in steps:
        square = (1 - b * curvature) ** 2 * square + b**2 * noise
        out.append(0.5 * float(curvature @ square))
    return np.array(out)


NOISE, START = np.array([0.5, 2.0, 1.0]), np.array([1.0, -0.3, 2.0])
N = 400


@pytest.mark.parametrize("share", [0.05, 0.25, 0.6, 0.99])  # of 2/L
@pytest.mark.parametrize("ratio", [1.0, 3.0, 30.0])
def test_the_constant_step_bound_holds_and_is_reached(share: float, ratio: float) -> None:
    curvature = np.linspace(1.0, ratio, 3)
    land, step = Landscape(ratio, 1.0, float(NOISE.sum())), share * 2 / ratio
    exact = quadratic(curvature, NOISE, START, np.full(N, step))
    bound = constant_step_bound(land, step, 0.5 * float(curvature @ START**2), np.arange(1, N + 1))
    assert (exact <= bound * (1 + 1e-12)).all()
    if ratio == 1.0:
        assert exact[-1] == pytest.approx(bound[-1], rel=1e-6)
    else:
        assert exact[-1] < 0.6 * bound[-1]


@pytest.mark.parametrize("beta", [0.6, 1.5, 10.0])
@pytest.mark.parametrize("ratio", [1.0, 3.0])
def test_the_decaying_step_bound_holds_and_is_reached(beta: float, ratio: float) -> None:
    curvature = np.linspace(1.0, ratio, 3)
    land = Landscape(ratio, 1.0, float(NOISE.sum()))
    exact = quadratic(curvature, NOISE, START, beta / np.arange(1, N + 1))
    bound = decaying_step_bound(land, beta, 0.5 * float(curvature @ START**2), N)
    assert (exact <= bound * (1 + 1e-12)).all()
    if ratio == 1.0:
        assert exact == pytest.approx(bound, rel=1e-12)


def test_the_decaying_bound_has_its_limit() -> None:
    land = Landscape(4.0, 1.0, 2.0)
    assert 20_000 * decaying_step_bound(land, 1.5, 3.0, 20_000)[-1] == pytest.approx(
        decaying_step_limit(land, 1.5), rel=1e-3
    )


def enumerated(policy: Policy, chance: float = 1.0) -> EnumeratedPrompt:
    return EnumeratedPrompt(chance, policy.p, policy.scores, policy.rewards)


def estimates(policy: Policy, kind: str, size: int) -> list[tuple[float, np.ndarray]]:
    name = "value" if kind == "oracle" else kind
    return [(c, baseline_weights(z, name, policy.value) @ S) for c, S, z in policy.groups(size)]


@pytest.mark.parametrize("kind", UNBIASED)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_noise_of_a_prompt_is_the_enumerated_covariance(kind: str, size: int) -> None:
    policy = Policy(3)
    exact = sum(c * np.outer(e - policy.gradient, e - policy.gradient) for c, e in estimates(policy, kind, size))
    assert completion_noise(enumerated(policy), kind, size) == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("kind", UNBIASED)
def test_the_noise_of_a_step_is_the_enumerated_covariance(kind: str) -> None:
    """One prompt of two, of chances 0.3 and 0.7, then three groups: one third of it."""
    chances, policies = (0.3, 0.7), (Policy(1), Policy(2))
    drawn = [(f * c, e) for f, p in zip(chances, policies, strict=True) for c, e in estimates(p, kind, 3)]
    mean = sum(c * e for c, e in drawn)
    exact = sum(c * np.outer(e - mean, e - mean) for c, e in drawn)
    prompts = [enumerated(p, f) for f, p in zip(chances, policies, strict=True)]
    assert noise_covariance(prompts, kind, 3, 3) == pytest.approx(exact / 3, abs=1e-12)


def test_an_exact_gradient_adds_no_noise_within_prompts() -> None:
    """It can remove the noise between them: here each prompt's gradient is 0."""
    prompts = [EnumeratedPrompt(0.5, p.p, p.scores, p.rewards, -p.gradient) for p in (Policy(1), Policy(2))]
    within = sum(0.5 * completion_noise(p, "loo", 4) for p in prompts)
    assert noise_covariance(prompts, "loo", 1, 4) == pytest.approx(within, abs=1e-14)


def random_problem(flat: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(curvature, basis [D, K], H, Γ) with `flat` directions without curvature or noise."""
    rng = np.random.default_rng(8)
    curvature = np.array([1.0, 1.5, 4.0])
    basis = np.linalg.qr(rng.normal(size=(3 + flat, 3 + flat)))[0][:, :3]
    root = rng.normal(size=(3, 3))
    return curvature, basis, -basis * curvature @ basis.T, basis @ root @ root.T @ basis.T


@pytest.mark.parametrize("flat", [0, 4])
def test_the_weights_solve_the_lyapunov_equation(flat: int) -> None:
    """(βA − ½)Σ + Σ(βA − ½) = β²Γ, and w the eigenvalues of ½ΣA, on the directions that are not flat."""
    curvature, basis, hessian, noise = random_problem(flat)
    drift = 1.5 * np.diag(curvature) - 0.5 * np.eye(3)
    spread = solve_continuous_lyapunov(drift, 1.5**2 * basis.T @ noise @ basis)
    exact = np.sort(np.linalg.eigvals(0.5 * spread @ np.diag(curvature)).real)[::-1]
    assert gap_weights(hessian, noise, 1.5) == pytest.approx(exact, rel=1e-10)


def test_the_weight_of_one_dimension_and_the_mean_of_a_quadratic() -> None:
    lam, gamma, beta = 2.0, 0.7, 0.9
    weight = gap_weights(np.array([[-lam]]), np.array([[gamma]]), beta)
    assert weight == pytest.approx([0.5 * lam * beta**2 * gamma / (2 * beta * lam - 1)], rel=1e-12)
    n = 20_000
    exact = n * quadratic(np.array([lam]), np.array([gamma]), np.ones(1), beta / np.arange(1, n + 1))[-1]
    assert float(weight[0]) == pytest.approx(exact, rel=2e-3)


def excess(kind: str, size: int, scale: float) -> float:
    """Relative excess of Σw over the oracle's; `scale` of the gradient of each prompt is left, as noise between them."""
    policies = [Policy(seed) for seed in range(4)]
    prompts = [EnumeratedPrompt(0.25, p.p, p.scores, p.rewards, -(1 - scale) * p.gradient) for p in policies]
    fisher = sum(0.25 * p.scores.T @ (p.scores * p.p[:, None]) for p in policies)
    sums = {k: float(w.sum()) for k, w in estimator_weights(prompts, -fisher, 40.0, 2, size).items()}
    return sums[kind] / sums["oracle"] - 1


def test_how_the_excess_over_the_oracle_falls() -> None:
    """Without noise between prompts as 1/(G − 1) and not at all; with it as G^−2 and G^−1 (the oracle's no longer falls)."""
    assert excess("loo", 65, 0.0) == pytest.approx(excess("loo", 2, 0.0) / 64, rel=1e-9)
    assert excess("vanilla", 64, 0.0) == pytest.approx(excess("vanilla", 2, 0.0), rel=1e-9)
    assert excess("loo", 20_000, 1.0) == pytest.approx(excess("loo", 10_000, 1.0) / 4, rel=1e-2)
    assert excess("vanilla", 20_000, 1.0) == pytest.approx(excess("vanilla", 10_000, 1.0) / 2, rel=1e-2)


def test_what_is_refused() -> None:
    land = Landscape(4.0, 1.0, 1.0)
    for bad in (0.0, 0.5, np.nan):
        with pytest.raises(ValueError, match="2/L"):
            constant_step_bound(land, bad, 1.0, 1)
    for call in (lambda: decaying_step_bound(land, 0.5, 1.0, 3), lambda: decaying_step_limit(land, 0.5)):
        with pytest.raises(ValueError, match=r"1/\(2μ\) = 0.5"):
            call()
    with pytest.raises(ValueError, match="0 < μ ≤ L"):
        Landscape(1.0, 2.0, 1.0)
    with pytest.raises(ValueError, match=r"got 0\.5"):
        gap_weights(-np.eye(2), np.eye(2), 0.5)
    for hessian in (np.diag([-1.0, 1.0]), np.zeros((2, 2))):
        with pytest.raises(ValueError, match="maximum"):
            gap_weights(hessian, np.eye(2), 5.0)
    with pytest.raises(ValueError, match="self_inclusive"):
        completion_noise(enumerated(Policy(1)), "self_inclusive", 4)
    with pytest.raises(ValueError, match="two"):
        completion_noise(enumerated(Policy(1)), "loo", 1)
