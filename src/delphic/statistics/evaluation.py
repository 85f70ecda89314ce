"""How good is a policy on held-out problems, and did it change? On rewards, counts and answers alone.

Shapes: P problems, S samples of each. A reward that is not finite is no sample: it is left out, and the problem has one
sample fewer. An answer counts as right from a reward of `RIGHT` on.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

RIGHT = 1 - 1e-9  # a sum of weighted rewards may miss 1 by rounding
Z = 1.96
EXACT_UP_TO = 8  # 8! = 40320 permutations are enumerated; more values are drawn
PERMUTATIONS = 20_000


@dataclass(frozen=True)
class Estimate:
    """A mean over problems with its 95 % interval; all NaN without problems."""

    mean: float
    low: float
    high: float
    problems: int


@dataclass(frozen=True)
class Difference(Estimate):
    """A mean difference of paired problems."""

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def problem_means(rewards_PS: np.ndarray) -> np.ndarray:
    """[P] mean of the finite rewards of each problem; NaN where it has none."""
    means = np.full(len(rewards_PS), np.nan)
    counted = np.isfinite(rewards_PS).any(axis=1)
    means[counted] = np.nanmean(rewards_PS[counted], axis=1)
    return means


def correct_counts(rewards_PS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[P] right samples and [P] samples with a finite reward."""
    finite = np.isfinite(rewards_PS)
    return (finite & (np.where(finite, rewards_PS, 0) >= RIGHT)).sum(axis=1), finite.sum(axis=1)


def estimate(values_P: np.ndarray) -> Estimate:
    """Mean over the problems whose value is known (not NaN), with `clustered_interval`."""
    known = values_P[np.isfinite(values_P)]
    if not len(known):
        return Estimate(math.nan, math.nan, math.nan, 0)
    return Estimate(float(known.mean()), *clustered_interval(known), len(known))


