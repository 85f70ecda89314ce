"""Cases in which a key, a step or a row means other than it seems."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from framework_rows import ROWS

from delphic.errors import UserError
from delphic.runs.log import RunLog
from delphic.runs.read import read_run

T = range(1, 21)


def of(tmp_path: Path, rows: list[dict[str, Any]], name: str = "log.jsonl", **options: Any) -> RunLog:
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_run(path, **options)


def test_nemo_mixed_groups_are_those_that_are_not_silent(tmp_path: Path) -> None:
    nemo = {**ROWS["nemo-rl"][0], "train/baseline_reward/pct_mixed": 30.0}
    log = of(tmp_path, [{"step": i, **nemo} for i in T])
    assert log.series("silent_share")[1][0] == pytest.approx(0.7)
    assert log.kind("silent_share") == "samples"


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({"critic/rewards/mean": 0.5}, "raw"),
        ({"critic/rewards/mean": 0.5, "actor/reward_kl_penalty": 0.1}, "shaped"),
        ({"critic/rewards/mean": 0.5, "critic/score/mean": 0.6}, "raw"),
    ],
)
def test_verl_rewards_are_shaped_where_the_kl_is_in_them(tmp_path: Path, keys: dict[str, float], kind: str) -> None:
    log = of(tmp_path, [{"step": i, "actor/pg_loss": 0.1, **keys} for i in T])
    assert log.kind("reward_mean") == kind
    assert log.series("reward_mean")[1][0] == keys.get("critic/score/mean", 0.5)


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({"completion_length": 9.0}, "within groups"),
        ({"completions/mean_length": 9.0}, "within groups"),
        ({"completions/mean_length": 9.0, "frac_reward_zero_std": 0.1}, "unknown"),
    ],
)
def test_trl_reward_std_by_what_the_keys_say_of_the_version(tmp_path: Path, keys: dict[str, float], kind: str) -> None:
    log = of(tmp_path, [{"step": i, "reward": 0.5, "reward_std": 0.1, "num_tokens": 5.0, **keys} for i in T])
    assert (log.framework, log.kind("reward_std")) == ("trl", kind)


def test_old_and_new_names_of_reward_functions(tmp_path: Path) -> None:
    row = {"reward": 0.5, "reward_std": 0.1, "completion_length": 9.0, "rewards/format": 0.2, "rewards/acc/mean": 0.3}
    log = of(tmp_path, [{"step": i, **row} for i in T])
    assert (log.series("reward/format")[1][0], log.series("reward/acc")[1][0]) == (0.2, 0.3)


def test_accuracies_in_percent_and_rewards_on_their_own_scale(tmp_path: Path) -> None:
    log = of(tmp_path, [{"step": i, "reward": 0.5, "eval_acc": 40.0 if i < 3 else 0.0} for i in T])
    assert log.series("eval_reward")[1][0] == pytest.approx(0.4)
    log = of(tmp_path, [{"step": i, "reward": 5.0, "eval_reward": 6.0} for i in T])
    assert log.series("eval_reward")[1][0] == 6.0


def test_held_out_figures_are_no_substitute_for_a_reward_of_zero(tmp_path: Path) -> None:
    log = of(tmp_path, [{"step": i, "reward": 0.0, "eval/pass_at_8": i / 20, "val_acc": 0.1, "t": 1} for i in T])
    assert log.series("reward_mean")[1].max() == 0.0
    log = of(tmp_path, [{"step": i, "reward": 1.0, "success": i / 20} for i in T])
    assert log.series("reward_mean")[1].min() == 1.0  # solved, not dead


def test_open_instruct_counts_episodes_unless_it_has_steps_too(tmp_path: Path) -> None:
    row = ROWS["open-instruct"][0]
    log = of(tmp_path, [{"global_step": 64 * i, **row} for i in (1, 2, 4, 5)])
    assert log.steps.tolist() == [1, 2, 4, 5]
    assert "64 a step" in log.problems[0]
    log = of(tmp_path, [{"global_step": 64 * i, "training_step": i, **row} for i in T])
    assert (log.steps.tolist(), log.problems) == (list(T), ())
    log = of(tmp_path, [{"global_step": 64 * i, "reward": 0.1} for i in T])  # of others nothing is assumed
    assert log.steps[0] == 64


def test_slime_updates_are_put_at_their_rollout(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for i in range(8):
        rows.append({"rollout/step": i, "rollout/raw_reward": i / 10, "rollout/response_len/mean": 9.0})
        rows += [{"train/step": 2 * i + k, "train/lr-pg_0": 1e-6, "train/grad_norm": 1.0 + 2 * k} for k in (0, 1)]
    log = of(tmp_path, rows)
    assert (log.framework, log.steps.tolist()) == ("slime", list(range(8)))
    assert log.series("gradient_norm")[1].tolist() == [2.0] * 8
    assert "2 updates a rollout" in log.problems[0]


def test_rows_that_come_late_or_backwards_are_no_restart(tmp_path: Path) -> None:
    log = of(tmp_path, [{"step": i, "reward": i / 20} for i in reversed(T)])
    assert log.series("reward_mean")[1].tolist() == [i / 20 for i in T]
    rows: list[dict[str, Any]] = []
    for i in T:  # a trainer that is a step behind, and says the first twice
        rows += [{"step": i, "reward": i / 20}, {"step": max(i - 1, 1), "grad_norm": 2.0}]
    log = of(tmp_path, rows)
    assert len(log.sessions) == 1
    assert log.series("reward_mean")[1].tolist() == [i / 20 for i in T]
    assert "sorted" in log.problems[0]


def test_console_of_transformers_started_again_and_resumed(tmp_path: Path) -> None:
    path = tmp_path / "trl.log"
    epochs = [1, 2, 3, 1, 2, 3, 4, 5, 6, 5, 6, 7]  # three steps, six from the start, and on from the fifth
    lines = [f"{{'loss': nan, 'reward': {i / 20}, 'reward_std': 0.1, 'epoch': {e / 10}}}" for i, e in enumerate(epochs)]
    path.write_text("\n".join([*lines[:6], "{'eval_reward': 0.9, 'epoch': 0.3}", *lines[6:], "{'train_runtime': 9.0}"]))
    log = read_run(path)
    assert [(s.first, s.last) for s in log.sessions] == [(1, 3), (1, 7)]
    assert (log.steps.tolist(), log.resumed) == ([1, 2, 3, 4, 5, 6, 7], (5,))
    assert log.series("reward_mean")[1].tolist() == pytest.approx([i / 20 for i in (3, 4, 5, 6, 9, 10, 11)])
    steps, values = log.series("eval_reward")
    assert (steps.tolist(), values.tolist()) == ([3], [0.9])


def test_a_nan_in_a_printed_dict_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "trl.log"
    rows = [f"{{'reward': 0.5, 'reward_std': 0.1, 'grad_norm': {'nan' if i == 3 else 1.0}}}\n" for i in T]
    path.write_text("".join(rows))
    assert read_run(path).non_finite == {"gradient_norm": (3,)}


def test_exports_of_a_chart_of_one_run_or_several(tmp_path: Path) -> None:
    path = tmp_path / "wandb.csv"
    head = '"Step","a - critic/score/mean","a - critic/score/mean__MIN","b - critic/score/mean","a - actor/pg_loss"\n'
    path.write_text(head + "".join(f'"{i}","0.{i}","0","{"0.9" if i < 13 else ""}","0.1"\n' for i in range(10, 20)))
    log = read_run(path)
    assert log.framework == "verl"
    assert log.series("reward_mean")[1][:3].tolist() == [0.1, 0.11, 0.12]
    assert log.problems == ('the export holds 2 runs; "a", which has the most numbers, is used',)
    assert read_run(path, {"reward_mean": "a - actor/pg_loss"}).series("reward_mean")[1][0] == 0.1


def test_steps_of_ms_swift_written_with_the_end(tmp_path: Path) -> None:
    rows = [{**ROWS["ms-swift"][0], "global_step/max_steps": f"{5 * i}/500"} for i in T]
    for odd in (
        {},
        {"global_step/max_steps": "105/500", "reward": 0.5, "bins": [1.0, {"x": 2}]},
    ):  # all at once, and line by line
        log = of(tmp_path, [*rows, odd] if odd else rows, "logging.jsonl")
        assert (log.framework, log.settings["steps"]) == ("ms-swift", 500)
        assert log.steps.tolist() == [5 * i for i in T] + ([105] if odd else [])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_as_spreadsheets_and_shells_write_it(tmp_path: Path, encoding: str, separator: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(separator.join(["step", "reward\r\n1", "0.5\r\n2", "\r\n3", "0.7\r\n"]).encode(encoding))
    steps, values = read_run(path).series("reward_mean")
    assert (steps.tolist(), values.tolist()) == ([1, 3], [0.5, 0.7])


@pytest.mark.parametrize(
    "odd",
    [
        '{"step": 5, "reward": 0.25, "reward": 0.5, "note": "twice"}',
        '{"step": 5, "reward": "0.5"}',
        '{"step": 5, "reward": 0.5, "late": 1.0, "tags": ["a"], "x": null}',
        '{"step": 5, "reward": 0.5, "bins": [1, 2]}',
        '{"step": 5, "reward": 0.5, "x": NaN, "y": -Infinity}',
        '{"step": 5, "reward": 0.5, "text": "\\": null"}',
    ],
)
def test_one_odd_row_changes_nothing_of_the_others(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "a.jsonl"
    rows = [odd if i == 5 else json.dumps({"step": i, "reward": i / 10}) for i in T]
    path.write_text("\n".join(rows))
    assert read_run(path).series("reward_mean")[1].tolist() == [i / 10 for i in T]


def test_the_user_is_told_what_is_wrong_with_a_column(tmp_path: Path) -> None:
    rows = [{"step": i, "reward": 0.1, "name": "x", "empty": float("nan")} for i in T]
    with pytest.raises(UserError, match='"name" holds text, not numbers'):
        of(tmp_path, rows, mapping={"reward_mean": "name"})
    with pytest.raises(UserError, match='"empty" holds no numbers'):
        of(tmp_path, rows, mapping={"reward_mean": "empty"})


@pytest.mark.parametrize("part", ["{'a': ", "step:1 - " + "a" * 50, "{", "a,", "│", "step:1 - a:1"])
def test_a_long_line_takes_no_more_than_linear_time(tmp_path: Path, part: str) -> None:
    path = tmp_path / "a.log"
    path.write_text("x\n" + part * (900_000 // len(part)) + "\n")
    began = time.process_time()
    with pytest.raises(UserError):
        read_run(path)
    assert time.process_time() - began < 5  # where a pattern is tried again at each character it is minutes
