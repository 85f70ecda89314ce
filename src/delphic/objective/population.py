"""The advantage in a group of infinitely many completions: the baseline and scale of the whole distribution."""

from __future__ import annotations

import numpy as np

from delphic.objective.objective import Objective
from delphic.objective.shaping import exponential_weight


def population_coefficient(objective: Objective, rewards: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """[..., O] A · w · multiplier of each outcome, as `prepare` gives it in the limit G → ∞.

    Args:
        rewards: [..., O] rewards of a prompt's outcomes. chances: [..., O] how likely each is; sums to 1.

    Raises:
        ValueError: an objective whose limit is not a function of one prompt's rewards.
    """
    choice: dict[str, str] = {
        "baseline": objective.baseline,
        "scale": objective.scale,
        "selection": objective.selection,
    }
    known = {
        "baseline": ("none", "mean", "leave_one_out", "log_mean_exp"),
        "scale": ("none", "std", "mean"),
        "selection": ("all",),
    }
    for name, chosen in choice.items():
        if chosen not in known[name]:
            raise ValueError(f'{name} = "{chosen}" has no infinite-group limit here; {", ".join(known[name])} have')

    def average(values: np.ndarray) -> np.ndarray:
        return (chances * values).sum(-1, keepdims=True)

    value = average(rewards)
    spread = np.sqrt(average((rewards - value) ** 2))
    possible = chances > 0  # equal rewards, not a small σ: rounding must not make a signal
    highest = np.where(possible, rewards, -np.inf).max(-1, keepdims=True)
    silent = highest <= np.where(possible, rewards, np.inf).min(-1, keepdims=True)
    baseline = np.zeros_like(value)
    if objective.baseline in ("mean", "leave_one_out"):
        baseline = value
    elif objective.baseline == "log_mean_exp":
        tau = objective.baseline_temperature
        peak = rewards.max(-1, keepdims=True)
        baseline = peak + tau * np.log(average(np.exp((rewards - peak) / tau)))
    advantage = rewards - baseline
    if objective.baseline != "none":
        advantage = np.where(silent, 0.0, advantage)
    advantage = advantage + objective.baseline_shift
    if objective.scale == "std":
        advantage = np.where(silent, 0.0, advantage / np.where(silent, 1.0, spread + objective.scale_epsilon))
    elif objective.scale == "mean":
        advantage = np.where(value > 0, advantage / np.where(value > 0, value, 1.0), 0.0)
    weight = (
        exponential_weight(advantage, objective.data_weight_temperature)
        if objective.data_weight == "exponential"
        else 1.0
    )
    return advantage * weight * objective.multiplier
