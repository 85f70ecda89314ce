"""Bandit runs that fail for a known reason, and runs that do not: what a diagnosis is tested on.

Every failure is caused, never drawn: a leaked reward, a learning rate above the exact limit of the lag, prompts without a right
answer. A scenario has ten worlds, which differ in prompts, features, optimiser and step size; a seed decides the world and the
draws in it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
from scipy.optimize import minimize
from scipy.special import ndtri

from delphic.dynamics.bandit import Bandit
from delphic.dynamics.bandit_run import Anchor, Optimiser, Plan, mean_step, stiffness
from delphic.dynamics.stability import Lag, exact_limit
from delphic.objective import build
from delphic.reproduce.logged_bandit import LENGTH_SPREAD, STEPS, World, logged_runs

WORLDS = 10
PROMPTS, ARMS, SHARED = 32, 4, 8  # shared: features that mean nothing
ARMS_NOISY, BEST = 8, 0.9
ANCHOR = 0.3  # weight of the KL: the fixed point is well inside
PLAIN = {"preset": "rloo"}
SCALED = {"preset": "dr_grpo", "mask": "none", "importance": "none", "scale": "std"}
LAGS = (Lag(offset=4), Lag(interval=6), Lag(interval=2, offset=3))


@dataclass(frozen=True)
class Scenario:
    """expected: the verdicts that count as right. severity: 1 to 3, None where there is nothing to grade."""

    name: str
    expected: frozenset[str]
    severity: int | None = None

    @property
    def label(self) -> str:
        return self.name if self.severity is None else f"{self.name} {self.severity}"


def bandit_runs(scenario: Scenario, seeds: Sequence[int], steps: int = STEPS) -> list[pl.DataFrame]:
    """The logged run of each seed, a row a step, columns as in `runs.columns`."""
    out: dict[int, pl.DataFrame] = {}
    for number in range(WORLDS):
        mine = [seed for seed in seeds if seed % WORLDS == number]
        if mine:
            out |= zip(mine, logged_runs(world(scenario, number), mine, steps), strict=True)
    return [out[seed] for seed in seeds]


@lru_cache(maxsize=64)
def world(scenario: Scenario, number: int) -> World:
    """World `number` of the scenario; the severity changes its cause and nothing else."""
    rng = np.random.default_rng([zlib.crc32(scenario.name.encode()), number])
    return MAKERS[scenario.name](rng, number, scenario.severity or 1)


# -- what worlds are made of


def lessons(rng: np.random.Generator, odds: np.ndarray) -> tuple[Bandit, np.ndarray]:
    """(a bandit of prompts with one right arm each, the policy θ to begin with). odds [P]: of the right arm in nats against each
    other arm, up to what the shared features add; one direction helps every prompt."""
    P = len(odds)
    rewards = np.zeros((P, ARMS))
    rewards[np.arange(P), rng.integers(ARMS, size=P)] = 1
    shared = rng.normal(size=(P, ARMS, SHARED)) / np.sqrt(SHARED)
    skill = rewards[:, :, None] * rng.uniform(0.3, 1.5, (P, 1, 1))
    features = np.concatenate([shared, skill, rewards[:, :, None] * odds[:, None, None]], axis=2)
    start = np.zeros(SHARED + 2)
    start[-1] = 1.0
    return Bandit(features, rewards), start


def size(number: int) -> dict[str, Any]:
    """Prompts and completions of a step, and the objective: each world has its own."""
    prompts, completions = ((16, 8), (8, 16), (32, 8))[number % 3]
    return {"objective": build(SCALED if number % 2 else PLAIN), "prompts": prompts, "completions": completions}


def paced(bandit: Bandit, start: np.ndarray, number: int, half_time: float, best: float = 1.0, **anchor: Any) -> Plan:
    """A plan whose expected update goes half the way to the `best` reward in `half_time` steps; every other world has momentum."""
    plan = Plan(**size(number), **anchor)
    half = (float(bandit.expected_reward(start)) + best) / 2
    pace, theta, count = 0.05, start, 0
    while bandit.expected_reward(theta) < half and count < 4000:
        theta, count = theta + pace * mean_step(bandit, plan, theta, start), count + 1
    momentum = 0.9 if number % 4 > 1 else 0.0
    rate = pace * count / half_time * (1 - momentum)
    return replace(plan, optimiser=Optimiser("sgd", rate, momentum))


def adam(plan: Plan, rate: float) -> Plan:
    return replace(plan, optimiser=Optimiser("adam", rate, betas=(0.9, 0.99)))


# -- healthy


def slow_start(rng: np.random.Generator, number: int, severity: int) -> World:
    """Few right answers at first: the reward rises late, along an S."""
    bandit, start = lessons(rng, rng.normal(-2.0, 0.7, PROMPTS))
    plan = paced(bandit, start, number, rng.uniform(90, 130))
    return World(bandit, start, start, adam(plan, 0.012) if number % 5 == 4 else plan)


def fast(rng: np.random.Generator, number: int, severity: int) -> World:
    bandit, start = lessons(rng, rng.normal(rng.uniform(-0.5, 0.5), 0.8, PROMPTS))
    plan = paced(bandit, start, number, rng.uniform(20, 50))
    return World(bandit, start, start, adam(plan, 0.03) if number % 5 == 4 else plan)


def noisy_arms(rng: np.random.Generator) -> tuple[Bandit, np.ndarray]:
    """(seven arms a prompt whose chances of success differ little and a rare one that is much better, θ). No two prompts share
    anything."""
    rewards = np.stack([rng.permuted(np.append(np.linspace(0.4, 0.6, ARMS_NOISY - 1), BEST)) for _ in range(8)])
    return Bandit.tabular(rewards, "binary"), np.where(rewards == BEST, -2.0, 0.0).reshape(-1)


def learns_noisy_arms(rng: np.random.Generator, number: int, severity: int) -> World:
    """The world of `concentrates` at a rate that finds the better arms."""
    bandit, start = noisy_arms(rng)
    return World(bandit, start, start, paced(bandit, start, number, rng.uniform(80, 140), BEST))


def plateau(rng: np.random.Generator, number: int, severity: int) -> World:
    """The fixed point of reward and KL anchor, reached early."""
    bandit, start = one_skill(rng)
    plan = anchored(number)
    point = fixed_point(bandit, start)
    stiff = float(stiffness(bandit, plan, point, start)[0].real)
    return World(bandit, start, start, replace(plan, optimiser=Optimiser("sgd", rng.uniform(0.1, 0.2) / stiff)))


def noise_only(rng: np.random.Generator, number: int, severity: int) -> World:
    made = fast(rng, number, severity)
    return replace(made, plan=replace(made.plan, optimiser=Optimiser("sgd", 0.0)))


# -- swings


def one_skill(rng: np.random.Generator) -> tuple[Bandit, np.ndarray]:
    """Prompts that are learned along one direction only, so that the reward shows the mode which the lag makes swing."""
    odds = rng.normal(rng.uniform(-1.6, -0.8), 0.4, PROMPTS)
    bandit, _ = lessons(rng, odds)
    right = bandit.rewards[:, :, None]
    features = np.concatenate([right * rng.uniform(0.8, 1.2, (PROMPTS, 1, 1)), right * odds[:, None, None]], axis=2)
    return Bandit(features, bandit.rewards), np.array([0.0, 1.0])


def anchored(number: int) -> Plan:
    """The whole update lags: the anchor's pull is the sampling policy's, too."""
    return Plan(build(PLAIN), (32, 16)[number % 2], 16, anchor=Anchor(ANCHOR, lagged=True))


def fixed_point(bandit: Bandit, reference: np.ndarray) -> np.ndarray:
    """θ of the highest reward − weight · KL: there the expected update is zero."""
    found = minimize(
        lambda theta: -float(bandit.goal(theta, reference, ANCHOR)),
        reference,
        jac=lambda theta: ANCHOR * bandit.kl_gradient(theta, reference) - bandit.gradient(theta),
        method="BFGS",
        options={"gtol": 1e-10},
    )
    return np.asarray(found.x)


def lagged(rng: np.random.Generator, number: int, multiple: float, away: float) -> World:
    """A rate of `multiple` limits of the lag, from a share `away` of the way from the fixed point back to the reference."""
    bandit, reference = one_skill(rng)
    plan, lag = anchored(number), LAGS[number % len(LAGS)]
    point = fixed_point(bandit, reference)
    stiff = float(stiffness(bandit, plan, point, reference)[0].real)
    rate = multiple * exact_limit(replace(lag, stiffness=stiff))
    plan = replace(plan, interval=lag.interval, offset=lag.offset, optimiser=Optimiser("sgd", rate))
    return World(bandit, point + away * (reference - point), reference, plan)


def ringing(rng: np.random.Generator, number: int, severity: int) -> World:
    return lagged(rng, number, (0.5, 0.65, 0.8)[severity - 1], 0.5)


def growing(rng: np.random.Generator, number: int, severity: int) -> World:
    return lagged(rng, number, (1.1, 1.4, 2.0)[severity - 1], 0.1)


# -- failures of reward, prompts, policy, set-up


def concentrates(rng: np.random.Generator, number: int, severity: int) -> World:
    """No anchor and a high rate among arms that differ little: the policy is sure before it knows."""
    bandit, start = noisy_arms(rng)
    return World(bandit, start, start, paced(bandit, start, number, (8.0, 4.0, 2.0)[severity - 1], BEST))


def hacked(rng: np.random.Generator, number: int, severity: int) -> World:
    """An arm that the verifier pays and the truth does not, rare at first, in a share of the prompts."""
    bandit, start = lessons(rng, rng.normal(0.0, 0.7, PROMPTS))
    leaky = np.arange(PROMPTS) < PROMPTS * (0.35, 0.65, 1.0)[severity - 1]
    truth = 0.7 * bandit.rewards
    leak = (np.argmax(bandit.rewards, axis=1) + 1) % ARMS
    paid, surface = truth.copy(), np.zeros((PROMPTS, ARMS, 1))
    paid[leaky, leak[leaky]] = 0.97
    surface[leaky, leak[leaky]] = 3.0  # one form for all prompts, so it is learned fast once it is found
    features = np.concatenate([bandit.features, surface], axis=2)
    start = np.append(start, -1.0)
    plan = paced(Bandit(features, truth), start, number, rng.uniform(20, 40), 0.7)
    return World(Bandit(features, paid, "binary"), start, start, plan, truth)


def too_hard(rng: np.random.Generator, number: int, severity: int) -> World:
    """A share of the prompts has no right answer within reach."""
    made = fast(rng, number, severity)
    rewards = made.bandit.rewards.copy()
    rewards[: round(PROMPTS * (0.7, 0.85, 1.0)[severity - 1])] = 0.0
    return replace(made, bandit=Bandit(made.bandit.features, rewards))


def too_easy(rng: np.random.Generator, number: int, severity: int) -> World:
    """A share of the prompts is solved from the start."""
    odds = rng.normal(0.0, 0.8, PROMPTS)
    odds[: round(PROMPTS * (0.7, 0.85, 1.0)[severity - 1])] = 8.0
    bandit, start = lessons(rng, odds)
    plan = fast(rng, number, severity).plan
    return World(bandit, start, start, plan)


def cut_off(rng: np.random.Generator, number: int, severity: int) -> World:
    """A length limit below nearly all completions."""
    share = (0.9, 0.97, 1 - 1e-9)[severity - 1]
    return replace(fast(rng, number, severity), length=float(np.exp(LENGTH_SPREAD * ndtri(share))))


def mismatched(rng: np.random.Generator, number: int, severity: int) -> World:
    """The sampler's logits are off, without any lag."""
    return replace(fast(rng, number, severity), sampler_error=(0.1, 0.3, 1.0)[severity - 1])


