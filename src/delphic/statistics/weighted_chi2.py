"""The distribution of Σ_k w_k χ²₁ with weights w_k ≥ 0 and independent χ²₁: the CDF and its inverse.

The CDF is the inverse Laplace transform of Π_k (1 + 2 w_k s)^(−½) / s: a pole at 0 and branch points on the negative
axis. Imhof (1961, Biometrika 48:419) integrates along the imaginary axis, where a single weight decays as u^(−3/2) only.
Here the contour is a parabola around the branch points (Weideman & Trefethen 2007, Math. Comp. 76:1341) through a
saddle point of the integrand: the one right of the pole below the mean, the one left of it (and 1 for the pole) above.
Nothing oscillates much there, and the trapezoidal rule converges geometrically.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import chdtri

BRANCH = 0.5  # weights are scaled to a largest one of 1, so the first branch point is at −1/2


def positive_weights(weights_K: np.ndarray) -> np.ndarray:
    """The weights that are not 0, as float64.

    Raises:
        ValueError: a weight that is negative or not finite, or no weight above 0.
    """
    w = np.asarray(weights_K, dtype=np.float64).ravel()
    if not np.isfinite(w).all() or (w < 0).any() or not (w > 0).any():
        raise ValueError("the weights of a χ² sum must be finite and not negative, and one of them above 0")
    return w[w > 0]


def saddle(x_N: np.ndarray, weights_K: np.ndarray) -> np.ndarray:
    """[N, 1] distance from the branch point of the s that nearly minimises |e^(sx) Π (1 + 2ws)^(−½) / s|.

    The contour may miss the saddle by a little, so a few bisections do. The largest weight is 1.
    """
    upper = x_N > weights_K.sum()
    low = np.where(upper, BRANCH / (x_N + 4), BRANCH + 1 / x_N)
    high = np.where(upper, BRANCH, BRANCH + (1 + len(weights_K) / 2) / x_N)
    for _ in range(12):
        middle = np.sqrt(low * high)
        s = middle - BRANCH
        rising = x_N - 1 / s - sum(w / (1 + 2 * w * s) for w in weights_K) > 0
        low, high = np.where(rising, low, middle), np.where(rising, middle, high)
    return np.sqrt(low * high)[:, None]


def contour(x_N: np.ndarray, distance_N: np.ndarray, weights_K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[N] each: how far to go along s = distance·(1 + iv)² − 1/2, and in which steps, for errors near rounding.

    The integrand falls as e^(−rate·v²) near the saddle and e^(−x·distance·v²) far from it. The step is a share of that
    width and of the distance in v to the pole (at the saddle of a long sum, both shrink as 1/√K) and the branch point.
    """
    s = distance_N - BRANCH
    bend = 1 / s**2 + sum(2 * w**2 / (1 + 2 * w * s) ** 2 for w in weights_K)
    rate = 2 * distance_N**2 * bend
    pole = np.abs(1 - np.sqrt(BRANCH / distance_N))
    reach = 6.5 / np.sqrt(np.minimum(rate, x_N * distance_N))  # e^(−42)
    return reach, np.minimum(np.minimum(0.15, pole / 6), 0.35 / np.sqrt(rate))


def weighted_chi2_cdf(x: float | np.ndarray, weights_K: np.ndarray) -> np.ndarray:
    """P(Σ_k w_k χ²₁ ≤ x), in the shape of x, to an absolute error of about 1e-13.

    Raises:
        ValueError: weights that `positive_weights` refuses.
    """
    w = positive_weights(weights_K)
    at = np.asarray(x, dtype=np.float64) / w.max()
    w = w / w.max()
    out = np.where(np.isnan(at), np.nan, np.where(at > 0, 1.0, 0.0))
    inside = np.isfinite(at) & (at > 0)
    x_N = at[inside]
    distance = saddle(x_N, w)
    reach, spacing = contour(x_N, distance[:, 0], w)
    nodes = int(np.ceil((reach / spacing).max(initial=1.0)))
    v = (np.arange(nodes) + 0.5) / nodes * reach[:, None]  # the half with v < 0 is the mirror image
    s = distance * (1 + 1j * v) ** 2 - BRANCH
    exponent = s * x_N[:, None]
    for weight in w:  # one at a time: a logarithm of the product would cross branches
        exponent -= 0.5 * np.log(1 + 2 * weight * s)
    total = (np.exp(exponent) / s * distance * (1 + 1j * v)).real.sum(axis=1)
    out[inside] = np.clip((x_N > w.sum()) + 2 / np.pi * reach / nodes * total, 0.0, 1.0)
    return out


def weighted_chi2_quantile(q: float | np.ndarray, weights_K: np.ndarray) -> np.ndarray:
    """The x with P(Σ_k w_k χ²₁ ≤ x) = q, in the shape of q.

    The sum lies between max w · χ²₁ and max w · χ²_K, and so do its quantiles.

    Raises:
        ValueError: q outside (0, 1), or weights that `positive_weights` refuses.
    """
    w = positive_weights(weights_K)
    levels = np.asarray(q, dtype=np.float64)
    if not ((levels > 0) & (levels < 1)).all():
        raise ValueError("a quantile's level lies between 0 and 1, both excluded")
    scaled = w / w.max()
    lows, highs = 0.999 * chdtri(1, 1 - levels), 1.001 * chdtri(len(w), 1 - levels)
    found = [
        brentq(lambda x, level=level: float(weighted_chi2_cdf(x, scaled)) - level, low, high, xtol=1e-14 * low)
        for level, low, high in zip(levels.ravel(), lows.ravel(), highs.ravel(), strict=True)
    ]
    return float(w.max()) * np.array(found).reshape(levels.shape)
