"""Well-known failures of other trainers that have no test of their own elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Silent

from delphic.config import make_config
from delphic.policy.load import load_policy
from delphic.rollouts import Rollouts
from delphic.training.loop import train

OPPOSED = """
def longer(completions, **kwargs): return [len(c) / 4 for c in completions]
def shorter(completions, **kwargs): return [1 - len(c) / 4 for c in completions]
"""


def test_pitfall_07_rewards_that_cancel_are_seen_one_by_one(quick: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "opposed_rewards.py").write_text(OPPOSED)
    quick["task"]["rewards"] = ["opposed_rewards:longer", "opposed_rewards:shorter"]
    rows = train(make_config(quick, "test"), tmp_path / "run", tmp_path, False, Silent()).rows[1:]
    for row in rows:
        assert row["silent_share"] == 1
        assert row["gradient_norm"] == 0
        recorded, _ = Rollouts.read(tmp_path / "run" / "rollouts" / f"step_{row['step']:06d}.parquet")
        longer, shorter = recorded.components["longer"], recorded.components["shorter"]
        assert longer.std() > 0
        assert np.corrcoef(longer, shorter)[0, 1] == pytest.approx(-1)
        assert row["reward/longer"] + row["reward/shorter"] == pytest.approx(row["reward_mean"])


def test_pitfall_18_a_temperature_leaves_the_ratio_at_1(
    quick: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    quick["task"]["rewards"] = ["tiny_rewards:digits"]
    quick["sampling"]["temperature"] = 0.6
    rows = train(make_config(quick, "test"), tmp_path / "run", reward_folder, False, Silent()).rows[1:]
    assert [row["ratio_max_learned"] for row in rows] == pytest.approx([1.0] * 3, abs=1e-5)


def test_pitfall_21_no_rollout_is_dropped_for_its_age(
    lagged: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    lagged["sampling"]["dynamic"] = False
    rows = train(make_config(lagged, "test"), tmp_path / "run", reward_folder, False, Silent()).rows[1:]
    for row in rows:
        recorded, _ = Rollouts.read(tmp_path / "run" / "rollouts" / f"step_{row['step']:06d}.parquet")
        assert len(recorded) == 16
        assert row["left_out_share"] == 0
        assert row["length_mean"] == recorded.lengths.mean()
    assert max(row["lag_max"] for row in rows) > 8


def test_pitfall_27_sixteen_bit_weights_are_trained_in_float32() -> None:
    """The built-in model is stored in float16; on a CPU nothing is computed in it."""
    policy = load_policy("builtin")
    assert {p.dtype for p in policy.parameters().values()} == {torch.float32}
    assert policy.hidden(torch.tensor([[3, 4, 5]])).dtype == torch.float32
