"""The leave-one-out gradient as a U-statistic, its Hoeffding parts, and unbiased moments from a Gram matrix.

Arrays of one prompt: rewards z [G], scores S [G, D] (S_g = ∇ log π(y_g)), Gram matrix K [G, G] = S Sᵀ. All of it in
float64. Theory section 1; the decomposition and the moments marked there as derived are checked by enumeration.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np


def baseline_weights(rewards: np.ndarray, kind: str, value: float = 0.0) -> np.ndarray:
    """[G] w with ĝ = Σ w_g S_g = (1/G) Σ S_g (Z_g − C_g).

    Args:
        kind: "vanilla" C = 0 · "loo" the mean of the others · "self_inclusive" the group mean · "value" C = `value`
            (the oracle's V(x), a critic's V̂(x), the best prompt-only baseline).

    Raises:
        ValueError: another kind, or "loo" with fewer than two completions.
    """
    z = np.asarray(rewards, dtype=np.float64)
    count = len(z)
    if kind == "vanilla":
        return z / count
    if kind == "loo":
        if count < 2:
            raise ValueError("a leave-one-out baseline needs two completions")
        return (z - z.mean()) / (count - 1)
    if kind == "self_inclusive":
        return (z - z.mean()) / count
    if kind == "value":
        return (z - value) / count
    raise ValueError(f'there is no baseline "{kind}"; vanilla, loo, self_inclusive or value')


def u_statistic(scores: np.ndarray, rewards: np.ndarray) -> np.ndarray:
    """[D] C(G,2)⁻¹ Σ_{i<j} ½ (S_i − S_j)(Z_i − Z_j), written out: equal to the leave-one-out gradient."""
    count = len(rewards)
    total = np.zeros(scores.shape[1])
    for i in range(count):
        for j in range(i + 1, count):
            total += 0.5 * (scores[i] - scores[j]) * (rewards[i] - rewards[j])
    return total / comb(count, 2)


@dataclass(frozen=True)
class HoeffdingParts:
    """ĝ(x) = mean + oracle + degenerate, each [D]."""

    mean: np.ndarray
    oracle: np.ndarray
    degenerate: np.ndarray


def hoeffding(scores: np.ndarray, rewards: np.ndarray, value: float, gradient: np.ndarray) -> HoeffdingParts:
    """The parts of the leave-one-out gradient, given the true V(x) and g(x).

    oracle: (1/G) Σ [S_i (Z_i − V) − g], the error of the estimator that knows V. degenerate:
    −(1/(G(G−1))) Σ_{i≠j} S_i (Z_j − V), uncorrelated with it (E[Q | y_i] = 0 because E[S] = 0).
    """
    centred = np.asarray(rewards, dtype=np.float64) - value
    count = len(centred)
    oracle = scores.T @ centred / count - gradient
    others = centred.sum() - centred
    return HoeffdingParts(gradient, oracle, -scores.T @ others / (count * (count - 1)))


@dataclass(frozen=True)
class PromptMoments:
    """Unbiased estimates at one prompt; NaN where there are too few completions (three, and four for `gradient`).

    score: E‖S‖² · spread: E‖S‖²(Z−V)² · product: E‖S‖²·Var Z · square: E‖S‖²Z² · linear: E‖S‖²Z
    gradient: ‖g(x)‖² · value: V(x) · variance: Var Z · norm: ‖ĝ‖² of the leave-one-out gradient itself
    """

    score: float
    spread: float
    product: float
    square: float
    linear: float
    gradient: float
    value: float
    variance: float
    norm: float


def prompt_moments(gram: np.ndarray, rewards: np.ndarray) -> PromptMoments:
    """Moments of one prompt from its Gram matrix [G, G] and rewards [G]; every product uses distinct completions."""
    z = np.asarray(rewards, dtype=np.float64)
    columns = moment_columns(np.diag(gram).astype(np.float64), gram.sum(1, dtype=np.float64), gram @ z, z)
    return PromptMoments(**{name: float(value) for name, value in columns.items()})


def moment_columns(
    norms: np.ndarray, row_sums: np.ndarray, row_rewards: np.ndarray, rewards: np.ndarray
) -> dict[str, np.ndarray]:
    """The fields of `PromptMoments`, each [...], of many prompts at once.

    spread: K_ii (Z_i − Z_j)(Z_i − Z_k), i, j, k distinct. product: K_ii times the sample variance of the others.
    gradient: the mean of h_ij · h_kl over disjoint pairs, h_ij = ½ (S_i − S_j)(Z_i − Z_j): the square of ĝ without
    the terms that share a completion. Closed forms of all three, O(G).

    Args:
        norms: [..., G] K_ii. row_sums: [..., G] (K 1)_i = S_i · Σ S. row_rewards: [..., G] (K z)_i = S_i · Σ z S.
        rewards: [..., G].
    """
    count, value = rewards.shape[-1], rewards.mean(-1)
    z = rewards - value[..., None]  # what is measured around the mean does not change, and large rewards cost no digits
    row_z = row_rewards - value[..., None] * row_sums
    squares = (z**2).sum(-1, keepdims=True)
    zz, one = (z * row_z).sum(-1), row_sums.sum(-1)  # ‖Σ z S‖², ‖Σ S‖²
    nan = np.full(value.shape, np.nan)
    variance, spread, product, gradient, norm = nan, nan, nan, nan, np.zeros(value.shape)
    if count >= 2:
        variance = squares[..., 0] / (count - 1)
        norm = zz / (count - 1) ** 2
    second = count * z**2 + squares  # Σ_j (z_i − z_j)²; Σ_j (z_i − z_j) is G z_i
    if count >= 3:
        spread = (norms * ((count * z) ** 2 - second)).mean(-1) / ((count - 1) * (count - 2))
        variance_of_others = (squares - z**2 * count / (count - 1)) / (count - 2)
        product = (norms * variance_of_others).mean(-1)
    if count >= 4:
        # R_i = Σ_j h_ij = ½ (Σ z S − z_i Σ S + G z_i S_i): pairs that share i appear in ‖R_i‖², equal pairs twice
        own = count * (z * (count * z * norms + 2 * row_z - 2 * z * row_sums)).sum(-1)
        rows = 0.25 * (count * zz + squares[..., 0] * one + own)
        same = 0.25 * ((norms * second).sum(-1) - 2 * (z**2 * row_sums).sum(-1) + 2 * zz)
        pairs = comb(count, 2)
        gradient = (pairs**2 * norm - rows + same) / (pairs * comb(count - 2, 2))
    return {
        "score": norms.mean(-1),
        "spread": spread,
        "product": product,
        "square": (norms * rewards**2).mean(-1),
        "linear": (norms * rewards).mean(-1),
        "gradient": gradient,
        "value": value,
        "variance": variance,
        "norm": norm,
    }
