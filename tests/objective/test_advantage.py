"""Advantages: what holds for any rewards, any groups, any order, and for numpy and torch alike."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from delphic.objective import (
    PRESETS,
    StepInputs,
    Totals,
    build,
    coefficients,
    group_slots,
    penalty,
    prepare,
    ratio,
    shaping,
    token_weights,
)
from delphic.objective import advantage as adv

NAN = float("nan")


def advantages(preset: str, rewards: list[float], groups: list[int] | None = None, **choices: object) -> np.ndarray:
    ids = np.zeros(len(rewards), dtype=int) if groups is None else np.array(groups)
    return prepare(build({"preset": preset, **choices}), StepInputs(np.array(rewards), ids)).advantage


# -- single formulas


def test_mean_and_leave_one_out_baselines() -> None:
    np.testing.assert_allclose(advantages("dr_grpo", [3, 1, 2]), [1, -1, 0], atol=1e-15)
    np.testing.assert_allclose(advantages("rloo", [3, 1, 2]), [1.5, -1.5, 0], atol=1e-15)


def test_leave_one_out_is_the_mean_advantage_stretched_by_g_over_g_minus_1() -> None:
    rewards = [0.3, 0.9, -0.2, 0.4, 1.1]
    np.testing.assert_allclose(advantages("rloo", rewards), np.array(advantages("dr_grpo", rewards)) * 5 / 4)


def test_std_is_the_sample_form_plus_epsilon() -> None:
    rewards = np.array([0.0, 1.0, 1.0, 3.0])
    expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(advantages("grpo", list(rewards)), expected, rtol=1e-14)


def test_weighted_baselines() -> None:
    rewards, weights = np.array([1.0, 0.0, 2.0]), np.array([1.0, 2.0, 5.0])
    baseline = (weights * rewards).sum() / weights.sum()
    step = StepInputs(rewards, np.zeros(3, dtype=int), lengths=weights, score_norms=weights)
    for preset in ("opo", "best_baseline"):
        np.testing.assert_allclose(prepare(build(preset), step).advantage, rewards - baseline, rtol=1e-14)


def test_log_mean_exp_lies_between_mean_and_maximum_and_survives_large_rewards() -> None:
    rewards = np.array([0.0, 1.0, 2.0])
    expected = rewards - np.log(np.mean(np.exp(rewards)))
    np.testing.assert_allclose(advantages("opmd_logavgexp", list(rewards)), expected, rtol=1e-14)
    np.testing.assert_allclose(advantages("opmd_logavgexp", list(rewards + 5000)), expected, rtol=1e-10)


def test_maxrl_divides_by_the_mean_and_gives_nothing_where_nobody_succeeds() -> None:
    np.testing.assert_allclose(advantages("maxrl", [1, 0, 0, 0]), [3, -1, -1, -1])
    np.testing.assert_array_equal(advantages("maxrl", [-1, 0, 0, 0]), [0, 0, 0, 0])


def test_whitening_is_over_tokens_of_the_whole_batch() -> None:
    rewards, lengths = np.array([1.0, 0.0, 3.0]), np.array([2, 1, 3])
    step = StepInputs(rewards, np.arange(3), lengths=lengths)
    tokens = np.repeat(rewards, lengths)
    expected = (rewards - tokens.mean()) / (tokens.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(prepare(build("reinforce_pp"), step).advantage, expected, rtol=1e-14)


def test_values_are_the_baseline_of_oracle_and_critic() -> None:
    step = StepInputs(np.array([1.0, 0.0]), np.zeros(2, dtype=int), values=np.array([0.3, 0.3]))
    for preset in ("oracle", "a2c"):
        np.testing.assert_allclose(prepare(build(preset), step).advantage, [0.7, -0.3])


def test_a_missing_input_is_named() -> None:
    step = StepInputs(np.array([1.0, 0.0]), np.zeros(2, dtype=int))
    for preset, what in [
        ("a2c", "values"),
        ("opo", "lengths"),
        ("best_baseline", "score_norms"),
        ("red_drop", "priority"),
    ]:
        with pytest.raises(ValueError, match=what):
            prepare(build(preset), step)


def test_equal_rewards_give_exactly_zero_even_when_their_mean_rounds() -> None:
    for preset in ("grpo", "dr_grpo", "rloo", "opmd_logavgexp", "maxrl"):
        np.testing.assert_array_equal(advantages(preset, [0.1] * 7), np.zeros(7))


@pytest.mark.filterwarnings("error")
def test_no_epsilon_is_needed_for_groups_of_equal_rewards() -> None:
    result = advantages("grpo", [1, 1, 0, 2], groups=[0, 0, 1, 1], scale_epsilon=0.0)
    np.testing.assert_allclose(result, [0, 0, -np.sqrt(0.5), np.sqrt(0.5)])


def test_overlong_punishment_grows_linearly_over_the_buffer() -> None:
    lengths = np.array([5.0, 6.0, 8.0, 10.0, 12.0])
    np.testing.assert_allclose(shaping.overlong(lengths, 10, 4), [0, 0, -0.5, -1, -1])


def test_per_reward_normalisation_weighs_functions_alike() -> None:
    components = np.array([[0.0, 1.0], [0.0, 1000.0]])
    step = StepInputs(components.sum(0), np.zeros(2, dtype=int), components=components)
    row = build({"baseline": "mean", "reward_normalization": "per_reward", "scale_epsilon": 0.0})
    np.testing.assert_allclose(prepare(row, step).advantage, np.array([-1, 1]) * 2 * np.sqrt(0.5))


def test_kl_in_the_reward_is_subtracted_before_the_baseline() -> None:
    row = build({"baseline": "mean", "kl": "k1", "kl_place": "reward", "kl_coefficient": 0.5})
    step = StepInputs(np.array([1.0, 1.0]), np.zeros(2, dtype=int), sequence_kl=np.array([0.0, 2.0]))
    np.testing.assert_allclose(prepare(row, step).advantage, [0.5, -0.5])


def test_red_drop_balances_and_takes_the_mean_of_the_kept() -> None:
    priority = np.array([0.9, 0.1, 0.5, 0.7])
    prepared = prepare(
        build("red_drop"), StepInputs(np.array([1.0, 0, 0, 0]), np.zeros(4, dtype=int), priority=priority)
    )
    np.testing.assert_array_equal(prepared.kept, [True, False, False, True])
    np.testing.assert_allclose(prepared.advantage, [0.5, 0, 0, -0.5])
    assert prepared.reasons == {1: "surplus negative", 2: "surplus negative"}
    assert prepared.totals(np.array([3, 5, 7, 2])) == Totals(completions=2, tokens=5)


def test_red_drop_leaves_groups_with_enough_successes_alone() -> None:
    step = StepInputs(np.array([1.0, 1, 0, 0]), np.zeros(4, dtype=int), priority=np.random.default_rng(0).random(4))
    assert prepare(build("red_drop"), step).kept.all()


def test_red_drop_does_not_call_the_mean_negative_because_of_rounding() -> None:
    # (0.1 + 0.2 + 0.3)/3 rounds above 0.2 and (0.3 + 0.2 + 0.1)/3 below it
    for rewards in ([0.1, 0.2, 0.3], [0.3, 0.2, 0.1]):
        step = StepInputs(np.array(rewards), np.zeros(3, dtype=int), priority=np.array([0.1, 0.2, 0.3]))
        assert prepare(build("red_drop"), step).kept.all()


def test_truncated_completions_can_be_kept_from_learning() -> None:
    row = build({"preset": "dr_grpo", "truncated": "mask"})
    step = StepInputs(np.array([1.0, 0, 5]), np.zeros(3, dtype=int), truncated=np.array([False, False, True]))
    prepared = prepare(row, step)
    np.testing.assert_allclose(prepared.advantage, [0.5, -0.5, 0])
    assert prepared.reasons == {2: "truncated"}


def test_group_slots_find_members_by_id() -> None:
    slots = group_slots(np.array([7, -2, 7, 7, 100]))
    np.testing.assert_array_equal(slots, [[1, -1, -1], [0, 2, 3], [4, -1, -1]])


# -- for any rewards and groups

# tenths: no sum of them is exact, yet a spread is never mere rounding
reward = st.integers(-20, 22).map(lambda k: NAN if k > 20 else k / 10)
rows = st.lists(st.tuples(st.integers(0, 4), reward), min_size=1, max_size=24)


def step_of(pairs: list[tuple[int, float]], seed: int = 0) -> StepInputs:
    rng, n = np.random.default_rng(seed), len(pairs)
    return StepInputs(
        np.array([r for _, r in pairs]),
        np.array([g for g, _ in pairs]),
        lengths=rng.integers(1, 9, n),
        values=rng.normal(size=n),
        score_norms=rng.random(n) + 0.1,
        priority=rng.random(n),
        sequence_log_ratio=rng.normal(size=n) * 0.1,
    )


def subset(step: StepInputs, index: np.ndarray) -> StepInputs:
    arrays = {f.name: getattr(step, f.name) for f in dataclasses.fields(step)}
    return StepInputs(**{k: v[index] if isinstance(v, np.ndarray) else v for k, v in arrays.items()})


@pytest.mark.parametrize("preset", PRESETS)
@given(pairs=rows, seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_any_order_of_rows_gives_the_same_advantages(preset: str, pairs: list[tuple[int, float]], seed: int) -> None:
    step, objective = step_of(pairs, seed), build(preset)
    order = np.random.default_rng(seed + 1).permutation(len(pairs))
    one, other = prepare(objective, step), prepare(objective, subset(step, order))
    for key in ("advantage", "coefficient"):
        np.testing.assert_allclose(getattr(other, key), getattr(one, key)[order], rtol=1e-12, atol=1e-12)
    for key in ("kept", "penalised", "silent"):
        np.testing.assert_array_equal(getattr(other, key), getattr(one, key)[order])


@pytest.mark.parametrize("preset", [name for name in PRESETS if PRESETS[name].choices.get("scale") != "batch_whiten"])
@given(pairs=rows, more=rows)
@settings(max_examples=15, deadline=None)
def test_other_groups_in_the_step_change_nothing(
    preset: str, pairs: list[tuple[int, float]], more: list[tuple[int, float]]
) -> None:
    both = step_of(pairs + [(g + 10, r) for g, r in more])
    alone = prepare(build(preset), subset(both, np.arange(len(pairs))))
    together = prepare(build(preset), both)
    np.testing.assert_allclose(together.advantage[: len(pairs)], alone.advantage, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(together.kept[: len(pairs)], alone.kept)


@pytest.mark.parametrize("preset", ["dr_grpo", "grpo", "rloo", "red_drop"])
@given(pairs=rows)
@settings(max_examples=40, deadline=None)
def test_advantages_sum_to_zero_in_every_group(preset: str, pairs: list[tuple[int, float]]) -> None:
    step = step_of(pairs)
    prepared = prepare(build(preset), step)
    for group in set(step.groups.tolist()):
        assert abs(prepared.advantage[step.groups == group].sum()) < 1e-11
    assert np.isfinite(prepared.coefficient).all()


@pytest.mark.parametrize("preset", ["grpo", "dr_grpo", "rloo", "gspo", "cispo", "opmd"])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "sequence_sum", "constant"])
def test_the_gradient_does_not_depend_on_the_cut_into_micro_batches(preset: str, aggregation: str) -> None:
    rng, n, t = np.random.default_rng(3), 12, 6
    pairs = list(zip(rng.integers(0, 3, n).tolist(), rng.normal(size=n).tolist(), strict=True))
    step, objective = step_of(pairs), build({"preset": preset, "aggregation": aggregation})
    step = dataclasses.replace(step, lengths=rng.integers(1, t + 1, n))
    mask = (np.arange(t) < np.asarray(step.lengths)[:, None]).astype(float)
    log_ratio = rng.normal(size=(n, t)) * 0.2 * mask
    scores = rng.normal(size=(n, t, 5))
    prepared = prepare(objective, step)
    totals = prepared.totals(np.asarray(step.lengths))

    def gradient(index: np.ndarray) -> np.ndarray:
        kept = prepared.kept[index, None].astype(float)
        factors = coefficients(
            objective,
            prepared.coefficient[index, None],
            prepared.penalised[index, None].astype(float),
            log_ratio[index],
            mask[index],
        )
        weight = token_weights(mask[index], kept, aggregation, totals, max_length=t)
        return np.einsum("nt,ntd->d", weight * (factors.policy + factors.penalty), scores[index])

    whole = gradient(np.arange(n))
    for parts in (2, 5, 12):
        cut = sum(gradient(index) for index in np.array_split(rng.permutation(n), parts))
        np.testing.assert_allclose(cut, whole, rtol=1e-12, atol=1e-12)


# -- numpy and torch


def both_kinds(function: object, *arrays: np.ndarray, args: tuple[object, ...] = ()) -> None:
    expected = function(*arrays, *args)  # type: ignore[operator]
    got = function(*(torch.from_numpy(a) for a in arrays), *args)  # type: ignore[operator]
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12, atol=1e-12)


def test_numpy_and_torch_give_the_same_advantages() -> None:
    rng = np.random.default_rng(0)
    r, valid = rng.integers(0, 4, (6, 5)) / 3, rng.random((6, 5)) < 0.8
    r[0], weights, a = 0.5, rng.random((6, 5)), rng.normal(size=(6, 5))
    for function in (adv.mean, adv.leave_one_out, adv.standard_deviation, adv.all_equal):
        both_kinds(function, r, valid)
    both_kinds(adv.weighted_mean, r, valid, weights)
    both_kinds(adv.balance, r, valid, weights)
    both_kinds(adv.subtract, r, valid, weights)
    both_kinds(adv.log_mean_exp, r, valid, args=(0.7,))
    both_kinds(adv.over_std, a, r, valid, args=(1e-6,))
    both_kinds(adv.over_mean, a, r, valid)
    both_kinds(adv.whiten, a[0], valid[0], weights[0] * 9, args=(1e-6,))
    both_kinds(shaping.overlong, weights * 10, args=(8, 3))
    both_kinds(shaping.exponential_weight, a, args=(0.5,))
    both_kinds(shaping.per_reward_normalised, r, valid, args=(1e-6,))


def test_numpy_and_torch_give_the_same_ratios_and_penalties() -> None:
    rng = np.random.default_rng(1)
    delta, mask = rng.normal(size=(7, 4)), (rng.random((7, 4)) < 0.7).astype(float)
    rho, a = np.exp(delta), rng.normal(size=(7, 1))
    both_kinds(ratio.sequence_log_ratio, delta, mask)
    both_kinds(ratio.capped, rho, args=(1.5,))
    both_kinds(ratio.truncated_negative, rho, a)
    both_kinds(ratio.soft_gate, rho, a, args=(1.0, 1.05))
    both_kinds(ratio.one_side, rho, a, args=(0.2, 0.2))
    both_kinds(ratio.two_side, rho, args=(0.2, 0.2))
    both_kinds(ratio.ring, rho, a, args=(0.2, 0.2, 0.6, 2.0))
    for estimator in ("k1", "k2", "k3"):
        both_kinds(penalty.kl_value, delta, args=(estimator,))
        for corrected in (False, True):
            both_kinds(penalty.kl_factor, delta, rho, args=(estimator, corrected))
    for level in ("sequence", "token"):
        both_kinds(penalty.quadratic_factor, delta, mask, args=(level,))


@pytest.mark.parametrize("preset", PRESETS)
def test_numpy_and_torch_give_the_same_coefficients(preset: str) -> None:
    rng = np.random.default_rng(2)
    row = build({"preset": preset, "kl": "k3", "kl_coefficient": 0.1, "kl_corrected": True})
    mask = (np.arange(4) < rng.integers(1, 5, 7)[:, None]).astype(float)
    arrays = [
        rng.normal(size=(7, 1)),
        np.ones((7, 1)),
        rng.normal(size=(7, 4)) * mask,
        mask,
        rng.normal(size=(7, 4)) * mask,
    ]
    expected = coefficients(row, *arrays)
    got = coefficients(row, *(torch.from_numpy(a) for a in arrays))
    for field in dataclasses.fields(expected):
        np.testing.assert_allclose(
            getattr(got, field.name).numpy(), getattr(expected, field.name), rtol=1e-12, atol=1e-12
        )
