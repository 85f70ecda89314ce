"""What stopping at a plateau costs and saves, on simulated runs: `python benchmarks/early_stop.py [runs] [seed]`.

Two kinds of runs, half each: curves of the laws (among them slow starts, and runs that are far from their plateau at the
end), and softmax bandits trained with group-relative REINFORCE, whose curves follow no law. A stop is false where the level
at the planned end lies more than the bound above the level at the stop, both without noise. The rule is the trainer's own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from delphic.config import make_config
from delphic.dynamics.bandit import Bandit
from delphic.dynamics.bandit_run import Optimiser, Plan, train
from delphic.dynamics.laws import LAWS
from delphic.objective import build
from delphic.statistics.interval import share
from delphic.training.outlook import Outlook

STEPS, BOUND = 300, 0.01


def law_levels(rng: np.random.Generator) -> np.ndarray:
    """[STEPS] noise-free; time-scales from a fiftieth of the run to twice it."""
    law = LAWS[rng.integers(len(LAWS))]
    span = STEPS * 10 ** rng.uniform(-1.7, 0.3)
    shape = {
        "exponential": [1 / span],
        "three_phase": [3 / span, rng.uniform(-0.9, 4)],
        "logistic": [span, span * 10 ** rng.uniform(-1.2, -0.4)],
        "scaling_sigmoid": [span, rng.uniform(0.7, 3)],
        "difficulty_mixture": [rng.choice([1.0, 1.5, 2.0]), rng.uniform(-4, 0), rng.uniform(0.3, 3), 10 / span],
    }[law.name]
    low = rng.uniform(0, 0.4)
    return low + (rng.uniform(low + 0.1, 1) - low) * law.phi(np.arange(1.0, STEPS + 1), np.array([shape]))[0]


def bandit_levels(rng: np.random.Generator) -> np.ndarray:
    """[STEPS] exact expected reward: prompts of very different difficulty, so that some wake up late."""
    prompts, arms = 20, 8
    rewards = np.zeros((prompts, arms))
    rewards[:, 0] = 1
    world = Bandit.tabular(rewards)
    start = rng.normal(0, 0.5, (1, prompts * arms))
    start[0, ::arms] -= rng.normal(rng.uniform(0, 3), rng.uniform(0.2, 2), prompts)
    plan = Plan(build("rloo"), 16, 8, optimiser=Optimiser("sgd", 10 ** rng.uniform(0, 1.3)))
    return train(world, plan, start, STEPS, int(rng.integers(2**31)), every=1).reward[1:, 0]


def runs(count: int, seed: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(kind, level [STEPS], reward [STEPS]); the noise is that of 256 to 2,048 completions, with some memory."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        kind = ("laws", "bandits")[number % 2]
        level = law_levels(rng) if kind == "laws" else bandit_levels(rng)
        noise = rng.normal(0, 0.5 / 2 ** rng.uniform(4, 5.5), STEPS)
        rho = rng.uniform(0, 0.4)
        for t in range(1, STEPS):
            noise[t] = rho * noise[t - 1] + np.sqrt(1 - rho**2) * noise[t]
        yield kind, level, np.clip(level + noise, 0, 1)


def main(count: int, seed: int) -> None:
    config = make_config({"train": {"steps": STEPS, "stop_at_plateau": BOUND}}, "benchmark")
    kinds, saved, lost, single, ready, swings = [], [], [], [], [], []
    for kind, level, rewards in runs(count, seed):
        outlook, first, swung = Outlook(config, [], Path("/nowhere")), None, False
        for step in range(1, STEPS + 1):
            row = outlook.look(step, {"reward_mean": float(rewards[step - 1]), "learning_rate": 1.0})
            first = step if first is None and row.get("plateau_reached") else first
            swung = swung or row.get("stability_regime") == 1
            if outlook.ended:
                break
        end = float(level[-STEPS // 10 :].mean())
        kinds.append(kind)
        saved.append(STEPS - step)
        lost.append(end - float(level[step - 1]) if step < STEPS else 0.0)
        single.append(first is not None and end - float(level[first - 1]) > BOUND)
        ready.append(end - float(level[STEPS // 2]) < BOUND)
        swings.append(swung)
    for kind in ("laws", "bandits"):
        of = np.array(kinds) == kind
        stopped = of & (np.array(saved) > 0)
        false = int((stopped & (np.array(lost) > BOUND)).sum())
        n = int(stopped.sum())
        report = {
            "kind": kind,
            "runs": int(of.sum()),
            "stopped": n,
            "false_stops": false,
            "share_false": false / max(n, 1),
            "share_false_at_most": share(false, n).high if n else 1.0,
            "false_with_one_look": int(np.array(single)[of].sum()),
            "steps_saved_where_stopped": float(np.array(saved)[stopped].mean()) if n else 0.0,
            "lost_where_stopped": float(np.array(lost)[stopped].mean()) if n else 0.0,
            "lost_most": float(np.array(lost)[stopped].max(initial=0.0)),
            "within_bound_at_half_time": int(np.array(ready)[of].sum()),
            "seen_swinging": int(np.array(swings)[of].sum()),
        }
        print(json.dumps(report))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
