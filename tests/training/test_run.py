"""What a run samples, measures and refuses. Names of pitfalls refer to well-known failures of other trainers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Silent

from delphic.config import make_config
from delphic.errors import UserError
from delphic.policy.load import load_policy
from delphic.rollouts import Rollouts
from delphic.statistics.evaluation import clustered_interval
from delphic.statistics.informative import expected_silent_share, informative_chance, silent_share
from delphic.training.generate import GROUP_STRIDE
from delphic.training.learner import LocalLearner, NonFiniteError
from delphic.training.loop import build_parts, train
from delphic.training.metrics import METRICS, TIMING, Meter, declared
from delphic.training.prompts import PromptOrder
from delphic.training.sampler import LocalSampler


def run(content: dict[str, Any], output: Path, folder: Path, resume: bool = False) -> list[dict[str, Any]]:
    rows = train(make_config(content, "test"), output, folder, resume, Silent()).rows
    return [row for row in rows if row["step"] > 0]


def recorded(output: Path, step: int) -> Rollouts:
    return Rollouts.read(output / "rollouts" / f"step_{step:06d}.parquet")[0]


@pytest.fixture
def plain(lagged: dict[str, Any]) -> dict[str, Any]:
    """Four on-policy steps whose reward varies."""
    lagged["train"] = {"steps": 4, "learning_rate": 1e-3}
    lagged["sampling"]["dynamic"] = False
    return lagged


# -- which problems ------------------------------------------------------------------------------------------------


def test_epochs_show_every_problem_once_and_reshuffle() -> None:
    order = PromptOrder(7, "epochs", seed=3)
    epochs = [order.draw(7 * e, 7).tolist() for e in range(3)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert order.draw(5, 6).tolist() == (epochs[0] + epochs[1])[5:11], "a function of the cursor alone"


def test_independent_draws_are_uniform_and_a_function_of_the_cursor() -> None:
    order = PromptOrder(5, "independent", seed=3)
    draws = order.draw(0, 5000)
    assert np.abs(np.bincount(draws) / 5000 - 0.2).max() < 5 * math.sqrt(0.16 / 5000)
    assert order.draw(1234, 10).tolist() == draws[1234:1244].tolist()


# -- dynamic sampling ----------------------------------------------------------------------------------------------

RARE = """
def rare(prompts, completions, **kwargs):
    # silent for every problem whose first digit is odd, whatever is written
    return [0.0 if int(p[0]) % 2 else 0.3 + 0.1 * len(c) for p, c in zip(prompts, completions)]
def never(completions, **kwargs):
    return [0.1 + 0.2 for c in completions]
