"""What a step does to the weights does not depend on how it is cut, ordered, or on rows that have no gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Silent

from delphic.config import RunConfig, make_config
from delphic.errors import UserError
from delphic.objective import StepInputs, coefficients, prepare, token_weights
from delphic.policy.load import load_policy
from delphic.policy.logprobs import pad_rows, score
from delphic.rollouts import Rollouts
from delphic.training.learner import LocalLearner, NonFiniteError
from delphic.training.loop import train
from delphic.training.metrics import Meter

ROWS: list[Any] = [
    "grpo",
    "dapo",
    "dr_grpo",
    "gspo",
    "rloo",
    "red_drop",
    "sapo",
    {"preset": "grpo", "kl_coefficient": 0.2, "entropy_bonus": 0.05},
    {"preset": "opmd", "silent_groups": "mask"},
    "pairwise",
]


@pytest.fixture
def batch(lagged: dict[str, Any], reward_folder: Path, tmp_path: Path) -> Rollouts:
    """A stale batch of 8 × 4 with one silent group, one lone success, and one reward that is not a number."""
    lagged["train"] |= {"steps": 1, "sync_interval": 1, "sync_offset": 0}
    lagged["sampling"]["prompts"] = 8
    train(make_config(lagged, "test"), tmp_path / "source", reward_folder, resume=False, display=Silent())
    rollouts, _ = Rollouts.read(tmp_path / "source" / "rollouts" / "step_000001.parquet")
    reward = rollouts.reward.copy()
    reward[0:4], reward[4:8], reward[8] = 0.7, [1, 0, 0, 0], np.nan
    noise = np.random.default_rng(0)
    logp = [x + noise.normal(0, 0.2, len(x)).astype(np.float32) for x in rollouts.behaviour_logp]
    return rollouts.with_(reward=reward, behaviour_logp=logp)


def configured(quick: dict[str, Any], objective: Any, **train: Any) -> RunConfig:
    content = {**quick, "objective": objective, "train": {"steps": 3, "learning_rate": 1e-3, **train}}
    return make_config(content, "test")


def learned(config: RunConfig, rollouts: Rollouts) -> tuple[dict[str, torch.Tensor], Meter]:
    policy = load_policy(config.model.path)
    learner = LocalLearner(policy, config, lambda: load_policy(config.model.path))
    meter = Meter()
    learner.learn(rollouts, 1, meter, Meter())
    return {name: p.grad.clone() for name, p in policy.parameters().items() if p.grad is not None}, meter


def assert_close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    scale = max(float(g.abs().max()) for g in b.values())
    assert scale > 0
    for name, gradient in a.items():
        assert float((gradient - b[name]).abs().max()) < 1e-5 * scale, name


@pytest.mark.parametrize("objective", ROWS, ids=str)
def test_micro_batches_do_not_change_the_gradient(objective: Any, quick: dict[str, Any], batch: Rollouts) -> None:
    whole, _ = learned(configured(quick, objective, token_budget=100_000), batch)
    cut, _ = learned(configured(quick, objective, token_budget=1), batch)
    assert_close(cut, whole)


@pytest.mark.parametrize("objective", ROWS, ids=str)
def test_the_order_of_rows_does_not_change_the_gradient(objective: Any, quick: dict[str, Any], batch: Rollouts) -> None:
    whole, _ = learned(configured(quick, objective), batch)
    shuffled, _ = learned(configured(quick, objective), batch.select(np.random.default_rng(1).permutation(len(batch))))
    assert_close(shuffled, whole)


@pytest.mark.parametrize("objective", [row for row in ROWS if row not in ("pairwise", "red_drop")], ids=str)
def test_skipped_rows_would_have_had_no_gradient(objective: Any, quick: dict[str, Any], batch: Rollouts) -> None:
    config = configured(quick, objective)
    gradient, _ = learned(config, batch)
    policy, goal = load_policy(config.model.path), config.objective
    prepared = prepare(goal, StepInputs(batch.reward, batch.group, lengths=batch.lengths, max_length=4))
    scored = score(policy, batch.prompt_tokens, batch.tokens, 1.0, with_entropy=True)
    width = scored.logp.shape[1]
    mask = pad_rows(batch.loss_mask, width, torch.float32)

    def column(x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(x).float()[:, None]

    log_ratio = (scored.logp.detach() - pad_rows(batch.behaviour_logp, width, torch.float32)) * mask
    at_reference = torch.zeros_like(log_ratio)  # the reference is the initial policy, which is this one
    c = coefficients(goal, column(prepared.coefficient), column(prepared.penalised), log_ratio, mask, at_reference)
    weight = token_weights(mask, column(prepared.kept), goal.aggregation, prepared.totals(batch.lengths), 4)
    assert scored.entropy is not None
    loss = -(weight * (c.policy + c.penalty) * scored.logp).sum()
    loss = loss - goal.entropy_bonus * (weight * column(prepared.penalised) * scored.entropy).sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(list(policy.parameters().values()), 1.0)
    assert_close(gradient, {n: p.grad for n, p in policy.parameters().items() if p.grad is not None})


def test_rows_without_gradient_are_skipped(quick: dict[str, Any], batch: Rollouts) -> None:
    reward = np.arange(32.0) ** 2  # no row at its group's mean
    reward[0:4], reward[8] = 0.7, np.nan
    _, meter = learned(configured(quick, "grpo"), batch.with_(reward=reward))
    assert meter.values()["learned_share"] == pytest.approx((32 - 4 - 1) / 32)


def test_a_silent_step_still_decays_adamws_moments(quick: dict[str, Any], batch: Rollouts) -> None:
    config = configured(quick, "grpo", learning_rate=1e-2)
    policy = load_policy(config.model.path)
    learner = LocalLearner(policy, config, lambda: load_policy(config.model.path))
    learner.learn(batch, 1, Meter(), Meter())
    name, parameter = next(iter(policy.parameters().items()))
    before = learner.optimiser.each[name].state[parameter]["exp_avg"].clone()
    weights = policy.fingerprint()
    meter = Meter()
    learner.learn(batch.with_(reward=np.ones(len(batch))), 2, meter, Meter())
    assert meter.values()["gradient_norm"] == 0
    assert torch.allclose(learner.optimiser.each[name].state[parameter]["exp_avg"], 0.9 * before), name
    assert policy.fingerprint() != weights, "as it would with every row computed"


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_learning_rate_0_changes_nothing(
    optimizer: str, lagged: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    lagged["train"] |= {"optimizer": optimizer, "learning_rate": 0.0, "steps": 4, "weight_decay": 0.1}
    train(make_config(lagged, "test"), tmp_path / "run", reward_folder, resume=False, display=Silent())
    start = load_policy(lagged["model"]["path"]).fingerprint()
    assert load_policy(str(tmp_path / "run" / "checkpoints" / "step_000004")).fingerprint() == start


def test_sgd_with_momentum_follows_its_recurrence(quick: dict[str, Any], batch: Rollouts) -> None:
    config = configured(quick, "rloo", optimizer="sgd", momentum=0.5, learning_rate=0.1, max_grad_norm=1e9)
    policy = load_policy(config.model.path)
    learner = LocalLearner(policy, config, lambda: load_policy(config.model.path))
    name, parameter = next(iter(policy.parameters().items()))
    start, velocity = parameter.detach().clone(), torch.zeros_like(parameter)
    for step in (1, 2, 3):
        learner.learn(batch, step, Meter(), Meter())
        assert parameter.grad is not None
        velocity = 0.5 * velocity + parameter.grad
        start = start - 0.1 * velocity
        assert torch.allclose(parameter.detach(), start, atol=1e-7), name


def test_the_schedule_warms_up_and_decays_to_0(quick: dict[str, Any]) -> None:
    config = configured(quick, "grpo", steps=10, warmup_steps=2, schedule="linear", learning_rate=1.0)
    learner = LocalLearner(load_policy(config.model.path), config, lambda: load_policy(config.model.path))
    rates = [learner.optimiser.learning_rate(u) for u in range(11)]
    assert rates == pytest.approx([0.5, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0])


def test_a_gradient_that_is_not_finite_names_its_rollout_and_updates_nothing(
    quick: dict[str, Any], batch: Rollouts
) -> None:
    config = configured(quick, "rloo")
    policy = load_policy(config.model.path)
    learner = LocalLearner(policy, config, lambda: load_policy(config.model.path))
    # an overflowing weight: everything is finite but this row's contribution
    poisoned = batch.reward.copy()
    poisoned[4:8] = [1e39, 0, 0, 0]
    before = policy.fingerprint()
    with pytest.raises(NonFiniteError) as caught:
        learner.learn(batch.with_(reward=poisoned), 1, Meter(), Meter())
    assert caught.value.rollout.row[0] == batch.row[4]
    assert policy.fingerprint() == before
    assert learner.version == 0


def test_an_objective_with_ratios_refuses_rollouts_without_log_probs(quick: dict[str, Any], batch: Rollouts) -> None:
    bare = batch.with_(behaviour_logp=[np.zeros(0, dtype=np.float32)] * len(batch))
    with pytest.raises(UserError, match="needs behaviour_logp"):
        learned(configured(quick, "grpo"), bare)
    gradient, _ = learned(configured(quick, "rloo"), bare)
    assert any(float(g.abs().max()) > 0 for g in gradient.values())


def test_the_loss_mask_keeps_foreign_tokens_out(quick: dict[str, Any], batch: Rollouts) -> None:
    masked = batch.with_(loss_mask=[np.arange(len(t)) != 1 for t in batch.tokens])
    changed = [logp.copy() for logp in batch.behaviour_logp]
    for logp in changed:
        logp[1:2] += 3.0  # whatever a tool's text had as log-prob
    assert_close(
        learned(configured(quick, "grpo"), masked.with_(behaviour_logp=changed))[0],
        learned(configured(quick, "grpo"), masked)[0],
    )
