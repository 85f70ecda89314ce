"""What a user sees: help, JSON, exit statuses, and one clear sentence for every mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import toml

from delphic.cli import main
from delphic.errors import UserError
from delphic.rollouts import Rollouts


@pytest.fixture
def config(lagged: dict[str, Any], reward_folder: Path, tmp_path: Path) -> Path:
    lagged["train"]["steps"] = 4
    lagged["output"] = str(tmp_path / "run")
    return toml(reward_folder / f"{tmp_path.name}.toml", lagged)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail as a user's mistake; its sentence."""
    assert main(arguments) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1, error
    return error[0]


def test_help_is_there_for_everyone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    assert "delphic train" in text
    assert "train.sync_interval = 1" in text


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = "import sys, delphic.cli; delphic.cli.main(['--help']); print(sorted({'torch', 'pydantic', 'numpy'} & set(sys.modules)))"
    began = time.monotonic()
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip().endswith("[]")
    assert time.monotonic() - began < 1.5  # under 0.3 s on a quiet machine


def test_the_objective_command_prints_json_without_torch() -> None:
    code = (
        "import sys, delphic.cli; delphic.cli.main(['objective', 'grpo', '--rewards', '1,0,0,0;1,nan,3', '--json']); "
        "assert 'torch' not in sys.modules"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    result = json.loads(out)
    assert result["advantages"][0] == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert result["dropped"] == [[], [1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tran"], 'there is no command "tran"; did you mean "train"'),
        (["train"], "which config"),
        (["train", "none.toml"], "none.toml: there is no such config file"),
        (["objective"], "which one"),
        (["objective", "gpro"], 'there is no objective "gpro"; did you mean "grpo"'),
        (["objective", "grpo", "--rewards", "1,x"], "x"),
        (["objective", "grpo", "--rewards", "1,0", "--ratios", "1"], "--ratios"),
        (["objective", "a2c", "--rewards", "1,0"], "--values"),
        (["objective", "grpo", "--set", "clip_lo=1"], 'objective.clip_lo: no such choice; did you mean "clip_low"'),
        (["objective", "grpo", "--set", "clip_low=-1"], "objective.clip_low"),
        (["objective", "grpo", "--set", "kl=k1"], "k1 in the loss has zero expected gradient"),
    ],
)
def test_a_mistyped_command_says_what_was_meant(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, *arguments)


ON_POLICY = ["--sync-interval", "1", "--sync-offset", "0"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--train.stps", "3"], '--train.stps: no such key; did you mean "train.steps"'),
        (["--every", "3"], "--every could be any of"),
        (["--steps"], "--steps needs a value"),
        (["--steps", "many"], "train.steps"),
        (["--objective", "grpoo"], 'there is no objective "grpoo"; did you mean "grpo"'),
        (["--objective.clip_low", "-0.1"], "objective.clip_low"),
        (["--completions", "1"], "leaves the group-relative objective"),
        (["--top-p", "0.9"], "cuts the support"),
        (["--rewards", '["tiny_rewards:digit"]'], 'no function "digit"; did you mean "digits"'),
        (["--rewards", '["tinyrewards:digits"]'], 'no module "tinyrewards"; did you mean "tiny_rewards"'),
        (["--model.path", "nowhere"], 'there is nothing at "nowhere"'),
        (["--model.path", "."], "cannot be loaded as a causal language model"),
        (["--offline", "nowhere"], "leave out sync_interval"),
        (["--offline", "nowhere", *ON_POLICY], "sampling.dynamic refills silent groups with fresh samples"),
        (["--offline", "nowhere", *ON_POLICY, "--dynamic", "false"], "there are no recorded rollouts"),
        (["--task.name", "fil"], "task.name"),
        (["--task.name", "file"], 'name = "file" needs path'),
        (["--objective", "oracle"], "needs V(x)"),
        (["--learning-rate", "inf"], "train.learning_rate: input should be a finite number"),
        (["--temperature", "nan"], "sampling.temperature: input should be"),
        (["--objective.clip_high", "inf"], "objective.clip_high: Input should be a finite number"),
        (["--reward-weights", "[nan]"], "task.reward_weights.0: input should be a finite number"),
        (["--seed", str(2**48)], "seed: input should be less than"),
        (["steps", "3"], 'unexpected "steps"'),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    options: list[str], message: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, "train", str(config), *options)
    assert not (tmp_path / "run").exists()


def test_unknown_keys_in_a_file_are_refused_by_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[sampling]\nprompt = 3\n")
    assert refused(capsys, "train", str(path)) == (
        f'delphic: {path}: sampling.prompt: no such key; did you mean "sampling.prompts"?'
    )
    path.write_text("seed = \n")
    assert "not valid TOML" in refused(capsys, "train", str(path))
    path.write_text("train = 3\n")
    assert "train must be a table" in refused(capsys, "train", str(path))


def test_a_run_folder_is_never_overwritten(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(config), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["finished"] is True
    assert summary["steps"] == 4
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*") if p.name != ".lock"}
    assert "already holds a run; add --resume" in refused(capsys, "train", str(config))
    assert "train.learning_rate = 0.001" in refused(capsys, "train", str(config), "--resume", "--learning-rate", "1")
    other = tmp_path / "papers"
    other.mkdir()
    (other / "thesis.txt").write_text("…")
    assert "not empty and holds no delphic run" in refused(capsys, "train", str(config), "--output", str(other))
    assert "is a file" in refused(capsys, "train", str(config), "--output", str(other / "thesis.txt"))
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*") if p.name != ".lock"} == before


def test_a_reward_function_that_raises_stops_the_run_with_its_name(
    config: Path, reward_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (reward_folder / "late_rewards.py").write_text("def f(completions, **k): raise ValueError('no')")
    assert main(["train", str(config), "--rewards", '["late_rewards:f"]']) == 2
    assert 'delphic: reward function "f" raised ValueError: no' in capsys.readouterr().err.splitlines()


def test_a_full_disk_is_said_and_the_way_on_too(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Rollouts, "write", full)
    assert main(["train", str(config)]) == 1
    error = capsys.readouterr().err
    assert "the disk is full. Make room, then: delphic train" in error
    assert "--resume" in error


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_go_on(config: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "delphic.cli", "train", str(config), "--steps", "500"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"})
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 3:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "and saved; go on with: delphic train" in error
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    saved = sorted((tmp_path / "run" / "checkpoints").glob("step_*"))
    assert saved[-1].name == f"step_{rows[-1]['step']:06d}"


def test_user_errors_name_the_list_when_nothing_is_near() -> None:
    from delphic.errors import nearest

    assert nearest("zzz", ["a", "b"]) == "; valid: a, b"
    assert issubclass(UserError, Exception)
