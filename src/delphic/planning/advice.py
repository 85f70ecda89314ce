"""From a pilot to advice: constants, curves, what to set, and how far that holds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from delphic.config import RunConfig
from delphic.planning.pilot import Measured
from delphic.statistics.error import ErrorMoments, error_parts, mean_squared_error, oracle_ratio, prompt_error
from delphic.statistics.group_size import (
    FEW,
    SIZES,
    Constants,
    allocation,
    cost_aware_group_size,
    critical_batch,
    error_moments,
    estimate_constants,
    jackknife,
    noise_split,
    recommend,
)
from delphic.statistics.interval import Interval, number
from delphic.statistics.rewards import informative_shares, reward_figures

CURVES = ("vanilla", "loo", "self_inclusive", "oracle", "best_baseline")
MOMENTS = {
    "checkpoint": "The error is that of Adam's step: of the gradient times 1/(√v̂ + ε), v̂ as in the model's checkpoint.",
    "pilot": (
        "The error is that of Adam's step: of the gradient times 1/(√v̂ + ε), v̂ estimated from the pilot itself for a batch "
        "of the config's size; G* moves little by that, but c2 may be off."
    ),
    None: "Adam rescales the gradient; the error here is in the gradient's own units.",
}


def advise(measured: Measured, config: RunConfig) -> dict[str, Any]:
    """The plan as `docs/plan.md` describes it, ready for JSON."""
    refused: list[dict[str, str]] = []
    rewards = measured.rewards
    constants = _constants(measured, refused)
    size, prompts = config.sampling.completions, config.sampling.prompts
    plan: dict[str, Any] = {
        "pilot": {"prompts": len(rewards), "completions": rewards.shape[1], "left_out": measured.left_out}
        | {"seconds": measured.seconds},
        "constants": None,
        "g_star": None,
        "units": "gradient" if measured.moments is None else "adam",
        "moments": measured.moments,
        "gradient_units": None,
        "curve": [],
        "noise_split": None,
        "informative_share": informative_shares(rewards),
        "rewards": reward_figures(rewards.ravel(), np.arange(len(rewards)).repeat(rewards.shape[1])),
        "by_difficulty": _by_difficulty(measured, size),
        "critical_batch": None,
        "cost": {"prompt_seconds": measured.prompt_seconds, "completion_seconds": measured.completion_seconds},
        "recommendation": None,
        "scope": _scope(config, measured.moments),
        "refused": refused,
    }
    if constants is None:
        return plan
    moments = error_moments(measured.pilot)
    usable = _usable(moments)
    plan |= _figures(constants)
    plain = error_moments(measured.plain)
    plan["gradient_units"] = _figures(estimate_constants(measured.plain)) | {
        "critical_batch": number(critical_batch(_usable(plain), size, plain.mean))
    }
    plan["curve"] = _curves(measured, prompts * size)
    plan["noise_split"] = noise_split(usable, size)
    plan["cost"]["best_completions"] = cost_aware_group_size(
        usable, measured.prompt_seconds, measured.completion_seconds
    )
    plan["oracle_ratio"] = number(oracle_ratio(moments, size)) if size > 1 else 1.0
    plan["recommendation"] = _recommend(constants, config, plan, refused)
    if measured.moments == "pilot":
        needs = "Adam's second moments of a run: a checkpoint as model.path"
        refused.append({"what": "the critical batch in Adam's units", "needs": needs})
    else:
        plan["critical_batch"] = number(critical_batch(usable, size, moments.mean))
    return plan


def _constants(measured: Measured, refused: list[dict[str, str]]) -> Constants | None:
    count, completions = measured.rewards.shape
    if (measured.rewards == measured.rewards[:, :1]).all():
        refused.append(
            {"what": "c1, c2, c3, G*", "needs": "groups whose rewards differ; all of the pilot's are silent"}
        )
        return None
    if completions < 4:
        refused.append({"what": "c1, c2, c3, G*", "needs": f"4 completions a prompt, the pilot has {completions}"})
        return None
    if count < 3:
        refused.append({"what": "c1, c2, c3, G*", "needs": f"3 prompts, the pilot has {count}"})
        return None
    return estimate_constants(measured.pilot)


def _curves(measured: Measured, budget: int) -> list[dict[str, Any]]:
    """MSE of every estimator at B = budget/G prompts, with jackknife intervals over the pilot's prompts."""
    pilot, count = measured.pilot, len(measured.rewards)
    whole = error_moments(pilot)
    without = [error_moments(pilot, 1 - np.eye(count)[b]) for b in range(count)]
    out = []
    for estimator in CURVES:

        def curve(moments: ErrorMoments, estimator: str = estimator) -> np.ndarray:
            return np.array([float(mean_squared_error(estimator, moments, budget / g, g)) for g in SIZES])

        value, parts = curve(whole), np.array([curve(m) for m in without])
        for k, size in enumerate(SIZES):
            error = jackknife(float(value[k]), parts[:, k])
            row = {"mse": error.value, "low": error.low, "high": error.high}
            out.append({"estimator": estimator, "G": int(size), **row})
    return out


