"""Two processes train one run: the figures are those of one process, to rounding, and only the first writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed
from conftest import Silent, toml

from delphic.config import make_config
from delphic.training.loop import train
from delphic.training.metrics import Meter
from delphic.training.team import Team

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="torch without gloo"
)


def launch(config: Path, output: Path, processes: int, folder: Path) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    train = ["-m", "delphic", "train", str(config), "--output", str(output)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    return subprocess.run([*start, *train], capture_output=True, text=True, timeout=240, env=environment)


def test_two_processes_train_as_one(lagged: dict[str, Any], reward_folder: Path, tmp_path: Path) -> None:
    lagged["objective"] = {"preset": "grpo", "kl": "k3", "kl_coefficient": 0.05}
    lagged["train"] |= {"steps": 4, "warmup_steps": 1}
    alone = train(make_config(lagged, "test"), tmp_path / "alone", reward_folder, False, Silent())
    config = toml(reward_folder / "team.toml", lagged)
    done = launch(config, tmp_path / "pair", 2, reward_folder)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count("metrics:") == 1, "only the first process speaks"
    lines = (tmp_path / "pair" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == len(alone.rows) == 5
    for one, line in zip(alone.rows, lines, strict=True):
        two = json.loads(line)
        assert one.keys() == two.keys()
        for name, value in one.items():
            assert two[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_members_share_everything_once_and_in_order() -> None:
    team = Team(rank=1, size=3)
    assert team.share(8).tolist() == [1, 4, 7]
    assert sorted(np.concatenate([Team(r, 3).share(8) for r in range(3)]).tolist()) == list(range(8))
    alone = Team()
    assert alone.first
    assert alone.gather("x") == ["x"]
    assert alone.spread([10, 20, 30], lambda rows: [int(r) for r in rows]) == [0, 1, 2]
    meter, own = Meter(), Meter()
    own.add("reward_mean", 3.0, 2.0)
    own.add("ratio_max_learned", 5.0)
    alone.add_meter(own, meter)
    assert meter.values() == own.values()
