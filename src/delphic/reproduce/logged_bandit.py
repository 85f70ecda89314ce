"""Bandit runs as a trainer would log them: one table a run, with the columns of `runs/columns.py`, all sampled.

The update is the trainer's own (`dynamics/bandit_update.py`). What a log shows beside it is simulated too: lengths and the
length limit, a sampler whose probabilities are not quite the trainer's, evaluations on fresh samples of the true reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from scipy.special import log_softmax, ndtr, xlogy

from delphic.dynamics.bandit import Bandit
from delphic.dynamics.bandit_run import Plan
from delphic.dynamics.bandit_update import Draws, draw, sampled_update
from delphic.dynamics.schedule import source_step
from delphic.objective import StepInputs, prepare
from delphic.statistics.informative import silent_share_of_hits

STEPS = 200
EVAL_EVERY, EVAL_SAMPLES = 10, 4  # steps; completions of every prompt
LIMIT, LENGTH_SPREAD = 1024, 0.35  # tokens; of log length between completions
Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class World:
    """What a run is made of.

    bandit: what training pays, rewards of 0 and 1. truth: [P, K] what an evaluation pays (None: the same).
    start, reference: [D]. sampler_error: standard deviation of the sampler's logits around the trainer's, a fixed error of
    each arm. length: median length in limits; a completion beyond the limit is cut and has reward 0.
    """

    bandit: Bandit
    start: np.ndarray
    reference: np.ndarray
    plan: Plan
    truth: np.ndarray | None = None
    sampler_error: float = 0.01
    length: float = 0.35


@dataclass(frozen=True)
class _Chance:
    """Every random number of R runs, each run's from its own seed: a run does not depend on those beside it."""

    prompts: np.ndarray  # [T, R, B]
    outcome: np.ndarray  # [T, R, B, G] uniform
    length: np.ndarray  # [T, R, B, G] normal
    evaluation: np.ndarray  # [T // EVAL_EVERY, R, P, EVAL_SAMPLES] uniform
    sampler: np.ndarray  # [R, P, K] normal


