"""The constants of a step's own rollouts, Adam's units, and that measuring changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Silent

from delphic.config import RunConfig, make_config
from delphic.errors import UserError
from delphic.planning.advice import advise
from delphic.planning.pilot import run_pilot
from delphic.policy.logprobs import score
from delphic.rollouts import Rollouts
from delphic.statistics.group_size import estimate_constants
from delphic.statistics.ustatistic import baseline_weights
from delphic.training.loop import Parts, build_parts, train
from delphic.training.noise import adam_factors, adam_moments, noise_figures, score_groups, second_moments, whole_groups
from delphic.training.optimiser import Optimiser
from delphic.training.team import Team


@pytest.fixture
def measured(quick: dict[str, Any]) -> dict[str, Any]:
    quick["task"]["rewards"] = ["tiny_rewards:digits"]
    quick["sampling"] |= {"prompts": 5, "completions": 4}
    quick["train"] |= {"steps": 4, "statistics_every": 2}
    quick["evaluation"] |= {"problems": 0}
    return quick


@pytest.fixture
def batch(measured: dict[str, Any], reward_folder: Path) -> tuple[RunConfig, Parts, Rollouts]:
    config = make_config(measured, "test")
    parts = build_parts(config, reward_folder)
    parts.policy.model.double()
    return config, parts, parts.source.generate(1, 0).rollouts


def gradients(parts: Parts, group: Rollouts) -> dict[str, torch.Tensor]:
    """The leave-one-out gradient of one group, completion by completion."""
    out = {name: torch.zeros_like(p) for name, p in parts.policy.parameters().items()}
    for i, w in enumerate(baseline_weights(group.reward, "loo")):
        logp = score(parts.policy, [group.prompt_tokens[i]], [group.tokens[i]], 1.0).logp.sum()
        found = torch.autograd.grad(w * logp, list(parts.policy.parameters().values()))
        out = {name: total + g for (name, total), g in zip(out.items(), found, strict=True)}
    return out


def test_second_moments_are_those_of_the_groups_gradients(batch: tuple[RunConfig, Parts, Rollouts]) -> None:
    config, parts, rollouts = batch
    groups = whole_groups(rollouts)
    found = second_moments(parts.policy, groups, config)
    each = [gradients(parts, group) for group in groups]
    for name, v in found.items():
        g = torch.stack([x[name] for x in each])
        # B₀ = B: the square of the batch's own gradient, whose mean is g² + Var/B
        assert torch.allclose(v, g.mean(0) ** 2, rtol=1e-4, atol=1e-9), name
    smaller = config.model_copy(update={"train": config.train.model_copy(update={"minibatches": 2})})
    for name, v in second_moments(parts.policy, groups, smaller).items():
        g = torch.stack([x[name] for x in each])
        assert torch.allclose(v, g.mean(0) ** 2 + g.var(0) * (1 / 2 - 1 / 5), rtol=1e-4, atol=1e-9), name


def test_a_batch_of_fewer_prompts_has_the_second_moments_of_all_such_batches() -> None:
    """The formula, by enumeration: the mean over all pairs of 4 groups, drawn with replacement from a population that they
    are, of the square of a pair's mean is g² + σ²/2; ḡ² + s²(1/2 − 1/4) estimates it without bias."""
    rng = np.random.default_rng(0)
    population = rng.normal(size=3)
    wanted = np.mean([(a + b) ** 2 / 4 for a in population for b in population])
    draws = np.array(np.meshgrid(*[population] * 4)).reshape(4, -1)
    found = draws.mean(0) ** 2 + draws.var(0, ddof=1) * (1 / 2 - 1 / 4)
    assert found.mean() == pytest.approx(wanted, rel=1e-12)


def test_adams_units_are_those_of_scaled_scores(batch: tuple[RunConfig, Parts, Rollouts]) -> None:
    config, parts, rollouts = batch
    groups = whole_groups(rollouts)
    ones = {name: torch.ones_like(p) for name, p in parts.policy.parameters().items()}
    plain, same = score_groups(parts.policy, groups, config, {name: v - 2e-8 for name, v in ones.items()})
    assert same is not None
    assert estimate_constants(same).c2.value == pytest.approx(estimate_constants(plain).c2.value, rel=1e-6)
    quartered = score_groups(parts.policy, groups, config, {name: v / 4 for name, v in ones.items()})[1]
    assert quartered is not None
    for name in ("c1", "c2", "c3"):
        a, b = (getattr(estimate_constants(p), name).value for p in (quartered, plain))
        assert a == pytest.approx(4 * b, rel=1e-6)
    factors = adam_factors({"w": torch.tensor([0.0, 4.0])})
    assert factors["w"].tolist() == pytest.approx([0, 0.5])


def test_saved_moments_take_one_update_from_the_groups(batch: tuple[RunConfig, Parts, Rollouts]) -> None:
    config, parts, rollouts = batch
    groups = whole_groups(rollouts)
    own = second_moments(parts.policy, groups, config)
    first = next(iter(own))
    saved = {name: torch.zeros_like(v) if name == first else 100 * v for name, v in own.items()}
    scale = sum(float(v.sum()) for v in saved.values()) / sum(float(v.sum()) for v in own.values())
    found = adam_moments(parts.policy, groups, config, saved)
    assert torch.allclose(found[first], 0.001 * scale * own[first])
    other = list(own)[-1]
    assert torch.allclose(found[other], (99.9 + 0.001 * scale) * own[other])