"""


def test_silent_groups_are_refilled_and_counted(plain: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "rare_rewards.py").write_text(RARE)
    plain["task"] |= {"rewards": ["rare_rewards:rare"], "high": 9, "low": 1}
    plain["sampling"] |= {"dynamic": True, "dynamic_attempts": 9, "completions": 8}
    rows = run(plain, tmp_path / "run", tmp_path)
    for row in rows:
        rollouts = recorded(tmp_path / "run", row["step"])
        assert len(np.unique(rollouts.group)) == 4
        assert row["silent_share"] == 0
        assert row["refill_dropped_groups"] >= row["refill_rounds"]
    assert sum(row["refill_rounds"] for row in rows) > 0


def test_pitfall_13_refilling_judges_the_unshaped_reward(plain: dict[str, Any], tmp_path: Path) -> None:
    """All-fail groups stay silent although an overlong punishment would make their shaped rewards differ."""
    (tmp_path / "rare_rewards.py").write_text(RARE)
    plain["task"]["rewards"] = ["rare_rewards:never"]
    plain["sampling"] |= {"dynamic": True, "dynamic_attempts": 3}
    plain["objective"] = {"preset": "dapo", "overlong_buffer": 3}
    rows = run(plain, tmp_path / "run", tmp_path)
    assert all(row["refill_rounds"] == 2 for row in rows), "it goes on with what it has once the attempts are used"
    assert all(row["silent_share"] == 1 for row in rows)


# -- signal --------------------------------------------------------------------------------------------------------


def test_pitfall_09_the_loss_is_0_while_the_gradient_is_not(
    plain: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    plain["objective"] = "rloo"
    for row in run(plain, tmp_path / "run", reward_folder):
        # Σ A over a group is 0: the value of the objective says nothing; with equal lengths it is exactly 0
        assert abs(row["objective_learned"]) < 0.5
        assert row["gradient_norm"] > 0
        assert row["silent_share"] == 0


def test_pitfall_11_truncation_shows_before_difficulty(plain: dict[str, Any], tmp_path: Path) -> None:
    plain["sampling"]["max_new_tokens"] = 1
    plain["task"]["rewards"] = []
    plain["task"] |= {"low": 10, "high": 20}
    rows = run(plain, tmp_path / "run", tmp_path)
    for row in rows:
        rollouts = recorded(tmp_path / "run", row["step"])
        ended = [bool(t[-1] == 1) for t in rollouts.tokens]
        assert row["truncated_share"] == 1 - np.mean(ended)
        assert row.get("length_mean_terminated", 1.0) == 1.0


def test_the_share_of_silent_groups_that_difficulty_explains() -> None:
    """p ~ Beta(½, ½), G = 8: 39 %. Simulated with 20,000 groups; the estimate's standard error is below .004."""
    rng = np.random.default_rng(0)
    p = rng.beta(0.5, 0.5, 20_000)
    rewards = (rng.random((20_000, 8)) < p[:, None]).astype(float).ravel()
    groups = np.repeat(np.arange(20_000), 8)
    exact = float(np.mean(1 - np.asarray(informative_chance(p, 8))))
    assert expected_silent_share(rewards, groups) == pytest.approx(exact, abs=0.012)
    assert exact == pytest.approx(0.39, abs=0.012)
    assert silent_share(rewards, groups) == pytest.approx(exact, abs=0.012)


def test_silent_groups_beyond_difficulty_stand_out() -> None:
    rng = np.random.default_rng(1)
    rewards = (rng.random((400, 8)) < 0.5).astype(float)
    rewards[::4] = rewards[::4, :1]  # a quarter of the groups copies one answer
    groups = np.repeat(np.arange(400), 8)
    assert silent_share(rewards.ravel(), groups) > 0.24
    assert expected_silent_share(rewards.ravel(), groups) < 0.2


@pytest.mark.parametrize("rewards", [[1, 1, 1, 1], [0.1, 0.2, 0.3, 0.4], [np.nan] * 4])
def test_no_explained_share_without_two_levels(rewards: list[float]) -> None:
    assert math.isnan(expected_silent_share(np.array(rewards, dtype=float), np.array([0, 0, 1, 1])))


# -- metrics -------------------------------------------------------------------------------------------------------


def test_every_figure_is_declared_and_finite(lagged: dict[str, Any], reward_folder: Path, tmp_path: Path) -> None:
    lagged["train"]["steps"] = 5
    rows = run(lagged, tmp_path / "run", reward_folder)
    timing = [json.loads(line) for line in (tmp_path / "run" / "timing.jsonl").read_text().splitlines()]
    for row in [*rows, *timing]:
        for name, value in row.items():
            assert name == "step" or declared(name)
            assert math.isfinite(value)
    assert not any(name in METRICS for row in timing for name in row if name != "step"), "wall-clock figures stay apart"
    assert set(timing[0]) - {"step"} <= set(TIMING)
    seen = {name for row in rows for name in row}
    assert {
        "reward/digits",
        "kl_reference",
        "entropy",
        "update_norm",
        "eval_accuracy",
        "masked_positive_learned",
    } <= seen


def test_figures_are_those_of_the_recorded_rollouts(plain: dict[str, Any], reward_folder: Path, tmp_path: Path) -> None:
    for row in run(plain, tmp_path / "run", reward_folder):
        r = recorded(tmp_path / "run", row["step"])
        assert row["reward_mean"] == pytest.approx(r.reward.mean(), rel=1e-12)
        assert row["reward/digits"] == pytest.approx(r.components["digits"].mean(), rel=1e-12)
        spreads = [r.reward[r.group == g].std(ddof=1) for g in np.unique(r.group)]
        assert row["reward_std_within"] == pytest.approx(np.mean(spreads), rel=1e-12)
        assert row["entropy"] == pytest.approx(np.concatenate(r.entropy).mean(), rel=1e-5), "over all rows"
        assert row["length_mean"] == np.mean([len(t) for t in r.tokens])


