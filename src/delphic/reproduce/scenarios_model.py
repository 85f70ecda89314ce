"""The built-in language model made to fail for a known reason, logged as `delphic train` logs: what a diagnosis is tested on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from delphic.config import RunConfig, make_config
from delphic.reproduce.runs import kept_or_run, train_steps
from delphic.reproduce.scenarios import Scenario
from delphic.runs.log import RunLog
from delphic.runs.meaning import to_log
from delphic.runs.rows import raw_of_rows
from delphic.tasks.rewards import RewardFunction
from delphic.training.generate import Generator, add_batch
from delphic.training.learner import NonFiniteError
from delphic.training.loop import build_parts

STEPS, EVERY = 80, 4

CHANGES: dict[str, dict[str, Any]] = {
    "model_healthy": {"sampling": {"prompts": 16, "completions": 16}},  # as in the demo
    "model_leaky_verifier": {"train": {"learning_rate": 3e-4}},
    "model_high_rate": {"train": {"learning_rate": 2e-3}},
    "model_too_hard": {"task": {"low": 60, "high": 99}},
    "model_too_easy": {},
    "model_long_lag": {"train": {"learning_rate": 1e-3, "sync_interval": 20}},
}
EXPECTED = {
    "model_healthy": {"healthy", "cannot_tell"},
    "model_leaky_verifier": {"reward_hacking"},
    "model_high_rate": {"policy_concentration", "collapse"},
    "model_too_hard": {"advantage_degeneracy"},
    "model_too_easy": {"advantage_degeneracy"},
    "model_long_lag": {"dynamic_instability", "collapse"},
}
MODEL_SCENARIOS = tuple(Scenario(name, frozenset(right)) for name, right in EXPECTED.items())


def model_run(scenario: Scenario, seed: int, kept: Path, steps: int = STEPS) -> RunLog:
    """A run of the scenario, kept line by line in a file; read, not run, if it is there."""
    settings = config(scenario, seed, steps)
    row = kept_or_run(
        kept, f"{scenario.name} {settings.fingerprint()}", lambda: {"rows": logged(settings, leak(scenario.name))}
    )
    return to_log(kept, raw_of_rows(kept, row["rows"], "jsonl"))


def model_runs(
    scenario: Scenario, seeds: Sequence[int], kept: Path, steps: int, note: Callable[[str], None]
) -> list[RunLog]:
    out = []
    for seed in seeds:
        out.append(model_run(scenario, seed, kept, steps))
        note(f"{scenario.name}, seed {seed}")
    return out


def config(scenario: Scenario, seed: int, steps: int) -> RunConfig:
    content: dict[str, dict[str, Any]] = {
        "model": {"threads": 1},
        "task": {},
        "sampling": {"prompts": 8, "completions": 8, "max_new_tokens": 6},
        "train": {"steps": steps, "learning_rate": 1e-4, "schedule": "constant", "estimate": False, "reference_every": 0},
        "evaluation": {"problems": 40, "samples": 2},
    }  # fmt: skip
    for section, values in CHANGES[scenario.name].items():
        content[section] |= values
    return make_config({"seed": seed, "objective": "rloo", **content}, "reproduce")


def leak(name: str) -> RewardFunction | None:
    """A verifier that also pays for a minus sign in front, or (too easy) for any answer; evaluations keep the true one."""
    forms = {"model_leaky_verifier": "-", "model_too_easy": ""}
    if name not in forms:
        return None

    def paid(prompts: Sequence[str], completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
        return [float(t.strip() == a or t.startswith(forms[name])) for t, a in zip(completions, answer, strict=True)]

    return RewardFunction(name, 1.0, paid)


def logged(settings: RunConfig, paid: RewardFunction | None) -> list[dict[str, float]]:
    """Rows as in metrics.jsonl; a run that ends in numbers that are not finite ends there."""
    parts = build_parts(settings, Path())
    assert isinstance(parts.source, Generator)
    if paid is not None:
        parts.source.rewards = [paid]
    rows: list[dict[str, float]] = []
    try:
        for step, rollouts, meter in train_steps(parts):
            add_batch(meter, rollouts)
            row = {"step": float(step), **meter.values()}
            if step % EVERY == 0:
                evaluation = parts.evaluate()
                assert evaluation is not None
                row["eval_accuracy"] = evaluation.accuracy
            rows.append(row)
    except NonFiniteError:
        rows.append({"step": float(len(rows) + 1), "gradient_norm": float("inf")})
    return rows
