"""What the rewards of recorded groups tell without any scores: spread, silent groups, the share that carries a signal."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import gammaln

from delphic.statistics.group_size import SIZES
from delphic.statistics.informative import expected_silent_share, finite_groups, silent_share
from delphic.statistics.interval import number
from delphic.statistics.spread import reward_spread


def rewards_report(rewards: np.ndarray, groups: np.ndarray) -> dict[str, Any]:
    """The figures of completions with rewards [N] in groups [N] (ids), ready for JSON; rewards that are not finite do not count.

    Returns:
        groups, completions: with a reward. group_size: {"smallest", "median", "largest"}. rewards: `reward_figures`.
        informative_share: `informative_shares`, of groups cut to the median size. refused: what rewards do not tell.
    """
    members = finite_groups(rewards, groups)
    sizes = np.array([len(r) for r in members], dtype=int)
    refused = []
    shares: list[dict[str, float]] = []
    if sizes.max(initial=0) < 2:
        refused.append({"what": "everything within groups", "needs": "2 completions a prompt"})
    else:
        size = int(np.median(sizes[sizes > 1]))
        shares = informative_shares(np.array([r[:size] for r in members if len(r) >= size]))
    refused.append({"what": "c1, c2, c3, G*", "needs": "the scores of the completions: delphic plan CONFIG.toml"})
    ends = (int(f(sizes)) if len(sizes) else 0 for f in (np.min, np.median, np.max))
    return {
        "groups": len(sizes),
        "completions": int(sizes.sum()),
        "group_size": dict(zip(("smallest", "median", "largest"), ends, strict=True)),
        "rewards": reward_figures(rewards, groups),
        "informative_share": shares,
        "refused": refused,
    }


def reward_figures(rewards: np.ndarray, groups: np.ndarray) -> dict[str, float | None]:
    """Mean of the groups' means, within- and between-prompt variance (unbiased), silent groups and what difficulty explains of
    them; None where the data do not tell."""
    spread = reward_spread(rewards, groups)
    figures = {
        "mean": spread.mean,
        "variance_within": spread.within,
        "variance_between": spread.between,
        "silent_share": silent_share(rewards, groups),
        "silent_share_expected": expected_silent_share(rewards, groups),
    }
    return {name: number(value) for name, value in figures.items()}


def informative_shares(rewards: np.ndarray) -> list[dict[str, float]]:
    """Share of groups of G that carry a signal, for G up to K, from rewards [P, K]: over all subsets of each prompt's completions."""
    count = rewards.shape[1]
    counts = [np.unique(row, return_counts=True)[1] for row in rewards]
    return [
        {"G": int(size), "share": 1 - float(np.mean([_choose(n, size).sum() / _choose(count, size) for n in counts]))}
        for size in SIZES[count >= SIZES]
    ]


def _choose(n: np.ndarray | int, k: int) -> np.ndarray:
    """[...] C(n, k); 0 where n < k."""
    n = np.asarray(n, dtype=np.float64)
    fits = n >= k
    return np.where(fits, np.exp(gammaln(n + 1) - gammaln(k + 1) - gammaln(np.where(fits, n - k, 0) + 1)), 0.0)
