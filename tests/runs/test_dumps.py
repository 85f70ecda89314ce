"""Recorded completions, whose groups must be told and never guessed, and what groups tell."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from log_files import jsonl, real, verl

from delphic.errors import UserError
from delphic.rollouts import Rollouts
from delphic.runs.dumps import TEXTS, read_rollouts
from delphic.runs.read import read_run
from delphic.statistics.rewards import rewards_report
from delphic.statistics.spread import reward_spread


def test_real_areal_completions_agree_with_their_manifest() -> None:
    rollouts, problems = read_rollouts(real("inclusionAI__AReaL__7.jsonl"))
    report = rewards_report(rollouts["reward"].to_numpy(), rollouts["group"].to_numpy())
    sums = rollouts.group_by("group").agg(pl.col("reward").sum())["reward"].sort().to_list()
    assert sums == [0] * 13 + [1] * 6 + [2] * 11
    assert (report["groups"], report["group_size"]["median"]) == (30, 2)
    assert report["rewards"]["mean"] == pytest.approx(28 / 60)
    assert report["rewards"]["silent_share"] == pytest.approx(24 / 30)
    assert problems == []
    assert rollouts["length"].max() == 12000
    assert rollouts["completion"].null_count() == 0


def test_verl_groups_are_prompts_within_a_step_in_any_order(tmp_path: Path) -> None:
    jsonl(tmp_path / "10.jsonl", verl(10, ["b", "a", "b", "a"], [1, 0, 0, 0]))
    jsonl(tmp_path / "9.jsonl", verl(9, ["a", "b", "b", "a"], [1, 1, 1, 0]))
    jsonl(tmp_path / "val" / "9.jsonl", verl(9, ["c"], [1]))
    rollouts, problems = read_rollouts(tmp_path)
    assert rollouts["step"].to_list() == [9] * 4 + [10] * 4
    assert rollouts["group"].to_list() == [0, 1, 1, 0, 2, 3, 2, 3]
    assert rollouts["reward"].to_list() == [1, 1, 1, 0, 1, 0, 0, 0]
    assert problems == []


def test_groups_that_nothing_tells_are_refused_with_what_to_give(tmp_path: Path) -> None:
    once = jsonl(tmp_path / "once.jsonl", verl(1, ["a", "b"], [0, 1]))
    with pytest.raises(UserError, match=r"every prompt comes once.*give --group-size"):
        read_rollouts(once)
    assert read_rollouts(once, group_size=1)[0]["group"].to_list() == [0, 1]
    nemo = [{"content": ["words"], "rewards": [r], "idx": i} for i, r in enumerate([0.0, 1.0, 1.0, 1.0])]
    path = jsonl(tmp_path / "train_data_step7.jsonl", nemo)
    with pytest.raises(UserError, match=r"neither group ids .* nor prompts tell the groups; give --group-size"):
        read_rollouts(path)
    rollouts, problems = read_rollouts(path, group_size=2)
    assert rollouts.select("step", "group", "reward").rows() == [(7, 0, 0), (7, 0, 1), (7, 1, 1), (7, 1, 1)]
    assert problems == ["groups are blocks of 2 completions in the order of the file, as --group-size says"]
    with pytest.raises(UserError, match="no multiple of --group-size 3"):
        read_rollouts(path, group_size=3)


def test_a_prompt_drawn_twice_is_told_and_divided_only_when_asked(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", verl(1, ["a", "a", "b", "a", "b", "a"], [0, 1, 0, 0, 1, 1]))
    rollouts, problems = read_rollouts(path)
    assert rollouts["group"].to_list() == [0, 0, 1, 0, 1, 0]
    assert "have 2 to 4 completions" in problems[0]
    rollouts, problems = read_rollouts(path, group_size=2)
    assert rollouts["group"].to_list() == [0, 0, 1, 2, 1, 2]
    assert "divided in the order of the file" in problems[0]
    with pytest.raises(UserError, match=r"2 of 2 prompts .* no multiple of --group-size 3 \(2 to 4\)"):
        read_rollouts(path, group_size=3)


def test_an_id_that_holds_several_prompts_is_refused_and_a_named_one_is_used(tmp_path: Path) -> None:
    rows = [{**row, "uid": i // 2, "pair": i % 2} for i, row in enumerate(verl(1, ["a", "b", "a", "b"], [0, 1, 0, 0]))]
    path = jsonl(tmp_path / "a.jsonl", rows)
    with pytest.raises(UserError, match="2 group ids hold more than one prompt"):
        read_rollouts(path)
    assert read_rollouts(path, group_key="pair")[0]["group"].to_list() == [0, 1, 0, 1]
    assert "hold more than one prompt" in read_rollouts(path, group_key="uid")[1][0]
    with pytest.raises(UserError, match='no column "piar"; did you mean "pair"'):
        read_rollouts(path, group_key="piar")


def test_trl_sums_its_functions_and_compares_with_the_advantages(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {
            "step": [5] * 4,
            "prompt": [[{"role": "user", "content": p}] for p in "aabb"],
            "completion": ["w", "x", "y", "z"],
            "accuracy_reward": [1.0, 0.0, 1.0, None],
            "format_reward": [0.5, 0.0, 0.0, 0.5],
            "advantage": [0.7, -0.7, 0.7, -0.7],
        }
    )
    (tmp_path / "completions").mkdir()
    table.write_parquet(tmp_path / "completions" / "completions_00005.parquet")
    rollouts, problems = read_rollouts(tmp_path)
    assert rollouts["reward"].to_list() == [1.5, 0, 1, 0.5]
    assert rollouts["group"].to_list() == [0, 0, 1, 1]
    assert problems == ["the reward is the sum of accuracy_reward, format_reward; their weights are not in the file"]
    table.with_columns(advantage=-pl.col("advantage")).write_parquet(tmp_path / "a.parquet")
    assert "in 2 of 2 groups the advantages do not follow" in read_rollouts(tmp_path / "a.parquet")[1][-1]


def test_prime_rl_weights_its_rewards_and_leaves_out_what_is_written_twice(tmp_path: Path) -> None:
    def episode(group: str, *rewards: Any, agent: str = "solver") -> dict[str, Any]:
        traces = [{"rewards": reward, "agent": agent, "is_truncated": False} for reward in rewards]
        return {"id": "e", "group": {"id": group}, "run": {"work": {"step": 3}}, "traces": traces}

    solved = {"tests": {"score": 1.0, "weight": 1.0}, "format": {"score": 1.0, "weight": 0.2}, "judge": None}
    rows = [episode("g", solved), episode("g", {"tests": None}), episode("h", 0.5), episode("h")]
    for place in ("all", "effective"):
        jsonl(tmp_path / "step_3" / "train" / place / "traces.jsonl.gz", rows)
    rollouts, problems = read_rollouts(tmp_path)
    assert rollouts["group"].to_list() == [0, 0, 1]
    assert rollouts["reward"].fill_nan(None).to_list() == [1.2, None, 0.5]
    assert rollouts["step"].to_list() == [3] * 3
    assert problems == ["1 of 3 completions have no reward"]


def test_tinker_summaries_give_groups_rewards_and_lengths(tmp_path: Path) -> None:
    for iteration in (0, 1):
        rows = [
            {
                "iteration": iteration,
                "group_idx": g,
                "traj_idx": t,
                "total_reward": g + t,
                "final_reward": 9,
                "steps": [{"ac_len": 4}, {"ac_len": 5}],
            }
            for g in (0, 1)
            for t in (0, 1)
        ]
        jsonl(tmp_path / f"iteration_00000{iteration}" / "train_rollout_summaries.jsonl", rows)
        jsonl(tmp_path / f"iteration_00000{iteration}" / "eval_test_rollout_summaries.jsonl", rows)
    rollouts, _ = read_rollouts(tmp_path)
    assert rollouts["group"].to_list() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert rollouts["reward"].to_list() == [0, 1, 1, 2] * 2
    assert rollouts["length"].to_list() == [9] * 8


def test_delphics_own_rollouts_keep_their_groups(tmp_path: Path) -> None:
    group = np.array([7, 3, 7, 3])
    tokens = [np.arange(n, dtype=np.int32) for n in (1, 2, 3, 4)]
    own = Rollouts(
        group=group,
        prompt_tokens=[np.zeros(2, np.int32)] * 4,
        tokens=tokens,
        loss_mask=[np.arange(len(t)) > 0 for t in tokens],
        behaviour_logp=[np.zeros(len(t), np.float32) for t in tokens],
        entropy=[np.zeros(0, np.float32)] * 4,
        reward=np.array([1.0, 0.0, np.nan, 0.0]),
        version=np.zeros(4, np.int64),
        truncated=np.array([False, True, False, False]),
        problem=np.array([0, 1, 0, 1]),
        row=np.arange(4),
        value=np.full(4, np.nan),
        prompt=["p", "q", "p", "q"],
        completion=["a", "b", "c", "d"],
    )
    (tmp_path / "rollouts").mkdir()
    for step in (1, 2):
        own.write(tmp_path / "rollouts" / f"step_{step:06d}.parquet")
    rollouts, problems = read_rollouts(tmp_path)
    assert rollouts["step"].to_list() == [1] * 4 + [2] * 4
    assert rollouts["group"].to_list() == [0, 1, 0, 1, 2, 3, 2, 3]
    assert rollouts["length"].to_list() == [0, 1, 2, 3] * 2
    assert rollouts["truncated"].to_list() == [False, True, False, False] * 2
    assert rollouts["prompt"].to_list() == ["p", "q", "p", "q"] * 2
    assert problems == ["2 of 8 completions have no reward"]


def test_texts_are_capped_and_spread_over_the_run(tmp_path: Path) -> None:
    rows = [
        row
        for step in range(60)
        for row in verl(step, [f"p{i // 10}" for i in range(100)], [i % 2 for i in range(100)])
    ]
    rollouts, _ = read_rollouts(jsonl(tmp_path / "a.jsonl", rows))
    kept = rollouts.filter(pl.col("completion").is_not_null())
    assert TEXTS / 2 <= len(kept) <= TEXTS
    assert kept["step"].n_unique() == 60
    assert len(rollouts) == 6000
    assert rollouts["group"].n_unique() == 600


def test_lines_that_are_broken_are_counted_and_a_file_of_them_is_refused(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", verl(1, ["a", "a"], [0, 1]))
    path.write_text(path.read_text() + '{"input": "a", "outp')
    rollouts, problems = read_rollouts(path)
    assert len(rollouts) == 2
    assert problems == ["a.jsonl: 1 lines are no JSON objects, and were left out"]
    path.write_text("step reward\n")
    with pytest.raises(UserError, match="no JSON objects"):
        read_rollouts(path)
    with pytest.raises(UserError, match=r'no column of rewards .*did you mean "rewrad"'):
        read_rollouts(jsonl(path, [{"prompt": "a", "rewrad": 1}]))


def test_half_characters_and_steps_beyond_a_column_are_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    row = '{"input": "a\\ud800", "output": "\\udfff", "score": 1, "step": 1e300}\n'
    path.write_text(row * 2)
    rollouts, _ = read_rollouts(path)
    assert rollouts["group"].to_list() == [0, 0]
    assert "step" not in rollouts.columns
    assert rollouts["completion"].to_list() == ["?", "?"]


def test_areals_step_is_the_version_that_names_the_folder(tmp_path: Path) -> None:
    for version in (2, 10):
        rows = [
            {"task_id": 4, "seqlen": 9, "prompt_len": 4, "tail_version": 77, "reward": r, "prompt": "p"} for r in (0, 1)
        ]
        jsonl(tmp_path / "rollout" / str(version) / "4.jsonl", rows)
        jsonl(tmp_path / "eval-rollout" / str(version) / "4.jsonl", rows)
    rollouts, _ = read_rollouts(tmp_path)
    assert rollouts.select("step", "group", "reward", "length").rows() == [
        (2, 0, 0, 5),
        (2, 0, 1, 5),
        (10, 1, 0, 5),
        (10, 1, 1, 5),
    ]


def test_the_spread_of_rewards_by_hand_and_ragged() -> None:
    rewards = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 3.0, np.nan])
    groups = np.array([5, 5, 2, 2, 2, 9, 9])
    spread = reward_spread(rewards, groups)
    assert spread.mean == pytest.approx((0.5 + 1 + 3) / 3)
    assert spread.within == pytest.approx((0.5 + 0) / 2)
    assert spread.between == pytest.approx(np.var([0.5, 1, 3], ddof=1) - (0.5 / 2 + 0) / 2)
    nothing = reward_spread(np.array([]), np.array([]))
    assert math.isnan(nothing.mean)
    assert math.isnan(nothing.within)


def test_the_report_leaves_out_what_the_data_do_not_tell() -> None:
    report = rewards_report(np.array([0.5, np.nan]), np.array([0, 1]))
    assert report["groups"] == 1
    assert report["group_size"] == {"smallest": 1, "median": 1, "largest": 1}
    assert report["rewards"]["variance_within"] is None
    assert report["rewards"]["silent_share_expected"] is None


def test_a_table_of_completions_is_no_log(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("uid,reward\na,1\na,0\nb,1\nb,\n")
    log = read_run(table)
    assert (log.framework, len(log.table), log.non_finite) == ("rollouts", 1, {})
    assert log.series("reward_mean")[1].tolist() == pytest.approx([2 / 3])
    one = read_run(jsonl(tmp_path / "3.jsonl", verl(3, ["a", "b", "a", "b"], [1, 0, 0, 0])))
    assert (one.framework, one.steps.tolist()) == ("rollouts", [3])
    assert one.series("silent_share")[1].tolist() == [0.5]
