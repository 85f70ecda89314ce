"""delphic plan: the pilot's numbers, what is refused, and rewards alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import toml
from hypothesis import given, settings
from hypothesis import strategies as st

from delphic.cli import main
from delphic.statistics.rewards import informative_shares


@pytest.fixture
def config(quick: dict[str, Any], reward_folder: Path) -> Path:
    quick["task"]["rewards"] = ["tiny_rewards:digits"]
    return toml(reward_folder / "plan.toml", quick)


def planned(capsys: pytest.CaptureFixture[str], config: Path, to: Path, *more: str) -> dict[str, Any]:
    assert main(["plan", str(config), "--to", str(to), "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_pilot_becomes_a_plan(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, config, tmp_path, "--prompts", "20", "--completions", "8")
    assert plan == json.loads((tmp_path / "plan.json").read_text())
    for name in ("c1", "c2", "c3"):
        c = plan["constants"][name]
        assert c["low"] <= c["value"] <= c["high"]
    by_estimator = {(row["estimator"], row["G"]): row["mse"] for row in plan["curve"]}
    assert by_estimator["loo", 8] > by_estimator["oracle", 8]
    assert plan["oracle_ratio"] > 1
    assert sum(plan["noise_split"].values()) == pytest.approx(1)
    shares = [row["share"] for row in plan["informative_share"]]
    assert shares == sorted(shares), "larger groups are silent less often"
    assert plan["recommendation"] is not None or plan["refused"]
    assert plan["cost"]["completion_seconds"] > 0
    thirds = plan["by_difficulty"]
    assert sum(row["allocation"]["completions"] for row in thirds) == 3 * 4, "three times the config's completions"
    assert thirds[0]["allocation"]["error"] <= 1.2, "whole numbers may cost a little"
    page = (tmp_path / "plan.html").read_text()
    assert "plotly" in page
    assert 'src="http' not in page, "the page needs no network"
    again = planned(capsys, config, tmp_path, "--prompts", "20", "--completions", "8")
    assert again["constants"] == plan["constants"], "the same seed, the same pilot"
    assert main(["plan", str(config), "--to", str(tmp_path), "--prompts", "20", "--completions", "8"]) == 0
    shown = capsys.readouterr().out
    assert "G*  best group size" in shown
    assert "scope:" in shown


def test_what_cannot_be_estimated_is_named_and_the_rest_given(
    quick: dict[str, Any], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = planned(capsys, config, tmp_path, "--prompts", "5", "--completions", "3")
    assert few["constants"] is None
    assert few["refused"][0]["needs"] == "4 completions a prompt, the pilot has 3"
    assert few["informative_share"]
    small = planned(capsys, config, tmp_path, "--prompts", "5", "--completions", "6")
    assert small["constants"] is not None
    assert small["recommendation"] is None
    assert "prompts in the pilot" in small["refused"][0]["needs"]
    quick["task"]["rewards"] = []  # exact_match: the random model is never right
    silent = planned(capsys, toml(tmp_path / "silent.toml", quick), tmp_path, "--prompts", "4", "--completions", "4")
    assert "all of the pilot's are silent" in silent["refused"][0]["needs"]
    assert silent["rewards"]["silent_share"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which config"),
        (["CONFIG", "--completions", "1"], "--completions 2 or more, got 64 and 1"),
        (["CONFIG", "--rewards-only", "x.parquet"], "takes a file and nothing else"),
        (["--rewards-only", "nowhere.parquet"], "nowhere.parquet: no such file"),
        (["CONFIG", "--train.offline", "x"], "--rewards-only on the recorded rollouts"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], message: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *[str(config) if a == "CONFIG" else a for a in arguments]]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_rewards_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    p = rng.beta(2, 2, size=400)
    rewards = (rng.random((400, 8)) < p[:, None]).astype(float)
    rows = [{"uid": f"p{b}", "score": r, "text": "x"} for b, row in enumerate(rewards) for r in row]
    file = tmp_path / "dump.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["plan", "--rewards-only", str(file), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    # Beta(2, 2): Var p = 1/20, E p(1 − p) = 1/5; within five standard errors of 400 prompts
    assert report["rewards"]["variance_between"] == pytest.approx(0.05, abs=0.015)
    assert report["rewards"]["variance_within"] == pytest.approx(0.2, abs=0.02)
    assert report["rewards"]["silent_share"] == pytest.approx(report["rewards"]["silent_share_expected"], abs=0.05)
    assert report["refused"][-1]["needs"].startswith("the scores of the completions")
    steps = tmp_path / "steps.jsonl"  # the same prompt in two steps: two groups
    rows = [{"step": s, "prompt": "p", "reward": float(r)} for s, r in ((1, 0), (1, 0), (2, 1), (2, 1))]
    steps.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["plan", "--rewards-only", str(steps), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rewards"]["silent_share"] == 1
    bad = tmp_path / "bad.csv"
    bad.write_text("uid,rewrd\na,1\n")
    assert main(["plan", "--rewards-only", str(bad)]) == 2
    assert 'did you mean "rewrd"' in capsys.readouterr().err


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=6, max_size=6), min_size=1, max_size=5))
def test_informative_shares_count_every_subset(rows: list[list[float]]) -> None:
    from itertools import combinations

    for entry in informative_shares(np.array(rows)):
        size = entry["G"]
        counted = [len(set(subset)) > 1 for row in rows for subset in combinations(row, size)]
        assert entry["share"] == pytest.approx(np.mean(counted), abs=1e-9)
