"""Identities that hold whatever the numbers are: nothing moves at learning rate 0, no cut of a step changes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Silent

from delphic.config import RunConfig, make_config
from delphic.objective import StepInputs, coefficients, prepare, token_weights
from delphic.policy.load import load_policy
from delphic.policy.logprobs import pad_rows, score
from delphic.randomness import Purpose, stream
from delphic.rollouts import Rollouts
from delphic.training.lag import lag
from delphic.training.learner import LocalLearner
from delphic.training.loop import train
from delphic.training.metrics import METRICS, Meter
from delphic.training.sampler import LocalSampler


@pytest.fixture
def batch(lagged: dict[str, Any], reward_folder: Path, tmp_path: Path) -> Rollouts:
    """A stale batch of 6 × 5 with a silent group and a reward that is not a number."""
    lagged["train"] |= {"steps": 1, "sync_interval": 1, "sync_offset": 0}
    lagged["sampling"] |= {"prompts": 6, "completions": 5, "dynamic": False}
    train(make_config(lagged, "test"), tmp_path / "source", reward_folder, resume=False, display=Silent())
    rollouts, _ = Rollouts.read(tmp_path / "source" / "rollouts" / "step_000001.parquet")
    noise = np.random.default_rng(0)
    reward = noise.integers(0, 2, len(rollouts)).astype(float)
    reward[0:5], reward[5:10], reward[11] = 0.7, [1, 0, 0, 0, 0], np.nan
    logp = [x + noise.normal(0, 0.2, len(x)).astype(np.float32) for x in rollouts.behaviour_logp]
    return rollouts.with_(reward=reward, behaviour_logp=logp)


def configured(quick: dict[str, Any], objective: Any, **train: Any) -> RunConfig:
    content = {**quick, "objective": objective, "train": {"steps": 3, "learning_rate": 1e-2} | train}
    return make_config(content, "test")


def after_a_step(config: RunConfig, rollouts: Rollouts) -> tuple[LocalLearner, Meter]:
    learner = LocalLearner(load_policy(config.model.path), config, lambda: load_policy(config.model.path))
    meter = Meter()
    learner.learn(rollouts, 1, meter, Meter())
    return learner, meter


def gradient(learner: LocalLearner) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in learner.policy.parameters().values() if p.grad is not None])


# -- learning rate 0 (a stale sampler, a forgotten adapter or a hidden state would show) -----------------------------


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_pitfall_19_at_learning_rate_0_the_sampler_never_changes(
    optimizer: str, lagged: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    lagged["train"] |= {"optimizer": optimizer, "learning_rate": 0.0, "steps": 6}
    lagged["evaluation"]["every"] = 1
    config = make_config(lagged, "test")
    rows = train(config, tmp_path / "run", reward_folder, resume=False, display=Silent()).rows
    assert len({row["eval_accuracy"] for row in rows}) == 1, "every evaluation draws the same numbers"
    assert all(row["update_norm"] == 0 for row in rows[1:])
    assert all(row["ratio_max_learned"] == pytest.approx(1, abs=1e-5) for row in rows[1:]), "at any lag"
    start = LocalSampler(load_policy(config.model.path), config)
    for step in (1, 6):
        recorded, _ = Rollouts.read(tmp_path / "run" / "rollouts" / f"step_{step:06d}.parquet")
        first = np.flatnonzero(recorded.row % 4 == 0)
        prompts = [recorded.prompt[i] for i in first]
        again = start.sample(prompts, 4, Purpose.TRAIN_SAMPLE, step, recorded.row)
        assert all(np.array_equal(a, b) for a, b in zip(again.tokens, recorded.tokens, strict=True))
        assert all(np.array_equal(a, b) for a, b in zip(again.logp, recorded.behaviour_logp, strict=True))


# -- lag -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("interval", "offset", "minibatches", "passes"), [(3, 2, 1, 1), (3, 2, 2, 1), (2, 1, 2, 2)])
def test_pitfall_22_updates_of_one_batch_stack_on_the_lag_also_after_a_resume(
    interval: int, offset: int, minibatches: int, passes: int, quick: dict[str, Any], tmp_path: Path
) -> None:
    quick["train"] |= {"steps": 8, "sync_interval": interval, "sync_offset": offset}
    quick["train"] |= {"minibatches": minibatches, "passes": passes}
    quick["evaluation"]["problems"] = 0
    config = make_config(quick, "test")
    train(config, tmp_path / "run", tmp_path, resume=False, display=Silent(stop_after=5))
    rows = train(config, tmp_path / "run", tmp_path, resume=True, display=Silent()).rows
    updates = minibatches * passes
    assert [row["step"] for row in rows] == [*range(1, 9)]
    for row in rows:
        first = lag(row["step"], interval, offset) * updates
        assert row["lag"] == first + (updates - 1) / 2, "mean over the step's updates, groups in equal parts"
        assert row["lag_max"] == first + updates - 1


def test_pitfall_23_the_metric_itself_says_when_clipping_cannot_happen() -> None:
    assert "Always 0 with one update per batch and no lag" in METRICS["masked_positive_learned"].about
    assert "not a measure of progress" in METRICS["objective_learned"].about, "pitfall 9: a loss of 0 is normal"


# -- the cut of a step -----------------------------------------------------------------------------------------------

OBJECTIVES: list[Any] = [
    "grpo",
    "dapo",
    "gspo",
    "red_drop",
    {"preset": "grpo", "kl_coefficient": 0.2, "entropy_bonus": 0.05},
]


def test_rows_that_red_drop_leaves_out_are_those_of_the_formula(quick: dict[str, Any], batch: Rollouts) -> None:
    """Against every row computed, with what is dropped decided by (seed, step, row)."""
    config = configured(quick, "red_drop", max_grad_norm=1e9)
    learner, _ = after_a_step(config, batch)
    policy, goal = load_policy(config.model.path), config.objective
    priority = np.array([stream(config.seed, Purpose.DROP, 1, int(row)).random() for row in batch.row])
    prepared = prepare(goal, StepInputs(batch.reward, batch.group, priority=priority))
    assert 0 < prepared.kept.sum() < len(batch) - 1, "something is dropped besides the NaN"
    logp = score(policy, batch.prompt_tokens, batch.tokens, 1.0).logp
    mask = pad_rows(batch.loss_mask, logp.shape[1], torch.float32)

    def column(x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(x).float()[:, None]

    nothing = torch.zeros_like(mask)
    c = coefficients(goal, column(prepared.coefficient), column(prepared.penalised), nothing, mask)
    weight = token_weights(mask, column(prepared.kept), goal.aggregation, prepared.totals(batch.lengths), 4)
    (-(weight * c.policy * logp).sum()).backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters().values() if p.grad is not None])
    assert torch.allclose(gradient(learner), expected, atol=1e-6 * float(expected.abs().max()), rtol=1e-4)


@pytest.mark.parametrize("silent_groups", ["penalise", "mask"])
def test_pitfall_12_silent_groups_feel_the_kl_term_unless_masked(
    silent_groups: str, quick: dict[str, Any], batch: Rollouts
) -> None:
    objective = {"preset": "grpo", "kl_coefficient": 0.5, "silent_groups": silent_groups}
    quiet = batch.with_(reward=np.ones(len(batch)))
    config = configured(quick, objective)
    learner = LocalLearner(load_policy(config.model.path), config, lambda: load_policy(config.model.path))
    with torch.no_grad():
        for p in learner.policy.parameters().values():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    meter = Meter()
    learner.learn(quiet, 1, meter, Meter())
    moved = float(gradient(learner).abs().max())
    assert (moved > 0) == (silent_groups == "penalise")
    assert meter.values()["learned_share"] == (silent_groups == "penalise")


def test_a_whole_step_of_silent_groups_is_a_step_of_zero_gradients(quick: dict[str, Any], batch: Rollouts) -> None:
    config = configured(quick, "grpo", weight_decay=0.1)
    learner, _ = after_a_step(config, batch)
    reference, _ = after_a_step(config, batch)
    learner.learn(batch.with_(reward=np.ones(len(batch))), 2, Meter(), Meter())
    for p in reference.policy.parameters().values():
        p.grad = torch.zeros_like(p)
    reference.optimiser.step(1)
    assert learner.fingerprint() == reference.fingerprint()


def test_entropy_is_over_all_rows_and_learned_figures_are_not(
    lagged: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    """Half of the problems are silent whatever is written; their tokens count in the entropy alone."""
    (reward_folder / "half_rewards.py").write_text(
        "def half(prompts, completions, **k):\n"
        "    return [0.0 if '+' in p else len(c) + 0.1 * c.count('1') for p, c in zip(prompts, completions)]\n"
    )
    lagged["task"] |= {"rewards": ["half_rewards:half"], "high": 9}
    lagged["sampling"] |= {"dynamic": False, "prompts": 12}
    lagged["train"] |= {"steps": 2, "sync_interval": 1, "sync_offset": 0, "minibatches": 1}
    train(make_config(lagged, "test"), tmp_path / "run", reward_folder, resume=False, display=Silent())
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    for row in map(json.loads, lines[1:]):
        r, _ = Rollouts.read(tmp_path / "run" / "rollouts" / f"step_{row['step']:06d}.parquet")
        assert 0 < row["learned_share"] < 1
        assert row["silent_share"] > 0
        assert row["entropy"] == pytest.approx(np.concatenate(r.entropy).mean(dtype=np.float64), rel=1e-6)
