"""Rollouts survive the disk, selection and joining."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delphic.errors import UserError
from delphic.rollouts import Rollouts


def make(lengths: list[int], seed: int = 0) -> Rollouts:
    rng, n = np.random.default_rng(seed), len(lengths)
    reward = rng.normal(size=n)
    reward[rng.random(n) < 0.2] = np.nan
    return Rollouts(
        group=rng.integers(0, 3, n),
        prompt_tokens=[rng.integers(0, 9, rng.integers(1, 5)).astype(np.int32) for _ in range(n)],
        tokens=[rng.integers(0, 9, k).astype(np.int32) for k in lengths],
        loss_mask=[rng.random(k) < 0.8 for k in lengths],
        behaviour_logp=[rng.normal(size=k).astype(np.float32) for k in lengths],
        entropy=[rng.random(k).astype(np.float32) for k in lengths],
        reward=reward,
        version=rng.integers(0, 5, n),
        truncated=rng.random(n) < 0.5,
        problem=rng.integers(-1, 5, n),
        row=np.arange(n),
        value=np.full(n, np.nan),
        prompt=["p — ü"] * n,
        completion=['"\n'] * n,
        components={"a/b": rng.normal(size=n)},
    )


def assert_same(a: Rollouts, b: Rollouts) -> None:
    for name in ("group", "reward", "version", "truncated", "problem", "row", "value"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        assert getattr(a, name).dtype == getattr(b, name).dtype
    for name in ("prompt_tokens", "tokens", "loss_mask", "behaviour_logp", "entropy"):
        for x, y in zip(getattr(a, name), getattr(b, name), strict=True):
            np.testing.assert_array_equal(x, y)
            assert x.dtype == y.dtype
    assert a.prompt == b.prompt
    assert a.completion == b.completion
    assert a.components.keys() == b.components.keys()
    for key in a.components:
        np.testing.assert_array_equal(a.components[key], b.components[key])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_a_parquet_file_gives_back_the_same_bits(lengths: list[int], seed: int, tmp_path: Path) -> None:
    rollouts = make(lengths, seed)
    rollouts.write(tmp_path / "r.parquet", {"step": 3})
    again, meta = Rollouts.read(tmp_path / "r.parquet")
    assert_same(rollouts, again)
    assert meta["step"] == 3
    assert [p.name for p in tmp_path.iterdir()] == ["r.parquet"], "no temporary file is left"


def test_selecting_and_joining_keep_rows_together() -> None:
    rollouts = make([3, 1, 4, 1, 5])
    order = [4, 2, 0, 1, 3]
    shuffled = rollouts.select(order)
    assert_same(shuffled.select(np.argsort(order)), rollouts)
    assert_same(Rollouts.concat([rollouts.select([0, 1]), rollouts.select([2, 3, 4])]), rollouts)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=2, max_size=8),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_any_cut_and_any_order_join_again(lengths: list[int], seed: int, data: st.DataObject) -> None:
    rollouts, n = make(lengths, seed), len(lengths)
    order = data.draw(st.permutations(range(n)))
    cut = data.draw(st.integers(1, n - 1))
    parts = [rollouts.select(order[:cut]), rollouts.select(order[cut:])]
    assert_same(Rollouts.concat(parts).select(np.argsort(order)), rollouts)
    twice = rollouts.select([0, 0])
    assert_same(twice.select([0]), twice.select([1]))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(known=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_unknown_log_probs_and_entropies_stay_unknown_row_by_row(
    known: list[tuple[bool, bool]], tmp_path: Path
) -> None:
    rollouts, nothing = make([3] * len(known)), np.zeros(0, dtype=np.float32)
    rollouts = rollouts.with_(
        behaviour_logp=[x if k[0] else nothing for x, k in zip(rollouts.behaviour_logp, known, strict=True)],
        entropy=[x if k[1] else nothing for x, k in zip(rollouts.entropy, known, strict=True)],
    )
    rollouts.write(tmp_path / "r.parquet")
    again, _ = Rollouts.read(tmp_path / "r.parquet")
    assert_same(again, rollouts)
    assert again.has_behaviour == all(k[0] for k in known)


def test_a_reward_function_that_a_part_lacks_is_nan_there() -> None:
    a, b = make([1, 2]).with_(components={"x": np.ones(2)}), make([3]).with_(components={"y": np.zeros(1)})
    joined = Rollouts.concat([a, b]).components
    np.testing.assert_array_equal(joined["x"], [1, 1, np.nan])
    np.testing.assert_array_equal(joined["y"], [np.nan, np.nan, 0])


FOREIGN = {"group": [0, 0], "prompt_tokens": [[1], [1]], "tokens": [[2, 3], [4]], "reward": [1.0, 0.0]}


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("group", ["a", "b"], "column group should hold int64"),
        ("group", [None, 1], "column group has missing values"),
        ("tokens", ["x", "y"], "column tokens should hold list"),
        ("tokens", [[1, None], [2]], "column tokens has missing values"),
        ("tokens", [[2**40, 1], [2]], "column tokens should hold list"),
        ("prompt_tokens", [[1.5], [2.0]], "column prompt_tokens should hold list"),
        ("reward", ["good", "bad"], "column reward should hold double"),
        ("reward/x", ["good", "bad"], "column reward/x should hold double"),
        ("behaviour_logp", [[-1.0], [-1.0]], "row 0: behaviour_logp must be empty or have one value a token"),
        ("loss_mask", [[True], [True]], "row 0: 2 tokens, loss mask of 1"),
    ],
)
def test_a_foreign_column_of_the_wrong_kind_is_named(
    column: str, values: list[object], message: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table({**FOREIGN, column: values}), tmp_path / "f.parquet")
    with pytest.raises(UserError, match=message):
        Rollouts.read(tmp_path / "f.parquet")


def test_foreign_columns_of_a_wider_type_are_taken(tmp_path: Path) -> None:
    large = pa.array([[2, 3], [4]], type=pa.large_list(pa.int64()))
    wide = {"tokens": large, "reward": [True, None], "group": pa.array([0, 1], pa.uint32()), "truncated": [0, 1]}
    unknown = {"behaviour_logp": pa.array([None, [-1.0]], pa.list_(pa.float64())), "prompt": [None, "p"]}
    pq.write_table(pa.table({**FOREIGN, **wide, **unknown}), tmp_path / "f.parquet")
    rollouts, _ = Rollouts.read(tmp_path / "f.parquet")
    assert [t.tolist() for t in rollouts.tokens] == [[2, 3], [4]]
    np.testing.assert_array_equal(rollouts.reward, [1, np.nan])
    assert rollouts.truncated.tolist() == [False, True]
    assert [len(x) for x in rollouts.behaviour_logp] == [0, 1]
    assert rollouts.prompt == ["", "p"]


def test_lengths_count_what_the_policy_wrote() -> None:
    rollouts = make([4]).with_(loss_mask=[np.array([True, False, True, True])])
    assert rollouts.lengths.tolist() == [3]


def test_inconsistent_rows_are_refused() -> None:
    rollouts = make([2, 3])
    with pytest.raises(ValueError, match="reward has 1 rows"):
        rollouts.with_(reward=np.zeros(1))
    with pytest.raises(ValueError, match="row 0: 2 tokens, loss mask of 1"):
        rollouts.with_(loss_mask=[np.ones(1, dtype=bool), np.ones(3, dtype=bool)])
    with pytest.raises(ValueError, match="row 1: behaviour_logp"):
        rollouts.with_(behaviour_logp=[np.zeros(2), np.zeros(1)])


def test_foreign_files_need_four_columns_and_get_defaults(tmp_path: Path) -> None:
    table = pa.table({"group": [0, 0], "prompt_tokens": [[1], [1]], "tokens": [[2, 3], [4]], "reward": [1.0, 0.0]})
    pq.write_table(table, tmp_path / "f.parquet")
    rollouts, _ = Rollouts.read(tmp_path / "f.parquet")
    assert [mask.tolist() for mask in rollouts.loss_mask] == [[True, True], [True]]
    assert not rollouts.has_behaviour
    pq.write_table(table.drop(["reward"]), tmp_path / "g.parquet")
    with pytest.raises(UserError, match="column reward is missing"):
        Rollouts.read(tmp_path / "g.parquet")
    (tmp_path / "h.parquet").write_text("not parquet")
    with pytest.raises(UserError, match="not a readable Parquet file"):
        Rollouts.read(tmp_path / "h.parquet")
