"""From tokens to one number: four aggregations, one normaliser over the whole optimiser step.

The normaliser is computed before the step is cut into micro-batches, so the cut cannot change the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

Array = Any


@dataclass(frozen=True)
class Totals:
    """What one optimiser step holds, over the completions that are kept."""

    completions: int
    tokens: int


def token_weights(mask: Array, kept: Array, aggregation: str, totals: Totals, max_length: int) -> Array:
    """[N, T] the weight of each token in the loss.

    `token_mean`: 1/tokens of the step. `sequence_mean`: mean over completions of token means.
    `sequence_sum`: mean over completions of token sums. `constant`: 1/(completions × max_length), Dr. GRPO
    (arXiv 2503.20783).

    Args: mask [N, T] loss mask (float); kept [N, 1] (float): 0 takes a completion out.
    """
    weight = mask * kept
    if aggregation == "token_mean":
        return weight / max(totals.tokens, 1)
    per_completion = weight / max(totals.completions, 1)
    if aggregation == "sequence_sum":
        return per_completion
    if aggregation == "constant":
        return per_completion / max_length
    xp = array_namespace(mask)
    length = xp.sum(mask, axis=-1, keepdims=True)
    return per_completion / xp.where(length > 0, length, xp.ones_like(length))
