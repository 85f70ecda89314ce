"""A run that was interrupted anywhere and resumed is the uninterrupted run, bit for bit."""

from __future__ import annotations

import json
import multiprocessing.process
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Silent, forkserver

from delphic.config import RunConfig, make_config
from delphic.errors import UserError
from delphic.rollouts import Rollouts
from delphic.training.loop import train


def bits(run: Path, steps: int = 12) -> dict[str, bytes]:
    """Everything that must be the same: the metrics file, final weights and optimiser."""
    last = run / "checkpoints" / f"step_{steps:06d}"
    files = [run / "metrics.jsonl", last / "model.safetensors", last / "optimizer.safetensors", last / "state.json"]
    return {file.name: file.read_bytes() for file in files}


def finish(config: RunConfig, run: Path, folder: Path) -> dict[str, bytes]:
    train(config, run, folder, resume=True, display=Silent())
    return bits(run, config.train.steps)


@pytest.fixture
def whole(lagged: dict[str, Any], reward_folder: Path, tmp_path: Path) -> tuple[RunConfig, dict[str, bytes]]:
    config = make_config(lagged, "test")
    train(config, tmp_path / "whole", reward_folder, resume=False, display=Silent())
    return config, bits(tmp_path / "whole")


def test_stopping_after_any_step_and_resuming_changes_no_bit(
    whole: tuple[RunConfig, dict[str, bytes]], reward_folder: Path, tmp_path: Path
) -> None:
    config, expected = whole
    for k in range(1, 12):
        run = tmp_path / f"stopped_{k}"
        outcome = train(config, run, reward_folder, resume=False, display=Silent(stop_after=k))
        assert outcome.interrupted
        assert outcome.finished in (k, k + 1)
        assert finish(config, run, reward_folder) == expected, f"stopped after step {k}"


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "a2c"},
        {"objective": {"preset": "grpo", "kl_coefficient": 0.1}},
        {"objective": "pairwise"},
        {"objective": "red_drop"},
        {"objective": "oracle", "oracle_samples": 3},
        {"optimizer": "sgd", "momentum": 0.9},
    ],
    ids=lambda c: "-".join(map(str, c.values())),
)
def test_every_kind_of_state_survives_a_stop(
    changes: dict[str, Any], lagged: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    lagged["train"]["steps"] = 6
    lagged["sampling"]["dynamic"] = False
    lagged["objective"] = changes.get("objective", "grpo")
    lagged["sampling"]["oracle_samples"] = changes.get("oracle_samples", 0)
    lagged["train"] |= {k: v for k, v in changes.items() if k in ("optimizer", "momentum")}
    config = make_config(lagged, "test")
    train(config, tmp_path / "whole", reward_folder, resume=False, display=Silent())
    train(config, tmp_path / "run", reward_folder, resume=False, display=Silent(stop_after=3))
    assert finish(config, tmp_path / "run", reward_folder) == bits(tmp_path / "whole", 6)


def _child(config: RunConfig, run: str, folder: str) -> None:
    train(config, Path(run), Path(folder), resume=True, display=Silent())


def test_kill_9_at_random_moments_always_resumes_to_the_same_bits(
    lagged: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    lagged["checkpoint"]["every"] = 3  # so that some steps since the checkpoint must be learned again
    lagged["evaluation"] |= {"problems": 2, "samples": 1}
    lagged["sampling"] |= {"prompts": 3, "completions": 3}
    config = make_config(lagged, "test")
    context = forkserver()

    def start(run: Path) -> multiprocessing.process.BaseProcess:
        child = context.Process(target=_child, args=(config, str(run), str(reward_folder)))
        child.start()
        return child

    def rows(run: Path) -> int:
        metrics = run / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    whole = start(tmp_path / "whole")
    whole.join()
    assert whole.exitcode == 0
    expected = bits(tmp_path / "whole")

    # a random step by the metrics file, and a random moment after it: spread over the run however busy the machine is
    moments, killed, places = random.Random(0), 0, set()
    for number in range(40):
        if killed >= 20:
            break
        run = tmp_path / f"killed_{number}"
        for _ in range(1 + number % 3):  # some runs are killed twice, some three times
            target = moments.randrange(0, 13)
            child = start(run)
            while child.is_alive() and rows(run) < target:
                time.sleep(0.002)
            child.join(moments.uniform(0, 0.1))
            child.kill()
            child.join()
            killed += child.exitcode == -signal.SIGKILL
            places.add(rows(run))
        assert finish(config, run, reward_folder) == expected
    assert killed >= 20
    assert len(places) >= 5, "the kills came at different steps"


def test_a_half_written_line_and_left_over_parts_are_survived(
    whole: tuple[RunConfig, dict[str, bytes]], reward_folder: Path, tmp_path: Path
) -> None:
    config, expected = whole
    run = tmp_path / "run"
    train(config, run, reward_folder, resume=False, display=Silent(stop_after=5))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "rewa')
    (run / "checkpoints" / ".step_000007.part").mkdir()
    (run / "checkpoints" / ".best.json.part").write_bytes(b"half")
    (run / "rollouts" / ".step_000009.parquet.part").write_bytes(b"half")
    assert finish(config, run, reward_folder) == expected


@pytest.mark.parametrize("moment", [1, 2, 5, 9])
def test_a_full_disk_leaves_a_run_that_resumes(
    moment: int,
    whole: tuple[RunConfig, dict[str, bytes]],
    reward_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, expected = whole
    run, writes = tmp_path / "run", 0
    write = Rollouts.write

    def full(self: Rollouts, path: Path, meta: Any = None) -> None:
        nonlocal writes
        writes += 1
        if writes == moment:
            path.with_name(f".{path.name}.part").write_bytes(b"half a file")
            raise OSError(28, "No space left on device")
        write(self, path, meta)

    with monkeypatch.context() as patch:
        patch.setattr(Rollouts, "write", full)
        with pytest.raises(OSError, match="No space"):
            train(config, run, reward_folder, resume=False, display=Silent())
    assert finish(config, run, reward_folder) == expected


def test_another_config_is_refused_by_the_key_that_differs(
    whole: tuple[RunConfig, dict[str, bytes]], lagged: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    before = bits(tmp_path / "whole")
    lagged["train"]["learning_rate"] = 5e-4
    with pytest.raises(UserError, match=r"train\.learning_rate = 0\.001, the config now says 0\.0005"):
        train(make_config(lagged, "test"), tmp_path / "whole", reward_folder, resume=True, display=Silent())
    with pytest.raises(UserError, match="already holds a run; add --resume"):
        train(whole[0], tmp_path / "whole", reward_folder, resume=False, display=Silent())
    state = tmp_path / "whole" / "checkpoints" / "step_000012" / "state.json"
    content = json.loads(state.read_text())
    state.write_text(json.dumps({**content, "fingerprint": "0" * 16}))
    with pytest.raises(UserError, match="another configuration"):
        train(whole[0], tmp_path / "whole", reward_folder, resume=True, display=Silent())
    state.write_bytes(before["state.json"])
    assert bits(tmp_path / "whole") == before
