"""How far from the optimum: Δ_n = J* − J(π_n) after n stochastic gradient steps (theory section 1).

Bounds on E Δ_n for an L-smooth J with the Polyak–Łojasiewicz inequality ‖g‖² ≥ 2μΔ and an unbiased gradient of mean
squared error at most M; and, for steps β/i, the limit law nΔ_n → Σ_k w_k χ²₁. The limit also holds where J has flat
directions (an over-parametrised policy): they cost nothing. Both from arXiv 2603.01162; held against exact recursions
and simulation in the tests.

They speak of unbiased gradients. Of the group baselines that is the leave-one-out one, not the group mean that counts
the completion itself (its reward gradient shrinks by (G−1)/G, which moves the optimum of a regularised objective).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

UNBIASED = ("vanilla", "loo", "oracle")
FLAT = 1e-9  # curvature below this share of the largest is a flat direction


@dataclass(frozen=True)
class Landscape:
    """L (smoothness), μ (PL: ‖g‖² ≥ 2μΔ) and M (the largest E‖ĝ − g‖² on the way). For a quadratic: the largest and
    the smallest curvature that is not 0.

    Raises:
        ValueError: unless 0 < μ ≤ L and M ≥ 0.
    """

    smoothness: float
    pl: float
    error: float

    def __post_init__(self) -> None:
        if not 0 < self.pl <= self.smoothness or not self.error >= 0:
            raise ValueError(
                f"a bound needs 0 < μ ≤ L and M ≥ 0, got μ = {self.pl:g}, L = {self.smoothness:g}, M = {self.error:g}"
            )


def constant_step_bound(land: Landscape, step: float, start: float, steps: int | np.ndarray) -> np.ndarray:
    """E Δ_n ≤ (1 − 2μβ + Lμβ²)ⁿ E Δ₀ + Lβ²M/(4μβ − 2Lμβ²) for the constant step β, n = `steps`.

    The paper asks for β < 1/(2L); the recursion Δ ← factor·Δ + ½Lβ²M holds for all β < 2/L (derived), so that is asked
    here. For a quadratic with L = μ the recursion is an equality, and so is the bound as n → ∞.

    Raises:
        ValueError: β outside (0, 2/L).
    """
    L, mu = land.smoothness, land.pl
    if not 0 < step < 2 / L:
        raise ValueError(f"the bound for a constant step needs 0 < β < 2/L = {2 / L:g}, got {step:g}")
    factor = 1 - 2 * mu * step + L * mu * step**2
    floor = L * step**2 * land.error / (4 * mu * step - 2 * L * mu * step**2)
    return factor ** np.asarray(steps, dtype=np.float64) * start + floor


def decaying_step_limit(land: Landscape, step: float) -> float:
    """limsup n·E Δ_n ≤ Lβ²M/(4μβ − 2) for steps β/i: the (1+ε)Lβ²M/((4μβ−2)n) of the paper as n → ∞.

    Raises:
        ValueError: β ≤ 1/(2μ), where the gap falls more slowly than 1/n.
    """
    check_decaying(step, land.pl)
    return land.smoothness * step**2 * land.error / (4 * land.pl * step - 2)


def check_decaying(step: float, curvature: float) -> None:
    """ValueError unless β > 1/(2μ)."""
    if not step > 1 / (2 * curvature):
        raise ValueError(
            f"steps β/i reach the rate 1/n only with β > 1/(2μ) = {1 / (2 * curvature):g} "
            f"(μ: the smallest curvature), got {step:g}"
        )


def decaying_step_bound(land: Landscape, step: float, start: float, steps: int) -> np.ndarray:
    """[n] bounds on E Δ_1 … E Δ_n for steps b = β/i: Δ_i ≤ (1 − 2μb + Lμb²) Δ_{i−1} + ½Lb²M.

    While b > 2/L the gradient helps no longer and PL gives nothing; then ‖g‖² ≤ 2LΔ gives the factor (1 − Lb)² (derived).
    n times the last one tends to `decaying_step_limit`. An equality for a quadratic with L = μ.

    Raises:
        ValueError: β ≤ 1/(2μ).
    """
    L, mu = land.smoothness, land.pl
    check_decaying(step, mu)
    bounds, gap = np.empty(steps), start
    for i in range(steps):
        b = step / (i + 1)
        factor = 1 - 2 * mu * b + L * mu * b**2 if b <= 2 / L else (1 - L * b) ** 2
        gap = factor * gap + 0.5 * L * b**2 * land.error
        bounds[i] = gap
    return bounds


@dataclass(frozen=True)
class EnumeratedPrompt:
    """A prompt whose completions can all be listed (A of them; a noisy reward makes several of one completion).

    chance: f(x) · chances: [A] π(y|x) · scores: [A, D] ∇ log π(y|x) · rewards: [A] Z · exact: [D] what is added to this
    prompt's gradient without noise, as the exact gradient of a penalty (0 where there is none).
    """

    chance: float
    chances: np.ndarray
    scores: np.ndarray
    rewards: np.ndarray
    exact: np.ndarray | float = 0.0


def completion_noise(prompt: EnumeratedPrompt, estimator: str, completions: int) -> np.ndarray:
    """[D, D] covariance of one prompt's gradient estimate from G completions; its trace is the error of theory section 1.

    oracle (E[SSᵀ(Z−V)²] − ggᵀ)/G · vanilla (E[SSᵀZ²] − ggᵀ)/G · loo: oracle + (E[SSᵀ]·Var Z + ggᵀ)/(G(G−1)).

    Raises:
        ValueError: an estimator that is not in UNBIASED, or "loo" with G < 2.
    """
    if estimator not in UNBIASED:
        raise ValueError(f'the gap has no limit for "{estimator}"; {", ".join(UNBIASED)}')
    if estimator == "loo" and completions < 2:
        raise ValueError('"loo" compares completions of a prompt; it needs two')
    p, S, z = prompt.chances, prompt.scores, prompt.rewards
    value = float(p @ z)
    g = S.T @ (p * z)
    centred = z if estimator == "vanilla" else z - value
    noise = (S.T @ (S * (p * centred**2)[:, None]) - np.outer(g, g)) / completions
    if estimator == "loo":
        fisher = S.T @ (S * p[:, None])
        noise += (fisher * float(p @ (z - value) ** 2) + np.outer(g, g)) / (completions * (completions - 1))
    return noise


def noise_covariance(prompts: Sequence[EnumeratedPrompt], estimator: str, batch: int, completions: int) -> np.ndarray:
    """Γ [D, D]: covariance of the gradient of a step of B independent prompts × G completions.

    Between prompts Cov(g(x) + exact(x)), within E[`completion_noise`], both over B. An over-parametrised policy that is
    optimal at every prompt has nothing between prompts at its optimum.
    """
    f = np.array([prompt.chance for prompt in prompts])
    gradients = np.array([p.scores.T @ (p.chances * p.rewards) + p.exact for p in prompts])
    centred = gradients - f @ gradients
    noise = centred.T @ (centred * f[:, None])
    for prompt in prompts:
        noise += prompt.chance * completion_noise(prompt, estimator, completions)
    return noise / batch


def gap_weights(hessian: np.ndarray, noise: np.ndarray, step: float) -> np.ndarray:
    """w, largest first, of the limit nΔ → Σ_k w_k χ²₁ with steps β/i: one weight per direction that is not flat.

    w = eigenvalues of ½ Σ^½ diag(λ) Σ^½, λ = eig(−H*) on those directions, Q their basis, Σ_jk = Λ_jk/(β(λ_j+λ_k)−1),
    Λ = β² QᵀΓQ. The mean of the limit is Σ_k w_k.

    Args:
        hessian: H* [D, D] at the optimum. noise: Γ [D, D] there.

    Raises:
        ValueError: H* is no maximum's, has only flat directions, or β ≤ 1/(2 min λ).
    """
    curvatures, basis = np.linalg.eigh(-np.asarray(hessian, dtype=np.float64))
    scale = float(np.abs(curvatures).max())
    if scale == 0 or curvatures[0] < -FLAT * scale:
        raise ValueError("the Hessian at a maximum has no positive eigenvalue, and one that is negative")
    kept = curvatures > FLAT * scale
    curvature, Q = curvatures[kept], basis[:, kept]
    check_decaying(step, float(curvature[0]))
    spread = step**2 * (Q.T @ noise @ Q) / (step * (curvature[:, None] + curvature[None, :]) - 1)
    root = np.sqrt(curvature)  # eigenvalues of λ^½ Σ λ^½ are those of Σ^½ λ Σ^½, without a matrix root
    weights = np.linalg.eigvalsh(0.5 * root[:, None] * spread * root[None, :])[::-1]
    return np.maximum(weights, 0.0)


def estimator_weights(
    prompts: Sequence[EnumeratedPrompt], hessian: np.ndarray, step: float, batch: int, completions: int
) -> dict[str, np.ndarray]:
    """`gap_weights` of the gradients without a baseline, with the leave-one-out one, and with the true value.

    At a fixed number of prompts B the weights of "loo" exceed the oracle's by O(G⁻²), those of "vanilla" by O(G⁻¹).
    """
    return {name: gap_weights(hessian, noise_covariance(prompts, name, batch, completions), step) for name in UNBIASED}
