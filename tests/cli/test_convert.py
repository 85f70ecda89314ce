"""Any model as a plain folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from delphic.cli import main
from delphic.config import ModelConfig, make_config
from delphic.policy.load import load_policy
from delphic.training.loop import train


def test_a_model_becomes_a_plain_folder(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(tiny_model), str(tmp_path / "plain")]) == 0
    assert "million parameters, float32" in capsys.readouterr().out
    assert load_policy(str(tmp_path / "plain")).fingerprint() == load_policy(str(tiny_model)).fingerprint()
    assert main(["convert", str(tiny_model), str(tmp_path / "plain")]) == 2
    assert "is already there" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "none"), str(tmp_path / "other")]) == 2
    assert "there is nothing at" in capsys.readouterr().err


def test_a_runs_adapters_are_merged(quick: dict[str, Any], tmp_path: Path, reward_folder: Path) -> None:
    pytest.importorskip("peft")
    from conftest import Silent

    quick["model"]["lora_rank"] = 2
    quick["task"]["rewards"] = ["tiny_rewards:digits"]
    quick["checkpoint"]["every"] = 1
    train(make_config(quick, "test"), tmp_path / "run", reward_folder, False, Silent())
    assert main(["convert", str(tmp_path / "run"), str(tmp_path / "plain"), "--checkpoint", "last"]) == 0
    saved = tmp_path / "run" / "checkpoints" / "step_000003"
    merged, plain = load_policy(str(saved)), load_policy(str(tmp_path / "plain"))
    assert merged.fingerprint() == plain.fingerprint() != load_policy(quick["model"]["path"]).fingerprint()
    trained = load_policy(quick["model"]["path"], ModelConfig(lora_rank=2), saved)
    assert len(trained.parameters()) > 0


def test_a_place_that_cannot_be_written_is_one_sentence(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["convert", str(tiny_model), str(tmp_path / "file" / "plain")]) == 2
    assert "convert: cannot write to" in capsys.readouterr().err
