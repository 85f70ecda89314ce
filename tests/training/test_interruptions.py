"""A run that ends early, for whatever reason, says so, loses nothing that it claims to have saved, and goes on."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Silent, forkserver, toml
from safetensors import SafetensorError

from delphic.cli import main
from delphic.config import make_config
from delphic.errors import UserError
from delphic.rollouts import Rollouts
from delphic.training.learner import LocalLearner
from delphic.training.loop import Loop, train
from delphic.training.run_folder import RunFolder

STEPS = 5


@pytest.fixture
def short(lagged: dict[str, Any]) -> dict[str, Any]:
    lagged["train"]["steps"] = STEPS
    lagged["checkpoint"]["every"] = 100  # nothing is saved before the end, unless something asks for it
    lagged["evaluation"] |= {"problems": 0}
    return lagged


def bits(run: Path) -> dict[str, bytes]:
    last = run / "checkpoints" / f"step_{STEPS:06d}"
    files = [run / "metrics.jsonl", last / "model.safetensors", last / "optimizer.safetensors", last / "state.json"]
    return {file.name: file.read_bytes() for file in files}


def uninterrupted(content: dict[str, Any], folder: Path, run: Path) -> dict[str, bytes]:
    train(make_config(content, "test"), run, folder, resume=False, display=Silent())
    return bits(run)


# -- Ctrl-C --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["early", "late"])
def test_an_interruption_anywhere_in_a_step_is_saved(
    moment: str, short: dict[str, Any], reward_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C before a step learns, or after it decided whether to save."""
    check, append = Loop._check_version, RunFolder.append

    def early(self: Loop, number: int, rollouts: Rollouts) -> None:
        check(self, number, rollouts)
        if number == 2:
            os.kill(os.getpid(), signal.SIGINT)

    def late(self: RunFolder, name: str, row: dict[str, Any]) -> None:
        append(self, name, row)
        if name == "timing.jsonl" and row["step"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    config = make_config(short, "test")
    with monkeypatch.context() as patch:
        patch.setattr(*((Loop, "_check_version", early) if moment == "early" else (RunFolder, "append", late)))
        outcome = train(config, tmp_path / "run", reward_folder, resume=False, display=Silent())
    assert (outcome.interrupted, outcome.finished) == (True, 2)
    assert [p.name for p in (tmp_path / "run" / "checkpoints").glob("step_*")] == ["step_000002"]
    train(config, tmp_path / "run", reward_folder, resume=True, display=Silent())
    assert bits(tmp_path / "run") == uninterrupted(short, reward_folder, tmp_path / "whole")


def _command(arguments: list[str], error: str) -> None:
    descriptor = os.open(error, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 2)
    os._exit(main(arguments))


def test_ctrl_c_at_the_command_line_then_resume_gives_the_same_bits(
    short: dict[str, Any], reward_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short["output"] = str(tmp_path / "run")
    short["sampling"]["prompts"] = 48  # slow enough to be hit while it runs
    path = toml(reward_folder / f"{tmp_path.name}.toml", short)
    child = forkserver().Process(target=_command, args=(["train", str(path)], str(tmp_path / "error.txt")))
    child.start()
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not metrics.exists() or not metrics.read_text():
        assert child.is_alive()
        time.sleep(0.002)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGINT)
    child.join(60)
    assert child.exitcode == 130
    done = len(metrics.read_text().splitlines())
    assert done < STEPS
    said = (tmp_path / "error.txt").read_text()
    assert f"stopped after step {done} and saved; go on with: delphic train {path} --resume" in said
    assert main(["train", str(path), "--resume"]) == 0
    assert f"resumed after step {done}" in capsys.readouterr().err
    assert bits(tmp_path / "run") == uninterrupted(short, reward_folder, tmp_path / "whole")


# -- a full disk, at every place that writes -------------------------------------------------------------------------

FULL = OSError(28, "No space left on device")


def half_a_line(original: Callable[..., None]) -> Callable[..., None]:
    def append(self: RunFolder, name: str, row: dict[str, Any]) -> None:
        if row["step"] == 3 and name == "metrics.jsonl":
            with (self.path / name).open("a") as file:
                file.write(json.dumps(row)[:20])
            raise FULL
        original(self, name, row)

    return append


def half_a_checkpoint(original: Callable[..., None]) -> Callable[..., None]:
    def save_pretrained(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        # what safetensors raises on a full disk is no OSError
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    def save(self: LocalLearner, folder: Path) -> None:
        self.policy.model.save_pretrained = save_pretrained
        original(self, folder)

    return save


def no_rollouts(_original: Callable[..., None]) -> Callable[..., None]:
    def write(self: Rollouts, path: Path, meta: Any = None) -> None:
        path.with_name(f".{path.name}.part").write_bytes(b"half")
        raise FULL

    return write


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [(RunFolder, "append", half_a_line), (LocalLearner, "save", half_a_checkpoint), (Rollouts, "write", no_rollouts)],
    ids=["a line of metrics", "a checkpoint", "the first rollouts"],
)
def test_a_full_disk_is_one_sentence_and_costs_no_bit(
    owner: type,
    name: str,
    broken: Callable[..., Any],
    short: dict[str, Any],
    reward_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    short["output"] = str(tmp_path / "run")
    path = toml(reward_folder / f"{tmp_path.name}.toml", short)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, broken(getattr(owner, name)))
        assert main(["train", str(path)]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith(f"delphic: cannot write to {tmp_path / 'run'}: the disk is full. Make room, then: delphic")
    assert main(["train", str(path), "--resume"]) == 0
    assert bits(tmp_path / "run") == uninterrupted(short, reward_folder, tmp_path / "whole")
    assert not list((tmp_path / "run" / "checkpoints").glob(".*")), "what was half written is gone"


def test_other_errors_of_the_disk_do_not_ask_for_room(
    short: dict[str, Any],
    reward_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def failing(*_: object) -> None:
        raise OSError(5, "Input/output error")

    short["output"] = str(tmp_path / "run")
    path = toml(reward_folder / f"{tmp_path.name}.toml", short)
    monkeypatch.setattr(Rollouts, "write", failing)
    assert main(["train", str(path)]) == 1
    said = capsys.readouterr().err
    assert "Input/output error. Once that is put right: delphic train" in said
    assert "Make room" not in said


def test_a_folder_that_cannot_be_made_is_the_users_to_change(
    short: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"output: .* cannot be made or written to \(Not a directory\)"):
        train(make_config(short, "test"), tmp_path / "file" / "run", reward_folder, resume=False, display=Silent())


# -- dying before there is anything ----------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [[], [".lock"], [".lock", ".config.json.part"]], ids=str)
@pytest.mark.parametrize("resume", [False, True])
def test_a_death_before_the_config_was_written_leaves_a_usable_folder(
    left: list[str], resume: bool, short: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in left:
        (run / name).write_text("{")
    short["train"]["steps"] = 1
    assert train(make_config(short, "test"), run, reward_folder, resume, Silent()).finished == 1


def test_two_processes_cannot_write_to_one_folder(short: dict[str, Any], reward_folder: Path, tmp_path: Path) -> None:
    config = make_config(short, "test")
    train(config, tmp_path / "run", reward_folder, resume=False, display=Silent(stop_after=1))
    holder = RunFolder(tmp_path / "run", config, resume=True)
    with pytest.raises(UserError, match="another process is writing"):
        train(config, tmp_path / "run", reward_folder, resume=True, display=Silent())
    holder.close()
    assert train(config, tmp_path / "run", reward_folder, resume=True, display=Silent()).finished == STEPS


def test_a_checkpoint_of_another_config_is_refused_at_the_command_line(
    short: dict[str, Any], reward_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short["output"] = str(tmp_path / "run")
    path = toml(reward_folder / f"{tmp_path.name}.toml", short)
    assert main(["train", str(path)]) == 0
    state = tmp_path / "run" / "checkpoints" / f"step_{STEPS:06d}" / "state.json"
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    state.write_text(json.dumps({**json.loads(state.read_text()), "fingerprint": "0" * 16}))
    capsys.readouterr()
    assert main(["train", str(path), "--resume"]) == 2
    assert "was written by a run with another configuration" in capsys.readouterr().err
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


# -- offline ---------------------------------------------------------------------------------------------------------


def test_an_offline_run_resumes_to_the_same_bits(short: dict[str, Any], reward_folder: Path, tmp_path: Path) -> None:
    train(make_config(short, "test"), tmp_path / "source", reward_folder, resume=False, display=Silent())
    short["sampling"]["dynamic"] = False
    short["train"] |= {"offline": str(tmp_path / "source" / "rollouts"), "sync_interval": 1, "sync_offset": 0}
    config = make_config(short, "test")
    train(config, tmp_path / "run", reward_folder, resume=False, display=Silent(stop_after=2))
    train(config, tmp_path / "run", reward_folder, resume=True, display=Silent())
    assert bits(tmp_path / "run") == uninterrupted(short, reward_folder, tmp_path / "whole")
