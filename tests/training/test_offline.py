"""Learning from recorded rollouts, whoever recorded them: what cannot be learned from is refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Silent

from delphic.config import make_config
from delphic.errors import UserError
from delphic.rollouts import Rollouts
from delphic.training.loop import Outcome, train


@pytest.fixture
def offline(lagged: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    lagged["train"] = {"steps": 3, "learning_rate": 1e-3, "offline": str(tmp_path / "data")}
    lagged["sampling"]["dynamic"] = False
    lagged["evaluation"]["problems"] = 0
    return lagged


def record(folder: Path, name: str, **changes: Any) -> None:
    """A foreign file of 3 groups × 3 completions."""
    rng, n = np.random.default_rng(0), 9
    tokens = [rng.integers(3, 13, k).astype(np.int32) for k in rng.integers(1, 5, n)]
    columns: dict[str, Any] = {
        "group": np.repeat([7, 7_000_000_000, -3], 3),
        "prompt_tokens": [np.array([4, 13, 5, 18], dtype=np.int32)] * n,
        "tokens": tokens,
        "loss_mask": [np.ones(len(t), dtype=bool) for t in tokens],
        "behaviour_logp": [np.full(len(t), -2.5, dtype=np.float32) for t in tokens],
        "entropy": [np.zeros(0, dtype=np.float32)] * n,
        "reward": rng.random(n),
        "version": np.arange(n),
        "truncated": np.zeros(n, dtype=bool),
        "problem": np.full(n, -1),
        "row": np.arange(n),
        "value": np.full(n, np.nan),
        "prompt": [""] * n,
        "completion": [""] * n,
        "components": {},
    }
    folder.mkdir(exist_ok=True)
    Rollouts(**{**columns, **changes}).write(folder / name)


def learn(content: dict[str, Any], tmp_path: Path) -> Outcome:
    return train(make_config(content, "test"), tmp_path / "run", tmp_path, resume=False, display=Silent())


def test_files_with_other_reward_functions_join(offline: dict[str, Any], tmp_path: Path) -> None:
    record(tmp_path / "data", "a.parquet", components={"exact": np.ones(9)})
    record(tmp_path / "data", "b.parquet", components={"style": np.zeros(9)})
    record(tmp_path / "data", "c.parquet")
    rows = learn(offline, tmp_path).rows
    assert rows[-1]["gradient_norm"] > 0
    assert {name for row in rows for name in row if name.startswith("reward/")} == {"reward/exact", "reward/style"}
    assert all(row.get("reward/exact", 1.0) == 1.0 for row in rows), "over the completions that have it"


def test_the_lag_counts_updates_since_the_recorded_policy(offline: dict[str, Any], tmp_path: Path) -> None:
    record(tmp_path / "data", "a.parquet")
    offline["train"] |= {"minibatches": 2, "optimizer": "sgd"}
    assert [row["lag_max"] for row in learn(offline, tmp_path).rows] == [1, 3, 5]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"behaviour_logp": [np.zeros(0, dtype=np.float32)] * 9}, "needs behaviour_logp"),
        ({"prompt_tokens": [np.zeros(0, dtype=np.int32)] * 9}, "a prompt at .* has no tokens"),
        ({"prompt_tokens": [np.array([4, 21], dtype=np.int32)] * 9}, "token 21 at .* is none of the model's 21"),
        ({"group": np.arange(9)}, "every group .* has one completion"),
    ],
    ids=["no log-probs", "empty prompt", "foreign tokens", "lone completions"],
)
def test_data_that_cannot_be_learned_from_are_refused_before_anything_is_written(
    changes: dict[str, Any], message: str, offline: dict[str, Any], tmp_path: Path
) -> None:
    record(tmp_path / "data", "a.parquet", **changes)
    with pytest.raises(UserError, match=message):
        learn(offline, tmp_path)
    assert not (tmp_path / "run").exists()


def test_rollouts_without_log_probs_serve_objectives_without_ratios(offline: dict[str, Any], tmp_path: Path) -> None:
    record(tmp_path / "data", "a.parquet", behaviour_logp=[np.zeros(0, dtype=np.float32)] * 9)
    offline["objective"] = "rloo"
    rows = learn(offline, tmp_path).rows
    assert rows[-1]["gradient_norm"] > 0
    assert "ratio_max_learned" not in rows[-1], "what is not known is not reported"


def test_an_empty_file_is_refused(offline: dict[str, Any], tmp_path: Path) -> None:
    record(tmp_path / "data", "a.parquet")
    whole, _ = Rollouts.read(tmp_path / "data" / "a.parquet")
    whole.select([]).write(tmp_path / "data" / "a.parquet")
    with pytest.raises(UserError, match="hold no rollouts"):
        learn(offline, tmp_path)
