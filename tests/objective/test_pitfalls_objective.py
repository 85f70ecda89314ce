"""Mistakes that people who train with group-relative objectives have met, one test each.

The numbers are those of the public reports; the repository and thread are named where there is one.
"""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from delphic.errors import UserError
from delphic.objective import (
    PRESETS,
    Prepared,
    StepInputs,
    Totals,
    build,
    coefficients,
    penalty,
    prepare,
    token_weights,
)

NAN = float("nan")


def prepared(preset: str, rewards: list[float], groups: list[int] | None = None, **choices: object) -> Prepared:
    ids = np.zeros(len(rewards), dtype=int) if groups is None else np.array(groups)
    return prepare(build({"preset": preset, **choices}), StepInputs(np.array(rewards), ids))


def test_pitfall_01_lone_success() -> None:
    """A leave-one-out std is 0 for the only success, and its advantage was 1e6 (NVIDIA-NeMo/RL#1518)."""
    np.testing.assert_allclose(prepared("grpo", [1, 0, 0, 0]).advantage, [1.5, -0.5, -0.5, -0.5], rtol=1e-5)
    np.testing.assert_allclose(prepared("rloo", [1, 0, 0, 0]).advantage, [1, -1 / 3, -1 / 3, -1 / 3])
    with pytest.raises(UserError):
        build({"baseline": "leave_one_out", "scale": "leave_one_out_std"})


@pytest.mark.parametrize("preset", ["grpo", "rloo", "dapo", "dr_grpo"])
def test_pitfall_02_lone_success_is_not_filtered_away(preset: str) -> None:
    """A filter on each row's leave-one-out spread emptied [1, 0, 0, 0] (NVIDIA-NeMo/RL#3469)."""
    result = prepared(preset, [1, 0, 0, 0])
    assert result.kept.all()
    assert not result.silent.any()
    assert (result.coefficient != 0).all()


@pytest.mark.parametrize("preset", ["grpo", "rloo"])
def test_pitfall_03_incomplete_last_group(preset: str) -> None:
    """Rewards [1, 2, 3] with G = 2 gave 3e5 for the last (AReaL#1673): here it is alone, and left out."""
    result = prepared(preset, [1, 2, 3], groups=[0, 0, 1])
    assert np.abs(result.coefficient).max() < 2
    assert result.coefficient[2] == 0
    assert result.reasons == {2: "alone in its group"}


def test_pitfall_04_groups_are_ids_not_positions() -> None:
    """Interleaved, large, negative and reordered ids (Search-R1#88, verl#3280)."""
    rewards, ids = [1.0, 5.0, 0.0, 7.0, 3.0], [2**40, -3, 2**40, -3, -3]
    straight = prepared("rloo", rewards, ids).advantage
    np.testing.assert_allclose(straight, [1, 0, -1, 3, -3])
    order = [4, 2, 0, 3, 1]
    shuffled = prepared("rloo", [rewards[i] for i in order], [ids[i] for i in order]).advantage
    np.testing.assert_allclose(shuffled, straight[order])


@pytest.mark.parametrize("preset", [name for name in PRESETS if build(name).group_relative])
def test_pitfall_05_singletons_never_train_on_the_raw_reward(preset: str) -> None:
    """OpenRLHF#1250, AReaL#1454, prime-rl#2985. (Configs with one completion a group are refused before.)"""
    n = np.ones(3)
    step = StepInputs(n * 5, np.arange(3), lengths=n, score_norms=n, priority=n / 2, sequence_log_ratio=n)
    result = prepare(build(preset), step)
    np.testing.assert_array_equal(result.coefficient, 0)
    np.testing.assert_array_equal(result.kept, False)
    assert set(result.reasons.values()) == {"alone in its group"}


def test_pitfall_06_a_reward_that_is_not_a_number_takes_only_its_row_out() -> None:
    """[1, NaN, 3] voided the batch (TRL#5902, ms-swift#8123)."""
    result = prepared("dr_grpo", [1, NAN, 3])
    np.testing.assert_allclose(result.advantage, [-1, 0, 1])
    np.testing.assert_array_equal(result.kept, [True, False, True])
    assert result.reasons == {1: "reward is not a number"}
    assert result.totals(np.array([4, 9, 2])) == Totals(completions=2, tokens=6)


@pytest.mark.parametrize(("size", "factor"), [(2, 1.414), (8, 1.069)])
def test_pitfall_08_sample_and_population_std_differ(size: int, factor: float) -> None:
    """Ours is the sample form: advantages are smaller than with the population form by √(G/(G−1))."""
    rewards = np.array([1.0, *[0.0] * (size - 1)])
    ours = prepared("grpo", list(rewards), scale_epsilon=0.0).advantage
    population = (rewards - rewards.mean()) / rewards.std()
    np.testing.assert_allclose(population / ours, np.sqrt(size / (size - 1)), rtol=1e-12)
    assert np.sqrt(size / (size - 1)) == pytest.approx(factor, abs=1e-3)


