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
    """Moments of one prompt from its Gram matrix [G, G] and rewards [G]; every product uses distinct completions.

    spread: K_ii (Z_i − Z_j)(Z_i − Z_k), i, j, k distinct. product: K_ii times the sample variance of the others.
    gradient: the mean of h_ij · h_kl over disjoint pairs, h_ij = ½ (S_i − S_j)(Z_i − Z_j): the square of ĝ without
    the terms that share a completion. Closed forms of all three, O(G²) and one product of G × G matrices.
    """
    z, norms = np.asarray(rewards, dtype=np.float64), np.diag(gram).astype(np.float64)
    count, nan = len(z), float("nan")
    weights = baseline_weights(z, "loo") if count > 1 else np.zeros(count)
    norm = float(weights @ gram @ weights)
    spread = product = gradient = nan
    if count >= 3:
        difference = z[:, None] - z[None, :]
        first, second = difference.sum(1), (difference**2).sum(1)
        spread = float((norms * (first**2 - second)).mean() / ((count - 1) * (count - 2)))
        rest = (z.sum() - z) / (count - 1)
        variance_of_others = ((z**2).sum() - z**2 - (count - 1) * rest**2) / (count - 2)
        product = float((norms * variance_of_others).mean())
    if count >= 4:
        # R_i = Σ_j h_ij as weights on the scores; pairs that share i appear in ‖R_i‖², equal pairs twice
        shared = 0.5 * (z[None, :] - z[:, None])
        np.fill_diagonal(shared, 0.5 * (count * z - z.sum()))
        rows = np.einsum("ij,jk,ik->", shared, gram, shared, optimize=True)
        distance = norms[:, None] + norms[None, :] - 2 * gram
        same = 0.125 * float((distance * (z[:, None] - z[None, :]) ** 2).sum())
        pairs = comb(count, 2)
        gradient = float((pairs**2 * norm - rows + same) / (pairs * comb(count - 2, 2)))
    return PromptMoments(
        score=float(norms.mean()),
        spread=spread,
        product=product,
        square=float((norms * z**2).mean()),
        linear=float((norms * z).mean()),
        gradient=gradient,
        value=float(z.mean()),
        variance=float(z.var(ddof=1)) if count > 1 else nan,
        norm=norm,
    )