def test_the_optimisers_second_moments_are_bias_corrected(quick: dict[str, Any]) -> None:
    config = make_config(quick, "test")
    weight = torch.nn.Parameter(torch.zeros(3))
    optimiser = Optimiser({"w": weight}, config.train)
    assert optimiser.second_moments() is None
    for step in range(3):
        weight.grad = torch.tensor([1.0, -2.0, 0.0])
        optimiser.step(step)
    moments = optimiser.second_moments()
    assert moments is not None
    assert moments["w"].tolist() == pytest.approx([1, 4, 0], rel=1e-4)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_measuring_changes_no_bit_and_survives_a_stop(
    optimizer: str, measured: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    measured["train"]["optimizer"] = optimizer
    config = make_config(measured, "test")
    train(config, tmp_path / "with", reward_folder, resume=False, display=Silent())
    train(config, tmp_path / "stopped", reward_folder, resume=False, display=Silent(stop_after=1))
    train(config, tmp_path / "stopped", reward_folder, resume=True, display=Silent())
    measured["train"]["statistics_every"] = 0
    train(make_config(measured, "test"), tmp_path / "without", reward_folder, resume=False, display=Silent())
    weights = [
        (tmp_path / run / "checkpoints" / "step_000004" / "model.safetensors").read_bytes()
        for run in ("with", "stopped", "without")
    ]
    assert weights[0] == weights[1] == weights[2]
    assert (tmp_path / "with" / "metrics.jsonl").read_bytes() == (tmp_path / "stopped" / "metrics.jsonl").read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "with" / "metrics.jsonl").read_text().splitlines()]
    bare = [json.loads(line) for line in (tmp_path / "without" / "metrics.jsonl").read_text().splitlines()]
    assert [{k: v for k, v in row.items() if not k.startswith("statistics/")} for row in rows] == bare
    assert ["statistics/c1" in row for row in rows] == [False, True, False, True]
    for row in rows[1::2]:
        assert row["statistics/c3_low"] <= row["statistics/c3"] <= row["statistics/c3_high"]
        assert sum(v for k, v in row.items() if k.startswith("statistics/share_")) == pytest.approx(1)
    timings = [json.loads(line) for line in (tmp_path / "with" / "timing.jsonl").read_text().splitlines()]
    assert ["seconds_statistics" in row for row in timings] == [False, True, False, True]


def test_what_cannot_be_estimated_is_left_out(batch: tuple[RunConfig, Parts, Rollouts]) -> None:
    config, parts, rollouts = batch
    first = noise_figures(parts.policy, rollouts, config, None, Team())
    assert "statistics/critical_batch" not in first, "v̂ from the rollouts themselves takes ‖g‖² below zero"
    silent = rollouts.with_(reward=np.ones(len(rollouts)))
    assert noise_figures(parts.policy, silent, config, None, Team()) == {}
    reward = rollouts.reward.copy()
    reward[[0, 4, 8]] = np.nan  # three of the five groups
    assert noise_figures(parts.policy, rollouts.with_(reward=reward), config, None, Team()) == {}


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("sampling", {"completions": 3}, "c1, c2 and c3 need sampling.completions = 4 or more .* got 3 and 5"),
        ("sampling", {"prompts": 2}, "sampling.prompts = 3 or more, got 4 and 2"),
        ("sampling", {"dynamic": True}, "sampling.dynamic keeps those that carry a signal"),
        ("train", {"sync_interval": 2}, "the very policy that learns"),
        ("train", {"offline": "x"}, "the very policy that learns"),
    ],
)
def test_configs_that_cannot_give_them_are_refused(
    section: str, changes: dict[str, Any], message: str, measured: dict[str, Any]
) -> None:
    measured[section] |= changes
    with pytest.raises(UserError, match=message):
        make_config(measured, "test")


def test_a_plan_from_a_checkpoint_uses_its_second_moments(
    measured: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    def planned(model: str, optimizer: str = "adamw") -> dict[str, Any]:
        changes = {"model": {"path": model, "threads": 1}, "train": {"optimizer": optimizer}}
        config = make_config(measured | changes, "test")
        return advise(run_pilot(config, reward_folder, 8, 4, lambda _count: None), config)

    train(make_config(measured, "test"), tmp_path / "run", reward_folder, resume=False, display=Silent())
    checkpoint = str(tmp_path / "run" / "checkpoints" / "step_000004")
    own = planned(checkpoint)
    assert (own["units"], own["moments"]) == ("adam", "checkpoint")
    assert not any("critical batch" in item["what"] for item in own["refused"])
    assert any("v̂ as in the model's checkpoint" in line for line in own["scope"])
    plain = planned(checkpoint, "sgd")
    assert (plain["units"], plain["moments"]) == ("gradient", None)
    assert plain["constants"] == plain["gradient_units"]["constants"]
    for name in ("c1", "c2", "c3"):  # to rounding: gradients made here and never made there
        value = plain["constants"][name]["value"]
        assert own["gradient_units"]["constants"][name]["value"] == pytest.approx(value, rel=1e-5)
        assert own["constants"][name]["value"] != pytest.approx(value, rel=0.1)
    estimated = planned(measured["model"]["path"])
    assert (estimated["units"], estimated["moments"]) == ("adam", "pilot")
    assert estimated["critical_batch"] is None
    assert any("a checkpoint as model.path" in item["needs"] for item in estimated["refused"])
