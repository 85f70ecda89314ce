"""What happens to rewards before the baseline, and to advantages after it."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from delphic.objective.advantage import mean, over_std, subtract

Array = Any


def overlong(lengths: Array, max_length: int, buffer: int) -> Array:
    """DAPO's soft punishment (arXiv 2503.14476, eq. 13): 0 up to max_length − buffer, then linearly to −1.

    Args: lengths [N] in tokens; max_length, buffer in tokens.
    """
    xp = array_namespace(lengths)
    start = max_length - buffer
    slope = (start - lengths) / buffer
    floor = xp.full_like(slope, -1.0)
    return xp.where(lengths <= start, xp.zeros_like(slope), xp.where(slope > floor, slope, floor))


def exponential_weight(advantage: Array, temperature: float) -> Array:
    """RED-Weight's exp(A/T) (arXiv 2509.24203, section 4); T in units of the advantage."""
    xp = array_namespace(advantage)
    return xp.exp(advantage / temperature)


def per_reward_normalised(components: Array, valid: Array, epsilon: float) -> Array:
    """[K, ..., G] each reward function's values, centred and divided by its own group std (arXiv 2601.05242),
    so that no function drowns the others by its scale. Equal values give 0."""
    return over_std(subtract(components, valid, mean(components, valid)), components, valid, epsilon)