def _chance(world: World, seeds: Sequence[int], steps: int) -> _Chance:
    P, K, _ = world.bandit.shape
    size = (steps, world.plan.prompts, world.plan.completions)
    parts = []
    for seed in seeds:
        rng = np.random.default_rng([17, seed])
        each = (rng.integers(P, size=size[:2]), rng.random(size), rng.standard_normal(size))
        parts.append((*each, rng.random((steps // EVAL_EVERY, P, EVAL_SAMPLES)), rng.standard_normal((P, K))))
    prompts, outcome, length, evaluation, sampler = (np.stack(column) for column in zip(*parts, strict=True))
    over_time = (np.swapaxes(x, 0, 1) for x in (prompts, outcome, length, evaluation))
    prompts, outcome, length, evaluation = over_time
    return _Chance(prompts, outcome, length, evaluation, sampler)


def logged_runs(world: World, seeds: Sequence[int], steps: int = STEPS) -> list[pl.DataFrame]:
    """A table of `steps` rows for each seed."""
    bandit, plan, chance = world.bandit, world.plan, _chance(world, seeds, steps)
    R = len(seeds)
    theta, reference = (np.repeat(x[None], R, 0) for x in (world.start, world.reference))
    advance = plan.optimiser.start(theta)
    flawed = world.sampler_error * chance.sampler
    versions, rows = {0: theta}, []
    for step in range(1, steps + 1):
        source = source_step(step, plan.interval, plan.offset)
        behaviour = versions[source]
        now, old = bandit.probabilities(theta), bandit.probabilities(behaviour)
        sampler = np.exp(log_softmax(bandit.logits(behaviour) + flawed, axis=-1))
        draws = draw(bandit, bandit.outcome_chances(sampler), chance.prompts[step - 1], chance.outcome[step - 1])
        length = world.length * np.exp(LENGTH_SPREAD * chance.length[step - 1])
        draws = replace(draws, rewards=np.where(length > 1, 0.0, draws.rewards))
        update = sampled_update(bandit, plan.objective, draws, now, old)
        if plan.anchor is not None:
            update = update + plan.anchor.pull(bandit, theta, behaviour, reference)
        row = _rewards(plan, draws) | _policies(draws, now, old, sampler)
        row |= _lengths(length) | {"lag": np.full(R, step - 1.0 - source)}
        row |= {"kl_reference": bandit.kl(theta, reference), "gradient_norm": np.linalg.norm(update, axis=-1)}
        theta = theta + advance(update)
        versions[step] = theta
        versions = {v: t for v, t in versions.items() if v >= source_step(step + 1, plan.interval, plan.offset)}
        if step % EVAL_EVERY == 0:
            row["eval_reward"] = _evaluation(world, theta, chance.evaluation[step // EVAL_EVERY - 1])
        rows.append(row)
    return [_table(rows, run) for run in range(R)]


def _rewards(plan: Plan, draws: Draws) -> Columns:
    R, B, G = draws.rewards.shape
    hits = draws.rewards.sum(-1)
    prepared = prepare(plan.objective, StepInputs(draws.rewards.reshape(-1), np.arange(R * B).repeat(G)))
    all_hit, none_hit = (hits == G).mean(-1), (hits == 0).mean(-1)
    return {
        "reward_mean": draws.rewards.mean((-1, -2)),
        "reward_std": draws.rewards.std(-1, ddof=1).mean(-1),
        "silent_share": all_hit + none_hit,
        "silent_share_expected": silent_share_of_hits(hits, np.full(B, G)),
        "solved_all_share": all_hit,
        "solved_none_share": none_hit,
        "advantage_variance": prepared.advantage.reshape(R, -1).var(-1),
    }


def _policies(draws: Draws, now: np.ndarray, old: np.ndarray, sampler: np.ndarray) -> Columns:
    """Entropy of the policy that samples, the ratio to it, and how far the sampler is from it. Policies: [R, P, K]."""

    def drawn(values: np.ndarray) -> np.ndarray:
        groups = np.take_along_axis(values, draws.prompts[..., None], axis=1)
        return np.take_along_axis(groups, draws.arms, axis=-1).reshape(len(values), -1)

    of_now, of_old, of_sampler = (np.log(drawn(p)) for p in (now, old, sampler))
    ratio = np.exp(of_now - of_old)
    return {
        "entropy": -xlogy(old, old).sum(-1).mean(-1),
        "ratio_mean": ratio.mean(-1),
        "ratio_max": ratio.max(-1),
        "kl_update": (ratio * (of_now - of_old) - ratio + 1).mean(-1),
        "kl_sampler": (xlogy(sampler, sampler) - xlogy(sampler, old)).sum(-1).mean(-1),
        "sampler_difference": np.abs(of_sampler - of_old).mean(-1),
    }


def _lengths(length: np.ndarray) -> Columns:
    tokens = LIMIT * np.minimum(length, 1.0)
    ended = length <= 1
    with np.errstate(invalid="ignore"):
        terminated = np.where(ended, tokens, 0.0).sum((-1, -2)) / ended.sum((-1, -2))
    return {
        "length_mean": tokens.mean((-1, -2)),
        "length_max": tokens.max((-1, -2)),
        "length_terminated_mean": terminated,
        "truncated_share": (~ended).mean((-1, -2)),
    }


def _evaluation(world: World, theta: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """[R] mean true reward of fresh completions of every prompt, under the same length limit."""
    truth = world.bandit.rewards if world.truth is None else world.truth
    uncut = float(ndtr(-np.log(world.length) / LENGTH_SPREAD))
    value = (world.bandit.probabilities(theta) * truth).sum(-1) * uncut
    return (uniforms < value[..., None]).mean((-1, -2))


def _table(rows: list[Columns], run: int) -> pl.DataFrame:
    names = list(dict.fromkeys(name for row in rows for name in row))

    def values(name: str) -> list[float | None]:
        found = (float(row[name][run]) if name in row else None for row in rows)
        return [x if x is not None and np.isfinite(x) else None for x in found]

    columns = [pl.Series(name, values(name), dtype=pl.Float64) for name in names]
    return pl.DataFrame([pl.Series("step", np.arange(1, len(rows) + 1), dtype=pl.Int64), *columns])