def clustered_interval(means: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of independent per-problem means.

    Means within [0, 1]: Wilson's interval (1927) at the effective sample size p(1 − p)/se², which stays honest at 0 and
    1, and for a single problem. Otherwise the normal one; there a single problem gives the value itself.
    """
    n, centre, z = len(means), float(means.mean()), Z
    error2 = float(means.var(ddof=1)) / n if n > 1 else math.inf
    if means.min() >= 0 and means.max() <= 1:
        effective = centre * (1 - centre) / error2 if 0 < error2 < math.inf else float(n)
        middle = (centre + z**2 / (2 * effective)) / (1 + z**2 / effective)
        half = z / (1 + z**2 / effective) * math.sqrt(centre * (1 - centre) / effective + z**2 / (4 * effective**2))
        return max(0.0, middle - half), min(1.0, middle + half)
    half = z * math.sqrt(error2) if n > 1 else 0.0
    return centre - half, centre + half


def accuracies(correct_P: np.ndarray, counted_P: np.ndarray) -> np.ndarray:
    """[P] share of right samples; NaN where no sample counts."""
    return np.where(counted_P > 0, correct_P / np.maximum(counted_P, 1), np.nan)


def pass_at_k(correct_P: np.ndarray, counted_P: np.ndarray, k: int) -> np.ndarray:
    """[P] unbiased chance that one of k samples is right, 1 − C(n−c, k)/C(n, k) (Chen et al. 2021, arXiv 2107.03374).

    The quotient is a product of k factors in [0, 1], so nothing overflows, and it is exactly 0 where n − c < k. NaN
    where a problem has fewer than k samples.
    """
    if k < 1:
        raise ValueError(f"pass@k needs k >= 1, got {k}")
    n, wrong = counted_P.astype(np.float64), (counted_P - correct_P).astype(np.float64)
    i = np.arange(k)[:, None]
    none_right = np.prod(np.maximum(wrong - i, 0) / np.maximum(n - i, 1), axis=0)
    return np.where(n >= k, 1 - none_right, np.nan)


def majority(answers_PS: np.ndarray, rewards_PS: np.ndarray) -> np.ndarray:
    """[P] chance that the most frequent answer of all S samples is right (self-consistency, arXiv 2203.11171).

    Args:
        answers_PS: whole numbers, equal for equal answers; negative where a completion holds no answer and has no vote.
        rewards_PS: says which samples are right; those without a finite reward have no vote.

    An answer is worth the share of right ones among its samples (a reward may see more than the answer); answers tied
    for the most votes are drawn with equal chance, so their worths are averaged. 0 where nobody votes; NaN where no
    sample has a finite reward.
    """
    out = np.full(len(answers_PS), np.nan)
    for p, (answers, rewards) in enumerate(zip(answers_PS, rewards_PS, strict=True)):
        finite = np.isfinite(rewards)
        if not finite.any():
            continue
        votes = finite & (answers >= 0)
        if not votes.any():
            out[p] = 0.0
            continue
        _, which, sizes = np.unique(answers[votes], return_inverse=True, return_counts=True)
        right = np.bincount(which, weights=rewards[votes] >= RIGHT)
        out[p] = float(np.mean((right / sizes)[sizes == sizes.max()]))
    return out


def paired_difference(after_P: np.ndarray, before_P: np.ndarray) -> Difference:
    """Mean of after − before, values in [0, 1], over the problems that have both, with a 95 % interval.

    Newcombe's interval for paired proportions (1998, method 10, Statistics in Medicine 17:2635), with `clustered_interval`
    for each side: the distances of the two means from their limits combine as standard errors do, less twice the
    correlation ρ of the problems' values. ρ is shrunk (covariance less 1/2n, as there) and not below 0, so the interval
    is never wider than one that ignores the pairing. Unlike a t-interval it keeps its coverage where few problems
    change: without any change in 20 problems, t would give a width of 0.
    """
    both = np.isfinite(after_P) & np.isfinite(before_P)
    a, b = after_P[both], before_P[both]
    n = len(a)
    if n == 0:
        return Difference(math.nan, math.nan, math.nan, 0)
    mean = float((a - b).mean())
    (a_low, a_high), (b_low, b_high) = clustered_interval(a), clustered_interval(b)
    spread = float(a.std() * b.std())
    covariance = float(((a - a.mean()) * (b - b.mean())).mean())
    rho = min(1.0, max(0.0, covariance - 1 / (2 * n)) / spread) if spread > 0 else 0.0

    def combine(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x**2 + y**2 - 2 * rho * x * y))

    low = mean - combine(float(a.mean()) - a_low, b_high - float(b.mean()))
    high = mean + combine(a_high - float(a.mean()), float(b.mean()) - b_low)
    return Difference(mean, max(-1.0, low), min(1.0, high), n)


def jensen_shannon(counts_p: np.ndarray, counts_q: np.ndarray) -> float:
    """Jensen–Shannon divergence, base 2, of two distributions given as counts [V] (the shorter one ends in zeros).

    Symmetric, 0 for proportional counts, 1 where no outcome is shared (Lin 1991, IEEE Trans. Inf. Theory 37:145).
    """
    size = max(len(counts_p), len(counts_q))
    p, q = (np.pad(c.astype(np.float64), (0, size - len(c))) for c in (counts_p, counts_q))
    if p.sum() <= 0 or q.sum() <= 0:
        raise ValueError("a distribution needs a count above 0")
    p, q = p / p.sum(), q / q.sum()
    middle = (p + q) / 2

    def divergence(x: np.ndarray) -> float:
        there = x > 0
        return float((x[there] * np.log2(x[there] / middle[there])).sum())

    return min(1.0, max(0.0, (divergence(p) + divergence(q)) / 2))


@dataclass(frozen=True)
class RankCorrelation:
    rho: float
    p: float
    exact: bool  # whether all permutations were counted


def spearman(x: np.ndarray, y: np.ndarray) -> RankCorrelation:
    """Spearman's rank correlation (mean ranks for ties) and its two-sided permutation p-value.

    All permutations up to `EXACT_UP_TO` values; above, `PERMUTATIONS` random ones from a fixed seed, the observed order
    counted among them (so p is never 0). NaN where all values of x or of y are equal.
    """
    n = len(x)
    u, v = (rankdata(values) - (n + 1) / 2 for values in (x, y))
    scale = math.sqrt(float((u**2).sum() * (v**2).sum()))
    exact = n <= EXACT_UP_TO
    if scale == 0:
        return RankCorrelation(math.nan, math.nan, exact)
    rho = float((u * v).sum()) / scale
    if exact:
        orders = np.array(list(itertools.permutations(range(n))))
        extra = 0
    else:
        orders = np.random.default_rng(0).permuted(np.tile(np.arange(n), (PERMUTATIONS, 1)), axis=1)
        extra = 1
    as_far = int((np.abs(v[orders] @ u) / scale >= abs(rho) - 1e-9).sum())
    return RankCorrelation(rho, (as_far + extra) / (len(orders) + extra), exact)
