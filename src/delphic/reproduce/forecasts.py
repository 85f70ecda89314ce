"""Are forecasts to be trusted? Curves that follow a law, and bandit runs that follow none (no KL anchor, mixed difficulty,
Adam or SGD), each cut half-way and compared with what came."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from delphic.dynamics.backtest import Trial, summarise, trial
from delphic.dynamics.bandit import Bandit
from delphic.dynamics.bandit_run import Optimiser, Plan, train
from delphic.dynamics.laws import LAWS, Law
from delphic.objective import build
from delphic.reproduce.claims import Claim, Outcome, Part, Verdict

STEPS = 240
REPLICAS = 2  # runs of one bandit that differ in their draws alone
HALF = 0.5


def ar1(rng: np.random.Generator, n: int, deviation: float, correlation: float) -> np.ndarray:
    """[n] stationary noise."""
    shocks = rng.normal(0, deviation * np.sqrt(1 - correlation**2), n)
    out = np.empty(n)
    last = rng.normal(0, deviation)
    for i in range(n):
        out[i] = last = correlation * last + shocks[i]
    return out


@dataclass(frozen=True)
class Planted:
    """A law's curve with AR(1) noise: rewards [steps], and what it was made from."""

    law: Law
    shape: list[float]
    start: float
    plateau: float
    rewards: np.ndarray


def law_curve(rng: np.random.Generator, steps: int = STEPS, law: Law | None = None) -> Planted:
    """A law (any, if none is given) with shapes of the usual size."""
    law = law or LAWS[rng.integers(len(LAWS))]
    shape = {
        "exponential": [1 / (steps * 10 ** rng.uniform(-1.3, -0.1))],
        "three_phase": [1 / (steps * 10 ** rng.uniform(-1.5, -0.5)), rng.uniform(-0.95, 6)],
        "logistic": [steps * rng.uniform(0.05, 0.5), steps * 10 ** rng.uniform(-1.5, -0.8)],
        "scaling_sigmoid": [steps * 10 ** rng.uniform(-1.2, -0.3), rng.uniform(0.8, 3)],
        "difficulty_mixture": [
            float(rng.choice([1.5, 2.0])),
            rng.uniform(-3, 0),
            rng.uniform(0.3, 1.5),
            10 ** rng.uniform(1, 2.3) / steps,
        ],
    }[law.name]
    low = rng.uniform(0, 0.4)
    high = rng.uniform(low + 0.1, 1)
    path = law.phi(np.arange(1, steps + 1), np.array([shape]))[0]
    noise = ar1(rng, steps, 10 ** rng.uniform(-2, -1.1), rng.uniform(0, 0.6))
    return Planted(law, shape, low, high, low + (high - low) * path + noise)


def mixed_bandit(rng: np.random.Generator, prompts: int, arms: int, width: int) -> tuple[Bandit, np.ndarray]:
    """Prompts of mixed difficulty with shared features, one right arm each; and the policy θ to start from."""
    rewards = np.zeros((prompts, arms))
    rewards[np.arange(prompts), rng.integers(arms, size=prompts)] = 1
    shared = rng.normal(size=(prompts, arms, width)) / np.sqrt(width)
    skill = rewards[:, :, None] * rng.uniform(0.3, 1.5, (prompts, 1, 1))  # a direction that helps everywhere
    offset = rewards[:, :, None] * rng.normal(rng.uniform(-2.5, 0.5), rng.uniform(0.3, 1.5), (prompts, 1, 1))
    start = np.zeros(width + 2)
    start[-1] = 1.0  # how hard a prompt is: what it starts from, up to what the shared features add
    return Bandit(np.concatenate([shared, skill, offset], axis=2), rewards), start


def bandit_curves(rng: np.random.Generator, seed: int, steps: int = STEPS) -> tuple[str, np.ndarray]:
    """(what it is, [replicas, steps] rewards as a trainer logs them) of a `mixed_bandit`."""
    bandit, start = mixed_bandit(rng, int(rng.integers(8, 40)), int(rng.integers(2, 6)), int(rng.integers(4, 12)))
    adam = rng.random() < 0.6
    rate = 10 ** rng.uniform(-2.3, -1.3) if adam else 10 ** rng.uniform(-0.8, 0.5)
    scaled = rng.random() < 0.5
    objective = build({"preset": "dr_grpo", "mask": "none", "importance": "none", "scale": "std" if scaled else "none"})
    batch, group = int(rng.choice([4, 8, 16])), int(rng.choice([4, 8, 16]))
    plan = Plan(objective, batch, group, optimiser=Optimiser("adam" if adam else "sgd", rate, betas=(0.9, 0.99)))
    trace = train(bandit, plan, np.repeat(start[None], REPLICAS, 0), steps, seed, every=1)
    exact = np.clip(trace.reward[:-1].T, 0, 1)  # rewards of a step come from the policy before its update
    name = f"{'adam' if adam else 'sgd'}, {'std' if scaled else 'mean'}"
    return name, rng.binomial(batch * group, exact) / (batch * group)


def _verdict(row: dict[str, Any]) -> Verdict:
    if row["answered"] < 0.5 * row["runs"]:
        return "does not hold"
    if 0.90 <= row["coverage"] <= 0.98:
        return "holds"
    return "does not hold" if row["coverage_high"] < 0.90 or row["coverage_low"] > 0.98 else "cannot tell"


def _claim(name: str, rows: list[dict[str, Any]]) -> Claim:
    half = next(row for row in rows if row["at"] == HALF)
    return Claim(
        f"{name}: the 95 % interval of the last tenth, foretold half-way, covers it in 90 to 98 %, and at least half are answered",
        "stated here",
        f"{half['coverage']:.1%} ({half['coverage_low']:.1%} – {half['coverage_high']:.1%}) of {half['answered']} answers to "
        f"{half['runs']} runs; median error {half['median_error']:.4f}, last value {half['median_error_last_value']:.4f}, "
        f"exponential {half['median_error_exponential']:.4f}",
        _verdict(half),
    )


def run(folder: Path, quick: bool, note: Callable[[str], None]) -> Outcome:
    """500 curves and 500 runs, foretold half-way; about 5 minutes on one core; quick: 20 and 20."""
    count = 20 if quick else 500
    rng = np.random.default_rng(21)  # not the curves that the constants were chosen on
    t = np.arange(1, STEPS + 1)
    laws: list[Trial] = []
    for i in range(count):
        curve = law_curve(rng)
        laws.append(trial(curve.law.name, "laws", t, curve.rewards, HALF))
        if (i + 1) % 50 == 0:
            note(f"laws: {i + 1} of {count}")
    runs: list[Trial] = []
    for i in range(0, count, REPLICAS):
        name, curves = bandit_curves(rng, i)
        runs += [trial(name, "bandits", t, y, HALF, (0.0, 1.0)) for y in curves if np.ptp(y[: STEPS // 2]) > 0]
        if (i + REPLICAS) % 50 == 0:
            note(f"bandit runs: {i + REPLICAS} of {count}")
    tables = {"curves that follow a law": summarise(laws), "bandit runs, which follow none": summarise(runs)}
    claims = [_claim(name, rows) for name, rows in tables.items()]
    by_kind = [
        {"kind": name} | row
        for trials in (laws, runs)
        for name in sorted({x.name for x in trials})
        for row in summarise([x for x in trials if x.name == name])
    ]
    return Outcome(claims, {**tables, "half-way, by kind": by_kind})


PART = Part("forecasts", "coverage and error of forecasts, on laws and on bandit runs", run)
