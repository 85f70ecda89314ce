"""The update: no gradient, weights that do not move, a clip that stops most tokens, a sampler that is not the trainer's policy."""

from __future__ import annotations

import numpy as np

from delphic.diagnosis.finding import Finding, Skipped
from delphic.diagnosis.sequential import interval, mean, threshold
from delphic.runs.log import RunLog

FEWEST = 8
CLIPPED = 0.3
KL_APART, DIFFERENCE_APART = 0.02, 0.05  # nats a token; engines of the same weights are at .0005 to .005


def no_gradient(log: RunLog) -> Finding | Skipped | None:
    """The gradient norm is 0 (a loss of 0 is normal with one update a batch and no KL term)."""
    if not log.has("gradient_norm"):
        return Skipped("no_gradient", "gradient_norm")
    steps, norms = log.series("gradient_norm")
    if len(norms) < FEWEST:
        return None
    still = norms == 0
    if still[-max(len(norms) // 2, FEWEST) :].mean() < 0.9:
        return None
    moves = np.flatnonzero(~still)
    first = int(steps[0 if not len(moves) else min(moves[-1] + 1, len(steps) - 1)])
    reward = log.series("reward_mean")[1]
    constant = len(reward) > 0 and float(np.ptp(reward)) == 0
    silent = log.has("silent_share") and float(log.series("silent_share")[1][-FEWEST:].mean()) > 0.9
    rate = log.series("learning_rate")[1] if log.has("learning_rate") else np.array([])
    why, advice = "", "look at silent groups, masks and which parameters are trained"
    if constant or silent:
        why = ": every group has equal rewards" + (f" (the reward is {reward[0]:g} at every step)" if constant else "")
        advice = (
            "check that the verifier can pay at all, by hand on one completion; then easier prompts or larger groups"
        )
    elif len(rate) and not rate.any():
        why, advice = ": the learning rate is 0", "set train.learning_rate"
    return Finding(
        "no_gradient",
        "error",
        f"the gradient norm is 0 in {still.mean():.0%} of the steps{why}",
        (first, int(steps[-1])),
        advice,
        "TRL #2703, #3452",
        "no_signal",
        {"share": float(still.mean())},
    )


def frozen(log: RunLog) -> Finding | Skipped | None:
    """A gradient, but weights that do not move."""
    if not log.has("update_norm", "gradient_norm"):
        return Skipped("frozen_weights", "update_norm and gradient_norm")
    table = log.table.select("step", "update_norm", "gradient_norm").drop_nulls()
    moved, norms = table["update_norm"].to_numpy(), table["gradient_norm"].to_numpy()
    if len(moved) < FEWEST or (moved[-FEWEST:] > 0).any() or not (norms[-FEWEST:] > 0).all():
        return None
    steps = table["step"].to_numpy()
    return Finding(
        "frozen_weights",
        "error",
        f"the weights have not moved in the last {FEWEST} steps, though the gradient norm is {norms[-1]:.3g}",
        (int(steps[-FEWEST]), int(steps[-1])),
        "check that the learning rate is not 0 and that the trained parameters are those of the optimiser",
        "verl #7495",
        "no_signal",
    )


def clip_saturation(log: RunLog) -> Finding | Skipped | None:
    if not log.has("clip_share"):
        return Skipped("clip_saturation", "clip_share")
    steps, share = log.series("clip_share")
    if len(share) < FEWEST:
        return None
    k = max(len(share) // 3, FEWEST)
    late = mean(share[-k:])
    if late.value - threshold(len(share)) * late.error < CLIPPED:
        return None
    return Finding(
        "clip_saturation",
        "warning",
        f"the clip stops {interval(late)} of the tokens over the last third: most of the batch learns nothing",
        (int(steps[-k]), int(steps[-1])),
        "fewer updates on the same rollouts (passes, minibatches), a lower learning rate, or a wider clip_high",
        "derived",
        "clip_saturation",
        {"clip_share": late.value},
    )


def mismatch(log: RunLog) -> Finding | Skipped | None:
    """Sampler and trainer give different probabilities to the same tokens; real staleness explains a part of it."""
    columns = [(name, limit) for name, limit in (("kl_sampler", KL_APART), ("sampler_difference", DIFFERENCE_APART))]
    there = [(name, limit) for name, limit in columns if log.has(name)]
    if not there:
        return Skipped("sampler_mismatch", "kl_sampler or sampler_difference")
    for name, limit in there:
        steps, values = log.series(name)
        if len(values) < FEWEST:
            continue
        k = max(len(values) // 2, FEWEST)
        late = mean(np.abs(values[-k:]))
        if late.value - threshold(len(values)) * late.error < limit:
            continue
        lag = float(log.series("lag")[1][-k:].mean()) if log.has("lag") else None
        stale = lag is not None and lag > 0.5
        known = f"; the sampler is {lag:.3g} old, which explains a part" if stale else ""
        return Finding(
            "sampler_mismatch",
            "warning" if stale else "error",
            f"sampler and trainer differ by {interval(late)} ({name}) where engines with the same weights differ by under {limit:g}"
            + known,
            (int(steps[-k]), int(steps[-1])),
            "sample at the trainer's own temperature, top_p = 1 and precision; check that every sync arrives (adapters, prefix cache); until "
            'then importance = "capped" against the sampler\'s own log-probs',
            "TRL #4159, #6789, verl #7495",
            None if stale else "sampler_mismatch",
            {name: late.value},
        )
    return None


CHECKS = (no_gradient, frozen, clip_saturation, mismatch)
