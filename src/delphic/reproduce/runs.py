"""Short training runs of a study: held-out accuracy by step, each run kept as soon as it is finished."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from delphic.config import RunConfig, make_config
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
    key = f"{config.fingerprint()} {','.join(map(str, at))}"
    done = _finished(kept)
    if key not in done:
        parts = build_parts(config, Path())
        accuracy = {}
        for step in train_steps(parts):
            if step in at:
                evaluation = parts.evaluate()
                assert evaluation is not None
                accuracy[step] = evaluation.accuracy
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"run": key, "accuracy": accuracy}) + "\n")
        sampling = config.sampling
        text = ", ".join(f"{value:.3f} at {step}" for step, value in accuracy.items())
        note(f"{sampling.prompts} × {sampling.completions}, seed {config.seed}: held-out accuracy {text}")
        return accuracy
    return done[key]


def train_steps(parts: Parts) -> Iterator[int]:
    """Yields 1, 2, … after each step of the config; nothing is written."""
    assert isinstance(parts.source, Generator)
    cursor = 0
    for step in range(1, parts.config.train.steps + 1):
        made = parts.source.generate(step, cursor)
        cursor = made.cursor
        parts.learner.learn(made.rollouts, step, Meter(), Meter())
        parts.sampler.sync(parts.learner)
        yield step


def _finished(kept: Path) -> dict[str, dict[int, float]]:
    """Runs by their key; a last line cut short by an interruption is none."""
    if not kept.exists():
        return {}
    out = {}
    for line in kept.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        out[row["run"]] = {int(step): value for step, value in row["accuracy"].items()}
    return out
