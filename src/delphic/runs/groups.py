"""What the groups of recorded completions tell."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl

from delphic.statistics.informative import expected_silent_share, finite_groups, silent_share
from delphic.statistics.spread import reward_spread


def group_report(rollouts: pl.DataFrame) -> dict[str, Any]:
    """Figures of the groups in a table of `dumps.read_rollouts`, over all its steps; give it the rows of some for theirs.

    Returns:
        groups: with a reward. completions: with a reward. smallest, group_size, largest: completions of a group (the
        median in between). mean_reward: of completions. silent_share, silent_share_expected (by difficulty alone; rewards
        of two values), variance_within, variance_between (`statistics.spread`): None where the data do not tell.
    """
    rewards_N, group_N = rollouts["reward"].cast(pl.Float64).to_numpy(), rollouts["group"].to_numpy()
    sizes = np.array([len(r) for r in finite_groups(rewards_N, group_N)])
    finite = np.isfinite(rewards_N)
    spread = reward_spread(rewards_N, group_N)
    figures = {
        "mean_reward": float(rewards_N[finite].mean()) if finite.any() else math.nan,
        "silent_share": silent_share(rewards_N, group_N),
        "silent_share_expected": expected_silent_share(rewards_N, group_N),
        "variance_within": spread.within,
        "variance_between": spread.between,
    }
    return {
        "groups": len(sizes),
        "completions": int(finite.sum()),
        "smallest": int(sizes.min()) if len(sizes) else 0,
        "group_size": int(np.median(sizes)) if len(sizes) else 0,
        "largest": int(sizes.max()) if len(sizes) else 0,
        **{name: value if math.isfinite(value) else None for name, value in figures.items()},
    }
