"""Does training on one task help on others, and less the further they are from it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from delphic.evaluation.measure import interval_json
from delphic.statistics.evaluation import Difference, jensen_shannon, spearman

ENOUGH = 4  # tasks for a rank correlation; of fewer, no order could be surprising


def token_counts(encoded: Sequence[np.ndarray]) -> np.ndarray:
    """[highest id + 1] how often each token is in the prompts."""
    return np.bincount(np.concatenate(encoded).astype(np.int64))


def transfer_table(
    trained_on: str, trained_counts: np.ndarray, counts: Mapping[str, np.ndarray], gains: Mapping[str, Difference]
) -> dict[str, Any]:
    """Gain of every task against its distance from the one trained on, nearest first; the latter's own gain apart.

    Distance is the Jensen–Shannon divergence between the tokens of the prompts: of their words, not of their difficulty.
    """
    others = [label for label in counts if label != trained_on]
    distance = {label: jensen_shannon(trained_counts, counts[label]) for label in others}
    order = sorted(others, key=lambda label: (distance[label], label))
    known = [label for label in order if gains[label].problems]
    correlation = None
    if len(known) >= ENOUGH:
        found = spearman(np.array([distance[x] for x in known]), np.array([gains[x].mean for x in known]))
        if found.rho == found.rho:
            correlation = {"rho": found.rho, "p": found.p, "exact": found.exact, "tasks": len(known)}
    return {
        "trained_on": trained_on,
        "gain": interval_json(gains[trained_on]) if trained_on in gains else None,
        "tasks": [{"task": label, "distance": distance[label], "gain": interval_json(gains[label])} for label in order],
        "spearman": correlation,
    }
