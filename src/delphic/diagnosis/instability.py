"""Dynamic instability: swings of the reward that grow and stay, or a gradient norm or ratio that grows without bound.

Damped ringing swings too, but each swing is smaller than the one before (arXiv 2606.30789). A swing is a rise or
fall of the smoothed reward that noise of its size does not make from one extreme to the other, turning back at both ends.
"""

from __future__ import annotations

import numpy as np

from delphic.diagnosis.finding import Finding, Skipped
from delphic.diagnosis.sequential import mean, threshold, z_of
from delphic.runs.log import RunLog

FEWEST = 24  # steps
SWINGS = 5
STAYS = 0.7  # late swings over early ones
LASTS = 0.65  # range of the later quarters over that of the first; 0.6 at the most in damped runs, 0.7 at the least in unstable ones
GROWTH = 10.0  # of a gradient norm or ratio
PAPER = "arXiv 2606.30789, dynamic instability"


def swings(values: np.ndarray, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """(sizes, the index at which each ends) of successive rises and falls of at least `reach`, by a zigzag through the extremes."""
    turns = [(0, float(values[0]))]
    low = high = 0
    direction = 0
    for i, x in enumerate(values):
        if x > values[high]:
            high = i
        if x < values[low]:
            low = i
        if direction >= 0 and values[high] - x >= reach:
            turns.append((high, float(values[high])))
            direction, low, high = -1, i, i
        elif direction <= 0 and x - values[low] >= reach:
            turns.append((low, float(values[low])))
            direction, low, high = 1, i, i
    ends = np.array([i for i, _ in turns])
    return np.abs(np.diff([x for _, x in turns])), ends[1:]


def noise(values: np.ndarray) -> float:
    """Standard deviation of white noise on a smooth curve in its first third, before growing swings are large: second differences,
    robustly."""
    second = np.abs(np.diff(values, 2)) / np.sqrt(6)
    return float(max(1.4826 * np.median(second[: max(len(second) // 3, 8)]), 1e-12))


def quantum_noise(values: np.ndarray) -> float:
    """On the scale of `scaled`: 1/(2√N) of a share of N completions, N from the smallest step between two values; 0 where none shows."""
    if not len(values) or values.min() < 0 or values.max() > 1:
        return 0.0
    gaps = np.diff(np.unique(values))
    gaps = gaps[gaps > 1 / 4096]
    return 0.5 * float(np.sqrt(gaps.min())) if len(gaps) else 0.0


def scaled(values: np.ndarray) -> np.ndarray:
    """Rewards between 0 and 1 on the scale on which a share's noise is even: arcsin √p. Others as they are."""
    if len(values) and values.min() >= 0 and values.max() <= 1:
        return np.arcsin(np.sqrt(values))
    return values


def growing_swings(log: RunLog) -> Finding | Skipped | None:
    """At least five swings, of which the later ones are hardly smaller, and a range that does not die out."""
    steps, values = log.series("reward_mean")
    if len(values) < FEWEST:
        return Skipped("growing_oscillation", f"{FEWEST} steps")
    level = scaled(values)
    smooth = np.convolve(level, np.ones(3) / 3, mode="valid") if len(level) > 60 else level
    offset = (len(level) - len(smooth)) // 2
    spread = max(noise(level), quantum_noise(values)) * (np.sqrt(1 / 3) if len(level) > 60 else 1.0)
    reach = 2 * threshold(len(level)) * spread
    sizes, ends = swings(smooth, reach)
    sizes, ends = sizes[1:], ends[1:]  # the first may be the rise of learning
    if len(sizes) < SWINGS:
        return None
    half = len(sizes) // 2
    early, late = float(np.median(sizes[:half])), float(np.median(sizes[half:]))
    recent = ends[-1] + offset >= len(level) - 3 * max(int(np.median(np.diff(ends))), 1)
    quarters = [float(np.ptp(np.quantile(part, (0.03, 0.97)))) for part in np.array_split(level, 4)]
    dies = max(quarters[2:]) < LASTS * quarters[0]
    if late < STAYS * early or dies or not recent:
        return None
    period = 2 * float(np.median(np.diff(ends))) * float(np.median(np.diff(steps)))
    grown = late / early
    return Finding(
        "growing_oscillation",
        "error",
        f"the reward swings {len(sizes)} times by up to {sizes.max() / spread:.0f} times its noise, period about {period:.3g} steps; "
        f"the later swings are {grown:.2g} times the earlier ones, so they do not die out",
        (int(steps[min(ends[0] + offset, len(steps) - 1)]), int(steps[-1])),
        "halve the learning rate, or sync the sampler more often (smaller sync interval); `delphic stability` gives the limit",
        PAPER,
        "dynamic_instability",
        {"swings": float(len(sizes)), "growth": grown, "period": period},
    )


def unbounded(log: RunLog, name: str, what: str) -> Finding | Skipped | None:
    """The last fifth of a positive column against its first half, in logs."""
    if not log.has(name):
        return Skipped(f"{name}_growth", name)
    steps, values = log.series(name)
    steps, values = steps[values > 0], values[values > 0]
    if len(values) < FEWEST:
        return None
    logs = np.log(values)
    late, early = mean(logs[-max(len(logs) // 5, 5) :]), mean(logs[len(logs) // 20 : len(logs) // 2])
    if late.value - early.value < np.log(GROWTH) or z_of(late.value - early.value, late.error, early.error) < threshold(
        len(logs)
    ):
        return None
    factor = float(np.exp(late.value - early.value))
    return Finding(
        f"{name}_growth",
        "error",
        f"{what} is {factor:.3g} times what it was in the first half",
        (int(steps[-max(len(logs) // 5, 5)]), int(steps[-1])),
        "halve the learning rate; check max_grad_norm and the sampler's lag",
        PAPER,
        "dynamic_instability",
        {"factor": factor},
    )


def gradient_growth(log: RunLog) -> Finding | Skipped | None:
    return unbounded(log, "gradient_norm", "the gradient norm")


def ratio_growth(log: RunLog) -> Finding | Skipped | None:
    return unbounded(log, "ratio_max", "the largest ratio to the sampling policy")


CHECKS = (growing_swings, gradient_growth, ratio_growth)