def _recommend(
    constants: Constants, config: RunConfig, plan: dict[str, Any], refused: list[dict[str, str]]
) -> dict[str, Any] | None:
    size, prompts = config.sampling.completions, plan["pilot"]["prompts"]
    found = recommend(constants, prompts)
    if found is None:
        needs = max(FEW, _prompts_needed(constants, prompts))
        refused.append({"what": "a recommended group size", "needs": f"about {needs} prompts in the pilot"})
        return None
    keep = found.low <= size <= found.high
    chosen = size if keep else found.completions
    batch = max(1, round(config.sampling.prompts * size / chosen))
    return {
        "completions": chosen,
        "prompts": batch,
        "keep": keep,
        "within_two_percent": [found.low, found.high],
        "config": {
            "delphic": f"sampling.completions = {chosen}, sampling.prompts = {batch}",
            "trl": f"num_generations={chosen}",
            "verl": f"actor_rollout_ref.rollout.n={chosen} data.train_batch_size={batch}",
        },
    }


def _prompts_needed(constants: Constants, prompts: int) -> int:
    """Prompts at which c₁ would be known to ± 60 %: intervals shrink as 1/√B."""
    c1 = constants.c1
    half = c1.high - c1.value
    if c1.value <= 0:
        return 4 * prompts
    return math.ceil(prompts * (half / (0.6 * c1.value)) ** 2)


def _by_difficulty(measured: Measured, size: int) -> list[dict[str, Any]]:
    """Thirds of the prompts by mean reward: where leave-one-out beats no baseline, how a prompt's own error divides, and how
    many completions each third should get of the same total (Neyman's form, from the thirds' means: those of single
    prompts are mostly noise)."""
    order = np.argsort(measured.rewards.mean(1), kind="stable")
    out: list[dict[str, Any]] = []
    thirds = []
    for name, rows in zip(("hard", "middle", "easy"), np.array_split(order, 3), strict=True):
        if len(rows) == 0 or measured.rewards.shape[1] < 4 or size < 2:
            continue
        chosen = np.isin(np.arange(len(order)), rows)
        moments = replace(error_moments(measured.pilot, chosen), between=0.0)  # the error at a prompt, not between them
        loo, vanilla = (float(mean_squared_error(e, moments, 1, size)) for e in ("loo", "vanilla"))
        parts = [float(part) for part in error_parts(moments.constants, size)[1:]]
        out.append(
            {
                "prompts": name,
                "mean_reward": float(measured.rewards[rows].mean()),
                "loo_over_vanilla": number(loo / vanilla) if vanilla > 0 else None,
                "noise": {"oracle": parts[0], "baseline": parts[1]},
            }
        )
        thirds.append(moments.constants)
    if len(out) == 3:
        counts = allocation(np.array([c2 for _, c2, _ in thirds]), 3 * size)
        errors = [
            sum(float(prompt_error(c, n)) for c, n in zip(thirds, given, strict=True)) for given in (counts, [size] * 3)
        ]
        for row, count in zip(out, counts, strict=True):
            row["allocation"] = {
                "completions": int(count),
                "error": number(errors[0] / errors[1]) if errors[1] > 0 else None,
            }
    return out


def _usable(moments: ErrorMoments) -> tuple[float, float, float]:
    """c₁, c₂, c₃ with c₁ at least 0, where its estimate is not."""
    c1, c2, c3 = moments.constants
    return max(c1, 0.0), c2, c3


def _figures(constants: Constants) -> dict[str, Any]:
    return {
        "constants": {name: _interval(getattr(constants, name)) for name in ("c1", "c2", "c3")},
        "g_star": _interval(constants.g_star),
    }


def _scope(config: RunConfig, moments: str | None) -> list[str]:
    """What the constants are about, and what in this config is outside."""
    goal, out = config.objective, []
    out.append(
        "The constants are those of the plain score-function gradient (whole completions, leave-one-out baseline, prompts "
        "drawn independently) at the weights of the pilot; they change as the policy learns."
    )
    if goal.scale == "std":
        out.append(
            "Dividing by the group's standard deviation makes the expected update itself depend on G: in simulated bandits the "
            "recommended G then lost up to 19 % (95 % bound 24 %) against the best, which was up to twice G*."
        )
    else:
        out.append(
            "In simulated bandits (leave-one-out, SGD or Adam, prompts drawn independently) the recommended G lost 1 % at most "
            "(95 % bound 11 %) against the best."
        )
    if goal.mask != "none" or goal.importance != "none":
        out.append("Clipping and importance weights are not in the constants; on-policy they change nothing.")
    if config.train.optimizer == "adamw":
        out.append(MOMENTS[moments])
    if config.sampling.order == "epochs":
        out.append(
            "Reshuffled epochs cancel a part of the between-prompt noise: in simulated bandits without std the recommended G then "
            "lost up to 5 % (95 % bound 12 %) against the best, with std up to 19 %."
        )
    if goal.has_penalty:
        out.append("Penalty terms (KL, entropy) are not in the constants.")
    return out


def _interval(interval: Interval) -> dict[str, float | None]:
    return {name: number(getattr(interval, name)) for name in ("value", "low", "high")}
