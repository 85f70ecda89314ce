"""The probe on a real run: the learner's own update and derivative, and a run that is left as it was."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import toml

from delphic.cli import main
from delphic.config import RunConfig, make_config
from delphic.policy.curvature import flatten
from delphic.rollouts import Rollouts
from delphic.training.learner import LocalLearner
from delphic.training.loop import build_parts
from delphic.training.metrics import Meter
from delphic.training.probe import sample
from delphic.training.stiffness import adam_preconditioner, make_curvature


def sgd(quick: dict[str, Any], objective: Any) -> RunConfig:
    quick["objective"] = objective
    quick["task"]["rewards"] = ["tiny_rewards:digits"]
    quick["train"] |= {"optimizer": "sgd", "learning_rate": 1.0, "max_grad_norm": 1e9, "reference_every": 0}
    return make_config(quick, "test")


def moved(config: RunConfig, folder: Path, batch: Rollouts, along: np.ndarray) -> np.ndarray:
    """[d] the step that a fresh learner, first moved by a vector, makes of recorded rollouts."""
    learner = build_parts(config, folder).learner
    assert isinstance(learner, LocalLearner)
    parameters = list(learner.policy.parameters().values())
    parts = np.split(along, np.cumsum([p.numel() for p in parameters])[:-1])
    with torch.no_grad():
        for p, part in zip(parameters, parts, strict=True):
            p.add_(torch.from_numpy(part).reshape(p.shape).to(p))
    before = flatten(parameters)
    learner.learn(batch, 1, Meter(), Meter())
    return flatten(parameters) - before


@pytest.mark.parametrize(
    "objective",
    [
        {"preset": "grpo", "kl_coefficient": 0.5, "kl_corrected": True},
        {"preset": "rloo", "importance": "ratio"},
        {"preset": "dapo"},
    ],
    ids=["grpo with a KL anchor", "token ratios", "dapo"],
)
def test_update_and_fresh_derivative_are_the_learners_own(
    objective: Any, quick: dict[str, Any], reward_folder: Path
) -> None:
    """The derivative by central differences of real steps in float32: 1 % is what those resolve."""
    config = sgd(quick, objective)
    parts = build_parts(config, reward_folder)
    parts.sampler.sync(parts.learner)
    batch = sample(parts, 8, 4, 1)
    learner = parts.learner
    assert isinstance(learner, LocalLearner)
    curvature = make_curvature(learner, batch, "fresh", adam=False)
    prompts = np.arange(8)
    step = moved(config, reward_folder, batch, np.zeros(curvature.size))
    update = curvature.gradient(prompts)
    assert np.linalg.norm(step - update) < 1e-4 * np.linalg.norm(update)
    vector = np.random.default_rng(0).normal(size=curvature.size)
    width = learner.policy.model.config.hidden_size
    vector[:width] = (
        0  # the padding's embedding: torch gives it no gradient, and a random model samples it all the same
    )
    vector *= 0.01 / np.linalg.norm(vector)
    ends = [moved(config, reward_folder, batch, sign * vector) for sign in (1, -1)]
    product = -curvature.product(vector, prompts)
    assert np.linalg.norm((ends[0] - ends[1]) / 2 - product) < 0.01 * np.linalg.norm(product)


@pytest.fixture
def finished(quick: dict[str, Any], reward_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of three steps of six, so that it can be resumed."""
    quick["task"]["rewards"] = ["tiny_rewards:digits"]
    quick["train"]["steps"] = 6
    quick["checkpoint"]["every"] = 3
    monkeypatch.syspath_prepend(str(reward_folder))
    monkeypatch.chdir(reward_folder)
    config = toml(tmp_path / "run.toml", quick)
    assert main(["train", str(config), "--output", str(tmp_path / "run"), "--json"]) == 0
    return tmp_path / "run"


def contents(run: Path) -> dict[str, str]:
    files = (f for f in sorted(run.rglob("*")) if f.is_file() and f.name != "stability.json")
    return {str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def test_probe_writes_stability_and_leaves_the_run_alone(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(finished)
    capsys.readouterr()
    options = ["--checkpoint", "3", "--prompts", "6", "--steps", "2", "--json"]
    assert main(["probe", str(finished), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert contents(finished) == before, "checkpoints, logs and rollouts bit for bit: a resume cannot differ"
    assert found == json.loads((finished / "stability.json").read_text())
    assert (found["step"], found["prompts"], found["completions"]) == (3, 6, 4)
    assert found["low"] <= found["confirmed"] <= found["stiffness"] * 1.02 <= found["high"] * 1.02
    assert found["verdict"] in ("stable", "unstable", "cannot tell")
    assert found["response"]["reward_change"]["low"] < found["response"]["reward_change"]["high"]
    assert found["response"]["low"] <= found["response"]["high"]
    assert main(["probe", str(finished / "checkpoints" / "step_000003"), "--prompts", "4", "--steps", "0"]) == 0
    assert "top eigenvalue of the update's derivative" in " ".join(capsys.readouterr().out.split())
    again = json.loads((finished / "stability.json").read_text())
    assert (again["prompts"], again["response"]) == (4, None)
    assert main(["stability", str(finished), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["stiffness"] == pytest.approx(again["high"])
    assert report["certified"] is again["certified"]
    assert any("measured at step 3" in note for note in report["notes"])


def test_a_certified_file_certifies(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = {"step": 6, "low": 800.0, "high": 1000.0, "certified": True, "prompts_needed": 6}
    (finished / "stability.json").write_text(json.dumps(content))
    capsys.readouterr()
    assert main(["stability", str(finished), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["certified"] is True
    assert report["exact_limit"] == pytest.approx(38 / 1000, rel=1e-6), "β₁ = .9 without lag: ηK = 2 (1 + β₁)/(1 − β₁)"


def test_adams_preconditioner_is_its_own_step(quick: dict[str, Any], reward_folder: Path) -> None:
    """One step of AdamW from rest moves each weight by rate · P · gradient."""
    quick["task"]["rewards"] = ["tiny_rewards:digits"]
    quick["train"] |= {"max_grad_norm": 1e9, "learning_rate": 1e-3}
    parts = build_parts(make_config(quick, "test"), reward_folder)
    learner = parts.learner
    assert isinstance(learner, LocalLearner)
    parts.sampler.sync(learner)
    batch = sample(parts, 8, 4, 1)
    gradient = make_curvature(learner, batch, "total", adam=False).gradient(np.arange(8))
    before = flatten(learner.policy.parameters().values())
    learner.learn(batch, 1, Meter(), Meter())
    change = flatten(learner.policy.parameters().values()) - before
    large = np.abs(gradient) > 1e-4
    assert change[large] == pytest.approx((1e-3 * adam_preconditioner(learner) * gradient)[large], rel=1e-2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "neither a run's folder nor one of its checkpoints"),
        (["nowhere", "--prompts", "3"], "--prompts must be 4 or more"),
        (["nowhere", "--factor", "1"], "--factor must be above 1"),
        (["nowhere", "--completions", "1"], "--completions must be 2 or more"),
    ],
)
def test_mistakes_get_one_sentence(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", *arguments]) == 2
    assert message in capsys.readouterr().err