MAKERS: dict[str, Callable[[np.random.Generator, int, int], World]] = {
    "healthy_slow_start": slow_start,
    "healthy_fast": fast,
    "healthy_noisy_arms": learns_noisy_arms,
    "plateau": plateau,
    "noise_only": noise_only,
    "damped_ringing": ringing,
    "growing_oscillation": growing,
    "concentration": concentrates,
    "hacking": hacked,
    "degeneracy_hard": too_hard,
    "degeneracy_easy": too_easy,
    "all_truncated": cut_off,
    "mismatch": mismatched,
}
HEALTHY = ("healthy_slow_start", "healthy_fast", "healthy_noisy_arms")
_UNGRADED = {name: {"healthy", "plateau"} for name in HEALTHY} | {
    "plateau": {"plateau"},
    "noise_only": {"noise_only", "cannot_tell"},
}
_GRADED = {
    "damped_ringing": {"healthy", "plateau"},
    "growing_oscillation": {"dynamic_instability"},
    "concentration": {"policy_concentration"},
    "hacking": {"reward_hacking"},
    "degeneracy_hard": {"advantage_degeneracy"},
    "degeneracy_easy": {"advantage_degeneracy"},
    "all_truncated": {"all_truncated"},
    "mismatch": {"sampler_mismatch"},
}
SCENARIOS = tuple(Scenario(name, frozenset(right)) for name, right in _UNGRADED.items()) + tuple(
    Scenario(name, frozenset(right), severity) for name, right in _GRADED.items() for severity in (1, 2, 3)
)