@pytest.mark.parametrize(("size", "share"), [(2, 0.298), (4, 0.551), (8, 0.799), (16, 0.960)])
def test_pitfall_10_small_groups_are_silent_on_hard_tasks(size: int, share: float) -> None:
    """Share of groups that carry a signal at a success rate of .1819 (CoursIA#10603)."""
    p = 0.1819
    informative = 0.0
    for successes in range(size + 1):
        result = prepared("grpo", [1.0] * successes + [0.0] * (size - successes))
        chance = comb(size, successes) * p**successes * (1 - p) ** (size - successes)
        informative += chance * (not result.silent.any())
        assert result.silent.all() == (not result.advantage.any())
    assert informative == pytest.approx(share, abs=5e-4)


@pytest.mark.parametrize("silent_groups", ["penalise", "mask"])
def test_pitfall_12_silent_groups_under_a_kl_penalty(silent_groups: str) -> None:
    """They move under the penalty unless masked; masked, they feel exactly nothing (TRL#5588, #7068)."""
    row = build({"preset": "grpo", "kl_coefficient": 0.1, "silent_groups": silent_groups})
    result = prepare(row, StepInputs(np.array([1.0, 1, 1, 0]), np.array([0, 0, 1, 1])))
    delta = np.full((4, 2), 0.7)
    factors = coefficients(
        row,
        result.coefficient[:, None],
        result.penalised[:, None].astype(float),
        np.zeros((4, 2)),
        np.ones((4, 2)),
        delta,
    )
    np.testing.assert_array_equal(result.silent, [True, True, False, False])
    np.testing.assert_array_equal(factors.policy[:2], 0)
    assert (factors.penalty[2:] != 0).all()
    assert (factors.penalty[:2] != 0).all() == (silent_groups == "penalise")
    if silent_groups == "mask":
        np.testing.assert_array_equal(factors.penalty[:2], 0)


def test_pitfall_14_no_mean_of_micro_batch_means() -> None:
    """10 tokens of loss 1 and 2 of loss 3: 1.3333, not 2.0 (open-instruct#1161, OpenRLHF#1249, prime-rl#2562)."""
    totals, one = Totals(completions=2, tokens=12), np.ones((1, 1))
    parts = [(np.ones((1, 10)), 1.0), (np.ones((1, 2)), 3.0)]
    loss = sum((token_weights(mask, one, "token_mean", totals, 10) * value).sum() for mask, value in parts)
    assert loss == pytest.approx(16 / 12, rel=1e-15)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "sequence_sum", "constant"])
def test_pitfall_15_the_normaliser_is_applied_once(aggregation: str) -> None:
    """Four accumulation steps do not divide the gradient by four again (ms-swift#10117)."""
    mask = (np.arange(5) < np.array([[1], [5], [2], [4]])).astype(float)
    totals = Totals(completions=4, tokens=12)
    whole = token_weights(mask, np.ones((4, 1)), aggregation, totals, 5)
    parts = [token_weights(mask[i : i + 1], np.ones((1, 1)), aggregation, totals, 5) for i in range(4)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    unit = {"token_mean": 1, "sequence_mean": 1, "sequence_sum": 3, "constant": 12 / 20}
    assert whole.sum() == pytest.approx(unit[aggregation], rel=1e-15)


def test_pitfall_16_token_mean_and_sequence_mean_differ() -> None:
    """Five tokens of loss 2 beside one of loss 10: 3.333 or 6.0 (verl#593)."""
    loss = np.array([[2.0, 2, 2, 2, 2], [10, 3, 4, 5, 2]])
    mask = np.array([[1.0, 1, 1, 1, 1], [1, 0, 0, 0, 0]])
    totals = Totals(completions=2, tokens=6)
    by = {
        kind: (token_weights(mask, np.ones((2, 1)), kind, totals, 5) * loss).sum()
        for kind in ("token_mean", "sequence_mean")
    }
    assert by["token_mean"] == pytest.approx(20 / 6, rel=1e-15)
    assert by["sequence_mean"] == pytest.approx(6, rel=1e-15)


def test_pitfall_17_k1_in_the_loss_is_refused_with_the_reason() -> None:
    """Its gradient is that of log π alone, which has expectation 0 (TRL#4967, verl#2953, OpenRLHF#1309)."""
    with pytest.raises(UserError, match="zero expected gradient"):
        build({"preset": "grpo", "kl": "k1", "kl_coefficient": 0.1})
    np.testing.assert_array_equal(penalty.kl_factor(np.array([-2.0, 0.0, 3.0]), np.ones(3), "k1", False), 1)
    assert build({"preset": "grpo", "kl": "k1", "kl_coefficient": 0.1, "kl_place": "reward"}).uses_kl_reward