def test_a_meter_combines_parts_exactly() -> None:
    meter = Meter()
    for total, count in ((10.0, 10), (6.0, 2)):
        meter.add("entropy", total, count)
        meter.add("ratio_max_learned", total)
        meter.add("learning_rate", total)
    assert meter.values() == {"entropy": 16 / 12, "ratio_max_learned": 10.0, "learning_rate": 6.0}
    with pytest.raises(KeyError):
        meter.add("entropie", 1.0)


def test_the_evaluations_interval_covers_its_nominal_share() -> None:
    """2,000 simulated evaluations of 100 problems × 4 samples; 95 % nominal, accepted from 92.5 to 97.5 %."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        p = rng.beta(0.8, 1.2, 100)
        low, high = clustered_interval(rng.binomial(4, p) / 4)
        hits += low <= 0.4 <= high
    assert 0.925 < hits / 2000 < 0.975
    assert clustered_interval(np.zeros(100)) == pytest.approx((0, 0.037), abs=1e-3), "never a point at 0 or 1"


# -- off-policy ----------------------------------------------------------------------------------------------------


def test_pitfall_19_weights_that_do_not_arrive_are_noticed(quick: dict[str, Any], tiny_model: Path) -> None:
    config = make_config(quick, "test")
    learner = LocalLearner(load_policy(str(tiny_model)), config, lambda: load_policy(str(tiny_model)))
    sampler = LocalSampler(load_policy(str(tiny_model)), config)
    with torch.no_grad():
        next(iter(learner.policy.parameters().values())).add_(1.0)
    learner.version = 7
    sampler.sync(learner)
    assert sampler.version == 7
    assert sampler.policy.fingerprint() == learner.fingerprint()

    class Partial(LocalLearner):
        def weights(self) -> dict[str, torch.Tensor]:
            return dict(list(super().weights().items())[1:])  # one tensor is left behind, like an adapter

    partial = Partial(load_policy(str(tiny_model)), config, lambda: load_policy(str(tiny_model)))
    with pytest.raises(RuntimeError, match="differ from the learner's"):
        sampler.sync(partial)


def test_pitfall_20_a_rollout_of_the_wrong_version_is_refused(
    plain: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    plain["train"] |= {"sync_interval": 2}
    plain["checkpoint"]["every"] = 1
    train(make_config(plain, "test"), tmp_path / "run", reward_folder, False, Silent(stop_after=1))
    path = tmp_path / "run" / "rollouts" / "step_000002.parquet"
    done = len(list((tmp_path / "run" / "checkpoints").glob("step_*")))
    assert done == 1
    rollouts, meta = Rollouts.read(path)
    rollouts.with_(version=rollouts.version + 1).write(path, meta)
    with pytest.raises(RuntimeError, match="must learn from policy version 0"):
        run(plain, tmp_path / "run", reward_folder, resume=True)


def test_offline_learning_samples_nothing_and_repeats(
    plain: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    run(plain, tmp_path / "source", reward_folder)
    plain["train"]["offline"] = str(tmp_path / "source" / "rollouts")
    plain["evaluation"]["problems"] = 0
    config = make_config(plain, "test")
    parts = build_parts(config, reward_folder)
    assert not hasattr(parts.source, "sampler")
    first, again = (run(plain, tmp_path / name, reward_folder) for name in ("a", "b"))
    assert first == again
    assert not list((tmp_path / "a" / "rollouts").iterdir())
    assert [row["lag_max"] for row in first] == [0, 1, 2, 3], "the data are the initial policy's"
    assert first[-1]["gradient_norm"] > 0


def test_offline_data_must_be_there_and_comparable(plain: dict[str, Any], reward_folder: Path, tmp_path: Path) -> None:
    run(plain, tmp_path / "source", reward_folder)
    lone = recorded(tmp_path / "source", 1).select([0, 4, 8])
    (tmp_path / "lone").mkdir()
    lone.write(tmp_path / "lone" / "r.parquet")
    plain["train"]["offline"] = str(tmp_path / "lone")
    with pytest.raises(UserError, match=r"every group .* has one completion"):
        run(plain, tmp_path / "run", reward_folder)


# -- tokens, groups, config ----------------------------------------------------------------------------------------


def test_pitfall_04_group_ids_are_distinct_over_the_run(
    plain: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    plain["task"]["size"] = 2  # the same prompts again and again: equal prompts are not merged
    run(plain, tmp_path / "run", reward_folder)
    for step in (1, 2):
        groups, counts = np.unique(recorded(tmp_path / "run", step).group, return_counts=True)
        assert counts.tolist() == [4, 4, 4, 4]
        assert (groups // GROUP_STRIDE == step).all()


def test_pitfall_05_a_group_of_one_is_refused_when_the_config_is_read(quick: dict[str, Any]) -> None:
    quick["sampling"]["completions"] = 1
    with pytest.raises(UserError, match="leaves the group-relative objective"):
        make_config(quick, "test")
    for objective in ("reinforce", "a2c", "reinforce_pp"):
        assert make_config({**quick, "objective": objective}, "test").sampling.completions == 1


@pytest.mark.parametrize(("prompts", "completions", "budget"), [(3, 5, 7), (2, 2, 1), (7, 3, 1000)])
def test_pitfall_25_no_number_must_divide_another(
    prompts: int, completions: int, budget: int, plain: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    plain["sampling"] |= {"prompts": prompts, "completions": completions}
    plain["train"] |= {"token_budget": budget, "minibatches": 2, "steps": 2}
    rows = run(plain, tmp_path / "run", reward_folder)
    assert len(recorded(tmp_path / "run", 1)) == prompts * completions
    assert rows[-1]["version"] == 4


def test_pitfall_28_a_run_halts_at_the_first_value_that_is_not_finite(
    plain: dict[str, Any], reward_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain["checkpoint"]["every"] = 1
    learn = LocalLearner.learn

    def poisoned(self: LocalLearner, rollouts: Rollouts, step: int, *rest: Any) -> None:
        if step == 3:
            reward = rollouts.reward.copy()
            reward[5] = 1e39
            rollouts = rollouts.with_(reward=reward)
        learn(self, rollouts, step, *rest)

    plain["objective"] = "rloo"
    monkeypatch.setattr(LocalLearner, "learn", poisoned)
    with pytest.raises(NonFiniteError):
        run(plain, tmp_path / "run", reward_folder)
    halted, _ = Rollouts.read(tmp_path / "run" / "halted" / "step_000003.parquet")
    assert halted.row.tolist() == [4], "the first of the group whose advantages overflow float32"
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").glob("step_*")) == ["step_000001", "step_000002"]


def test_the_best_checkpoint_is_kept(plain: dict[str, Any], reward_folder: Path, tmp_path: Path) -> None:
    plain["train"] |= {"steps": 8, "learning_rate": 3e-3}
    plain["evaluation"] |= {"every": 1, "problems": 8, "samples": 4}
    plain["checkpoint"] = {"every": 1, "keep": 1}
    rows = run(plain, tmp_path / "run", reward_folder)
    best = json.loads((tmp_path / "run" / "checkpoints" / "best.json").read_text())
    assert best["eval_accuracy"] == max(row["eval_accuracy"] for row in rows)
    kept = {p.name for p in (tmp_path / "run" / "checkpoints").glob("step_*")}
    assert kept == {"step_000008", f"step_{best['step']:06d}"}
    assert load_policy(str(tmp_path / "run" / "checkpoints" / "step_000008")).eos == {1}


def test_the_critic_learns_the_rewards(plain: dict[str, Any], reward_folder: Path, tmp_path: Path) -> None:
    plain["objective"] = "a2c"
    plain["train"] |= {"steps": 30, "learning_rate": 0.0, "value_learning_rate": 0.05}
    rows = run(plain, tmp_path / "run", reward_folder)
    assert rows[-1]["value_loss"] < 0.7 * rows[0]["value_loss"]
