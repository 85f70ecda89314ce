"""Short training runs of a study: held-out accuracy by step, each run kept as soon as it is finished."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from delphic.config import RunConfig, make_config
from delphic.rollouts import Rollouts
from delphic.training.evaluate import sample_held_out
from delphic.training.generate import Generator
from delphic.training.loop import Parts, build_parts
from delphic.training.metrics import Meter

NO_CLIPPING = 1e9
RATE = 2e-3  # the best of 0.0005, 0.001, 0.002, 0.004 at G = 8, N = 128, 60 steps, with a seed that no study uses


def plain_config(prompts: int, completions: int, steps: int, seed: int, **evaluation: int) -> RunConfig:
    """The built-in model under the estimator that the theory is about: leave-one-out baseline, whole completions, no
    clipping, plain SGD, prompts drawn independently."""
    content: dict[str, Any] = {
        "seed": seed,
        "objective": "rloo",
        "model": {"threads": 1},
        "sampling": {"prompts": prompts, "completions": completions, "max_new_tokens": 6},
        "train": {
            "steps": steps,
            "optimizer": "sgd",
            "learning_rate": RATE,
            "max_grad_norm": NO_CLIPPING,
            "reference_every": 0,
            "estimate": False,
        },
        "evaluation": evaluation,
    }
    return make_config(content, "reproduce")


def course(config: RunConfig, at: Sequence[int], kept: Path, note: Callable[[str], None]) -> dict[int, float]:
    """Held-out accuracy after each of the steps `at`; read, not run, if the file `kept` has this very run."""

    def run() -> dict[str, Any]:
        parts = build_parts(config, Path())
        accuracy = {}
        for step, _, _ in train_steps(parts):
            if step in at:
                evaluation = parts.evaluate()
                assert evaluation is not None
                accuracy[step] = evaluation.accuracy
        sampling = config.sampling
        text = ", ".join(f"{value:.3f} at {step}" for step, value in accuracy.items())
        note(f"{sampling.prompts} × {sampling.completions}, seed {config.seed}: held-out accuracy {text}")
        return {"accuracy": accuracy}

    found = kept_or_run(kept, f"{config.fingerprint()} {','.join(map(str, at))}", run)
    return {int(step): value for step, value in found["accuracy"].items()}


@dataclass(frozen=True)
class Course:
    """A run as it was logged. reward [steps]: mean of the step's rollouts. within: mean over steps and prompts of the
    unbiased variance of a group's rewards. held_out: step → [problems] mean reward of `samples` completions."""

    reward: np.ndarray
    within: float
    held_out: dict[int, np.ndarray]


def recorded(config: RunConfig, at: Sequence[int], kept: Path, note: Callable[[str], None]) -> Course:
    """The run's course, evaluated before its first step (0) and after each of the steps `at`; kept as `course` keeps."""

    def run() -> dict[str, Any]:
        parts = build_parts(config, Path())
        source, asked = parts.source, config.evaluation
        assert isinstance(source, Generator)
        problems = list(source.task.held_out[: asked.problems])

        def look() -> list[float]:
            found = sample_held_out(parts.sampler, source.rewards, problems, asked.samples)
            return found.reward.reshape(len(problems), -1).mean(1).tolist()

        held_out, reward, within = {"0": look()}, [], []
        for step, rollouts, _ in train_steps(parts):
            groups = rollouts.reward.reshape(-1, config.sampling.completions)
            reward.append(float(groups.mean()))
            within.append(float(groups.var(1, ddof=1).mean()))
            if step in at:
                held_out[str(step)] = look()
        note(
            f"{config.objective.name}, {config.train.optimizer}, G = {config.sampling.completions}, seed {config.seed}"
        )
        return {"reward": reward, "within": float(np.mean(within)), "held_out": held_out}

    row = kept_or_run(kept, f"recorded {config.fingerprint()} {','.join(map(str, at))}", run)
    held_out = {int(step): np.array(means) for step, means in row["held_out"].items()}
    return Course(np.array(row["reward"]), row["within"], held_out)


def train_steps(parts: Parts) -> Iterator[tuple[int, Rollouts, Meter]]:
    """Yields (1, its rollouts, its figures), (2, …) after each step of the config; nothing is written. At a sync the rollouts of all steps
    up to the next one are sampled."""
    assert isinstance(parts.source, Generator)
    train, cursor = parts.config.train, 0
    waiting: list[Rollouts] = []
    for step in range(1, train.steps + 1):
        if not waiting:
            parts.sampler.sync(parts.learner)
            for ahead in range(step, min(step + train.sync_interval, train.steps + 1)):
                made = parts.source.generate(ahead, cursor)
                cursor = made.cursor
                waiting.append(made.rollouts)
        rollouts = waiting.pop(0)
        meter = Meter()
        parts.learner.learn(rollouts, step, meter, Meter())
        yield step, rollouts, meter


def kept_or_run(kept: Path, key: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The row of this run in the file, or what `run` gives, which is added to it."""
    done = _finished(kept)
    if key not in done:
        done[key] = run()
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"run": key, **done[key]}) + "\n")
    return done[key]


def _finished(kept: Path) -> dict[str, dict[str, Any]]:
    """Runs by their key; a last line cut short by an interruption is none."""
    if not kept.exists():
        return {}
    out = {}
    for line in kept.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        out[row["run"]] = row
    return out
