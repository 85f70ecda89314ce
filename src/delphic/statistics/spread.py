"""How much rewards vary within groups and between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spread:
    """mean: of the group means. within: mean over groups of the sample variance. between: variance of the prompts' true
    means, unbiased: that of the group means, less the mean of within/size that sampling adds (so it may be negative).
    NaN where there are too few groups, or none of two completions."""

    mean: float
    within: float
    between: float


def reward_spread(rewards: np.ndarray, groups: np.ndarray) -> Spread:
    """Variance parts of rewards [N] in groups [N] (ids); rewards that are not finite do not count.

    The one-way analysis of variance, with every group of one weight however many completions it has.
    """
    finite = np.isfinite(rewards)
    rewards_N = np.asarray(rewards, dtype=np.float64)[finite]
    _, group_N, size_P = np.unique(np.asarray(groups)[finite], return_inverse=True, return_counts=True)
    mean_P = np.bincount(group_N, rewards_N) / size_P
    several = size_P > 1
    squares_P = np.bincount(group_N, (rewards_N - mean_P[group_N]) ** 2)
    variance = squares_P[several] / (size_P[several] - 1)
    within, noise = (float(x.mean()) if x.size else np.nan for x in (variance, variance / size_P[several]))
    between = float(mean_P.var(ddof=1)) - noise if len(mean_P) > 1 else np.nan
    return Spread(float(mean_P.mean()) if len(mean_P) else np.nan, within, between)
