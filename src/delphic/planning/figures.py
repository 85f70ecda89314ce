"""Figures that rewards and groups alone give, ready for JSON."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from delphic.statistics.group_size import SIZES
from delphic.statistics.informative import expected_silent_share, silent_share
from delphic.statistics.spread import reward_spread


def informative_shares(rewards: np.ndarray) -> list[dict[str, float]]:
    """Share of groups of G that carry a signal, G up to the pilot's: over all subsets of each prompt's completions."""
    count = rewards.shape[1]
    out = []
    for size in SIZES[count >= SIZES]:
        silent = [
            sum(_choose(int(n), int(size)) for n in np.unique(row, return_counts=True)[1]) / _choose(count, int(size))
            for row in rewards
        ]
        out.append({"G": int(size), "share": 1 - float(np.mean(silent))})
    return out


def _choose(n: int, k: int) -> float:
    return float(np.exp(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))) if n >= k else 0.0


def reward_figures(rewards: np.ndarray, groups: np.ndarray) -> dict[str, float | None]:
    """What rewards alone tell: within- and between-prompt variance (unbiased), silent groups and what explains them."""
    spread = reward_spread(rewards, groups)
    figures = {
        "mean": spread.mean,
        "variance_within": spread.within,
        "variance_between": spread.between,
        "silent_share": silent_share(rewards, groups),
        "silent_share_expected": expected_silent_share(rewards, groups),
    }
    return {name: number(value) for name, value in figures.items()}


def number(value: float) -> float | None:
    """JSON has no infinity and no NaN: null."""
    return float(value) if math.isfinite(value) else None
