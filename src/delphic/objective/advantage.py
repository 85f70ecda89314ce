"""Advantages: reward minus a baseline, over a scale.

Every function works on the last axis (the completions of one group) of arrays of any array-API
library, so the bandit (numpy) and the trainer (torch) run the same lines.

| symbol | shape | meaning |
|---|---|---|
| `rewards` | [..., G] | reward of each completion; anything where `valid` is false |
| `valid` | [..., G] | bool: the slot holds a completion with a finite reward |
| `weights` | [..., G] | completion lengths or squared score norms, for the weighted means |

A group whose rewards are all *equal* (not: of small spread) gets exactly its own reward as baseline,
so rounding never makes a signal out of none.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

Array = Any


def masked_sum(x: Array, valid: Array) -> Array:
    """Sum over the last axis of the valid slots, kept as an axis of size 1."""
    xp = array_namespace(x)
    return xp.sum(xp.where(valid, x, xp.zeros_like(x)), axis=-1, keepdims=True)


def masked_count(x: Array, valid: Array) -> Array:
    """Number of valid slots on the last axis, in the dtype of `x`, kept as an axis of size 1."""
    xp = array_namespace(x)
    return xp.sum(xp.astype(valid, x.dtype), axis=-1, keepdims=True)


def all_equal(rewards: Array, valid: Array) -> Array:
    """[..., 1] whether the valid rewards of the group are equal (true for an empty or lone group)."""
    xp = array_namespace(rewards)
    high = xp.max(xp.where(valid, rewards, xp.full_like(rewards, -float("inf"))), axis=-1, keepdims=True)
    low = xp.min(xp.where(valid, rewards, xp.full_like(rewards, float("inf"))), axis=-1, keepdims=True)
    return high <= low


def mean(rewards: Array, valid: Array) -> Array:
    """[..., 1] self-inclusive group mean, the baseline of GRPO (arXiv 2402.03300)."""
    xp = array_namespace(rewards)
    count = masked_count(rewards, valid)
    return masked_sum(rewards, valid) / xp.where(count > 0, count, xp.ones_like(count))


def leave_one_out(rewards: Array, valid: Array) -> Array:
    """[..., G] mean of the *other* completions, the baseline of RLOO (arXiv 2402.14740); makes the
    gradient the U-statistic of arXiv 2603.01162. Undefined (0) for a lone completion."""
    xp = array_namespace(rewards)
    others = masked_count(rewards, valid) - 1
    total = masked_sum(rewards, valid) - xp.where(valid, rewards, xp.zeros_like(rewards))
    return total / xp.where(others > 0, others, xp.ones_like(others))


def weighted_mean(rewards: Array, valid: Array, weights: Array) -> Array:
    """[..., 1] Σ w r / Σ w. With w = length: OPO's baseline (arXiv 2505.23585). With w = ‖score‖²: the
    best baseline that depends on the prompt alone (Greensmith et al., JMLR 2004)."""
    xp = array_namespace(rewards)
    total = masked_sum(weights, valid)
    return masked_sum(weights * rewards, valid) / xp.where(total > 0, total, xp.ones_like(total))


def log_mean_exp(rewards: Array, valid: Array, temperature: float) -> Array:
    """[..., 1] τ log mean exp(r/τ), OPMD's baseline (arXiv 2509.24203, section 4; τ in units of reward)."""
    xp = array_namespace(rewards)
    peak = xp.max(xp.where(valid, rewards, xp.full_like(rewards, -float("inf"))), axis=-1, keepdims=True)
    peak = xp.where(xp.isfinite(peak), peak, xp.zeros_like(peak))
    safe = xp.where(valid, rewards, peak)
    average = mean(xp.exp((safe - peak) / temperature), valid)
    return peak + temperature * xp.log(xp.where(average > 0, average, xp.ones_like(average)))


def standard_deviation(x: Array, valid: Array) -> Array:
    """[..., 1] sample standard deviation (n − 1) over the valid slots; 0 for fewer than two."""
    xp = array_namespace(x)
    count = masked_count(x, valid)
    squares = masked_sum((x - mean(x, valid)) ** 2, valid)
    return xp.sqrt(squares / xp.where(count > 1, count - 1, xp.ones_like(count)))


def subtract(rewards: Array, valid: Array, baseline: Array) -> Array:
    """[..., G] rewards − baseline, exactly 0 in groups of equal rewards; 0 in slots that are not valid."""
    xp = array_namespace(rewards)
    zero = xp.zeros_like(rewards)
    return xp.where(valid & ~all_equal(rewards, valid), rewards - baseline, zero)


def over_std(advantage: Array, rewards: Array, valid: Array, epsilon: float) -> Array:
    """A / (σ + ε) with the group's sample σ of the rewards; 0 where the rewards are equal (never 0/ε)."""
    xp = array_namespace(rewards)
    silent = all_equal(rewards, valid)
    spread = standard_deviation(rewards, valid) + epsilon
    return xp.where(silent, xp.zeros_like(advantage), advantage / xp.where(silent, xp.ones_like(spread), spread))


def over_mean(advantage: Array, rewards: Array, valid: Array) -> Array:
    """A / r̄, MaxRL (arXiv 2602.02710, binary rewards): 0 where no completion of the group succeeds."""
    xp = array_namespace(rewards)
    average = mean(rewards, valid)
    positive = average > 0
    return xp.where(positive, advantage / xp.where(positive, average, xp.ones_like(average)), 0 * advantage)


def whiten(advantage: Array, valid: Array, tokens: Array, epsilon: float) -> Array:
    """(A − μ)/(σ + ε) with μ, σ over all *tokens* of the batch, REINFORCE++ (arXiv 2501.03262).

    Args: advantage, valid, tokens: [N]; tokens are completion lengths. σ is the sample form over tokens.
    """
    xp = array_namespace(advantage)
    count = xp.where(valid, tokens, xp.zeros_like(tokens))
    total = xp.sum(count)
    centre = xp.sum(count * xp.where(valid, advantage, 0 * advantage)) / total
    variance = xp.sum(count * xp.where(valid, advantage - centre, 0 * advantage) ** 2) / max(float(total) - 1, 1)
    if bool(all_equal(advantage, valid)[..., 0]):
        return 0 * advantage
    return xp.where(valid, (advantage - centre) / (xp.sqrt(variance) + epsilon), 0 * advantage)


def balance(rewards: Array, valid: Array, priority: Array) -> Array:
    """[..., G] which completions RED-Drop keeps (arXiv 2509.24203, section 4).

    Where negatives (r < r̄) outnumber the rest, the surplus is dropped at random: of the negatives, those
    with the lowest `priority` (independent uniforms) go.
    """
    xp = array_namespace(rewards)
    # a reward that is the mean itself must not turn negative by the rounding of one order of the rows
    size = xp.max(xp.where(valid, xp.abs(rewards), xp.zeros_like(rewards)), axis=-1, keepdims=True)
    below = rewards < mean(rewards, valid) - 1e-12 * size
    negative = valid & below & ~all_equal(rewards, valid)
    n_negative = masked_count(rewards, negative)
    n_rest = masked_count(rewards, valid) - n_negative
    key = xp.where(negative, priority, xp.full_like(priority, float("inf")))
    rank = xp.argsort(xp.argsort(key, axis=-1), axis=-1)  # 0 for the negative that goes first
    return valid & ~(negative & (xp.astype(rank, rewards.dtype) < n_negative - n_rest))
