"""Pitfall 28: a run stops at the first value that is not a number, and keeps what explains it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Silent

from delphic.cli import main
from delphic.config import make_config
from delphic.rollouts import Rollouts
from delphic.training.learner import LocalLearner, NonFiniteError
from delphic.training.loop import train


@pytest.fixture
def plain(lagged: dict[str, Any]) -> dict[str, Any]:
    lagged["train"] = {"steps": 5, "learning_rate": 1e-3}
    lagged["sampling"]["dynamic"] = False
    lagged["checkpoint"] = {"every": 1, "keep": 9}
    return lagged


def poison(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Weights that are NaN once `step` was learned, as an overflow in the optimiser would leave them."""
    learn = LocalLearner.learn

    def poisoned(self: LocalLearner, rollouts: Rollouts, number: int, *rest: Any) -> None:
        learn(self, rollouts, number, *rest)
        if number == step:
            with torch.no_grad():
                next(iter(self.policy.parameters().values())).fill_(float("nan"))

    monkeypatch.setattr(LocalLearner, "learn", poisoned)


def test_weights_that_are_not_numbers_halt_the_next_step_although_nothing_would_be_learned(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every reward is 0, so no gradient would ever tell: only the sampler's own log-probs do."""
    plain["task"]["rewards"] = []
    plain["task"] |= {"low": 50, "high": 90}
    poison(monkeypatch, 2)
    with pytest.raises(NonFiniteError, match="the sampler's log-probs are not finite"):
        train(make_config(plain, "test"), tmp_path / "run", tmp_path, resume=False, display=Silent())
    halted, _ = Rollouts.read(tmp_path / "run" / "halted" / "step_000003.parquet")
    assert len(halted) == 1
    assert np.isnan(halted.behaviour_logp[0]).any()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]


def test_the_command_line_names_the_halt_and_what_is_left(
    plain: dict[str, Any],
    reward_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad: list[int] = []
    loss = LocalLearner._loss

    def infinite(self: LocalLearner, rollouts: Rollouts, rows: np.ndarray, *rest: Any) -> torch.Tensor:
        value = loss(self, rollouts, rows, *rest)
        return value * float("nan") if self.version == 2 and bad[0] in rows else value

    original = LocalLearner.learn

    def learn(self: LocalLearner, rollouts: Rollouts, number: int, *rest: Any) -> None:
        # the row that the loss will be NaN for: one that has an advantage
        spread = [
            i for i in range(len(rollouts)) if rollouts.reward[i] != rollouts.reward[i // 4 * 4 : i // 4 * 4 + 4].mean()
        ]
        bad[:] = [spread[-1]]
        original(self, rollouts, number, *rest)

    monkeypatch.setattr(LocalLearner, "_loss", infinite)
    monkeypatch.setattr(LocalLearner, "learn", learn)
    path = reward_folder / f"{tmp_path.name}.toml"
    lines = [f"objective = {json.dumps(plain['objective'])}", f"output = {json.dumps(str(tmp_path / 'run'))}"]
    for section, values in plain.items():
        if isinstance(values, dict):
            lines += [f"[{section}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items())]
    path.write_text("\n".join(lines))
    assert main(["train", str(path)]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("delphic: halted: the loss is not finite. The rollout is in")
    assert "the last checkpoint is untouched" in said
    halted, _ = Rollouts.read(tmp_path / "run" / "halted" / "step_000003.parquet")
    learned, _ = Rollouts.read(tmp_path / "run" / "rollouts" / "step_000003.parquet")
    assert halted.row.tolist() == [learned.row[bad[0]]], "the very rollout"
    assert np.array_equal(halted.tokens[0], learned.tokens[bad[0]])
    assert [json.loads(x)["step"] for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()] == [0, 1, 2]
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").glob("step_*"))[-1] == "step_000002"
    monkeypatch.undo()
    assert main(["train", str(path), "--resume"]) == 0, "the checkpoint before the halt is good"
