"""Each check on a run that has what it looks for, and on one that does not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from delphic.diagnosis.verdict import Diagnosis, diagnose
from delphic.runs.log import RunLog

N = 200
T = np.arange(1, N + 1)


def noisy(values: Any, spread: float = 0.03, seed: int = 0) -> np.ndarray:
    return np.clip(np.asarray(values) + np.random.default_rng(seed).normal(0, spread, len(np.asarray(values))), 0, 1)


RISING = noisy(0.2 + 0.6 * (1 - np.exp(-T / 40)))
HEALTHY: dict[str, Any] = {
    "reward_mean": RISING,
    "entropy": 0.8 * (1 - 0.6 * (1 - np.exp(-T / 40))),
    "gradient_norm": np.exp(np.random.default_rng(1).normal(0, 0.2, N)),
    "silent_share": noisy(np.full(N, 0.3)),
    "silent_share_expected": noisy(np.full(N, 0.3), seed=2),
    "truncated_share": noisy(np.full(N, 0.05), 0.01),
    "length_mean": 300 + np.random.default_rng(3).normal(0, 10, N),
    "kl_reference": 0.05 * (1 - np.exp(-T / 40)),
    "update_norm": np.full(N, 0.01),
    "ratio_max": 1.5 + np.random.default_rng(4).random(N),
    "clip_share": np.full(N, 0.01),
    "kl_sampler": np.full(N, 0.001),
    "eval_reward": np.where(T % 10 == 0, noisy(0.2 + 0.6 * (1 - np.exp(-T / 40)), 0.02, 5), np.nan),
}


def run(**changes: Any) -> Diagnosis:
    columns = {**HEALTHY, **changes}
    table = pl.DataFrame({"step": T, **{k: v for k, v in columns.items() if v is not None}})
    if "eval_reward" in table.columns:
        table = table.with_columns(pl.col("eval_reward").fill_nan(None))
    return diagnose(RunLog.from_table(table), ahead=False)


def test_a_healthy_run_is_called_healthy_and_every_check_was_made() -> None:
    found = run()
    assert found.verdict == ("healthy",)
    assert found.status == 0
    assert [f.name for f in found.findings] == ["plateau"] or [f.name for f in found.findings] == ["still_rising"]
    assert {s.check for s in found.skipped} == {"cancelling_rewards"}


SWING = 0.5 + 0.02 * np.exp(T / 60) * np.sin(T / 3)
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("growing_oscillation", "dynamic_instability", {"reward_mean": noisy(SWING, 0.02), "eval_reward": None}),
    ("gradient_norm_growth", "dynamic_instability", {"gradient_norm": np.exp(T / 30 + HEALTHY["gradient_norm"])}),
    ("ratio_max_growth", "dynamic_instability", {"ratio_max": 1 + np.exp(T / 30)}),
    ("kl_blow_up", "dynamic_instability", {"kl_reference": 0.02 * np.exp(T / 30), "reward_mean": noisy(np.full(N, 0.5)), "eval_reward": None}),
    ("policy_concentration", "policy_concentration", {"entropy": 0.8 * np.exp(-T / 10), "reward_mean": noisy(0.2 + 0.2 * (1 - np.exp(-T / 10)))}),
    ("entropy_rise", "collapse", {"entropy": np.where(T < 120, 0.5, 5.0), "reward_mean": noisy(np.where(T < 120, 0.6, 0.1))}),
    ("collapse", "collapse", {"reward_mean": noisy(np.where(T < 120, 0.6, 0.1)), "entropy": None}),
    ("silent_groups", "advantage_degeneracy", {"silent_share": noisy(np.full(N, 0.97), 0.01)}),
    ("unexplained_silence", "advantage_degeneracy", {"silent_share": noisy(np.full(N, 0.6))}),
    ("all_truncated", "all_truncated", {"truncated_share": np.ones(N), "reward_mean": np.zeros(N)}),
    ("length_runaway", "length_runaway", {"length_mean": np.maximum(T - 90, 0) * 6.0 + HEALTHY["length_mean"], "reward_mean": noisy(0.2 + 0.6 * (1 - np.exp(-T / 10)))}),
    ("no_gradient", "no_signal", {"gradient_norm": np.zeros(N)}),
    ("frozen_weights", "no_signal", {"update_norm": np.zeros(N)}),
    ("clip_saturation", "clip_saturation", {"clip_share": noisy(np.full(N, 0.6))}),
    ("sampler_mismatch", "sampler_mismatch", {"kl_sampler": noisy(np.full(N, 0.2))}),
    ("non_finite", "non_finite", {"gradient_norm": np.where(T == 150, np.nan, 1.0)}),
    ("constant_reward", "policy_concentration", {"reward_mean": np.where(T < 60, RISING, 0.5), "entropy": None}),
    ("reward_hacking", "reward_hacking", {"eval_reward": np.where(T % 10 == 0, noisy(0.5 - 0.3 * T / N, 0.02), np.nan), "reward_mean": noisy(0.2 + 0.6 * T / N)}),
    ("cancelling_rewards", "cancelling_rewards", {"reward/a": RISING, "reward/b": 0.9 - RISING + noisy(np.zeros(N), 0.01), "reward_mean": noisy(np.full(N, 0.9), 0.01)}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "mode", "changes"), CASES, ids=[name for name, _, _ in CASES])
def test_what_is_there_is_found(name: str, mode: str, changes: dict[str, Any]) -> None:
    found = run(**changes)
    assert name in [f.name for f in found.findings]
    assert mode in found.verdict
    assert found.status == 1
    finding = next(f for f in found.findings if f.name == name)
    assert finding.evidence
    assert finding.advice
    assert finding.steps[0] <= finding.steps[1] <= N


def test_damped_ringing_is_no_instability() -> None:
    ringing = noisy(0.5 + 0.4 * np.exp(-T / 40) * np.cos(T / 4), 0.02)
    assert "dynamic_instability" not in run(reward_mean=ringing, eval_reward=None).verdict


def test_real_staleness_explains_a_mismatch() -> None:
    found = run(kl_sampler=noisy(np.full(N, 0.2)), lag=np.full(N, 4.0))
    assert found.verdict == ("healthy",)
    assert [f.severity for f in found.findings if f.name == "sampler_mismatch"] == ["warning"]


def test_every_finding_is_in_the_table_of_the_docs() -> None:
    root = Path(__file__).resolve().parents[2]
    table = (root / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    files = (root / "src" / "delphic" / "diagnosis").glob("*.py")
    names = {
        name for file in files for name in re.findall(r'Finding\(\s*"([a-z_]+)"', file.read_text(encoding="utf-8"))
    }
    assert len(names) > 20
    assert [name for name in names if f"`{name}`" not in table] == []


def test_a_short_run_cannot_be_told() -> None:
    table = pl.DataFrame({"step": T[:8], "reward_mean": RISING[:8]})
    found = diagnose(RunLog.from_table(table))
    assert found.verdict == ("cannot_tell",)
    assert found.status == 3
    assert [f.name for f in found.findings] == ["too_short"]


def test_the_forecast_comes_with_its_band() -> None:
    table = pl.DataFrame({"step": T, "reward_mean": RISING})
    found = diagnose(RunLog.from_table(table, steps=400, learning_rate=1e-6))
    assert found.forecast is not None
    assert found.forecast["end"] == 400
    assert found.band is not None
    assert found.stability is None or found.stability["certified"] is False


def test_a_reward_that_falls_is_not_called_flat() -> None:
    found = run(reward_mean=noisy(np.linspace(0.6, 0.42, N)))
    assert found.verdict == ("falling",)
    assert [f.severity for f in found.findings if f.name == "falling"] == ["warning"]
    slight = run(reward_mean=noisy(np.linspace(0.6, 0.57, N), 0.03))
    assert [f.name for f in slight.findings] == ["falling"]
    assert slight.verdict == ("cannot_tell",)


def test_what_came_first_is_named() -> None:
    lost = np.where(T < 60, 0.6, 0.0) + np.where(T < 60, np.random.default_rng(7).normal(0, 0.02, N), 0.0)
    late, early = np.where(T < 60, 0.02, 1.0), np.full(N, 0.99)
    assert run(reward_mean=lost, truncated_share=late, silent_share=late, eval_reward=None).verdict == ("collapse",)
    never = np.zeros(N)
    never[[3, 20]] = 1 / 64
    found = run(reward_mean=never, silent_share=early, gradient_norm=np.where(never > 0, 0.1, 0.0), eval_reward=None)
    assert found.verdict == ("advantage_degeneracy",)
    assert "it was another in 2 steps before that, so hardly anything was ever paid" in str(found.findings)
    cut = run(reward_mean=never, truncated_share=early, silent_share=early, eval_reward=None)
    assert cut.verdict == ("all_truncated",)
    assert [f.steps[0] for f in cut.findings if f.name == "all_truncated"] == [T[0]]


def test_a_run_that_collapsed_was_not_hacked() -> None:
    fallen = noisy(np.where(T < 30, 0.6, 0.0), 0.005)
    held_out = np.where(T % 10 == 0, noisy(np.clip(0.5 - T / 250, 0, 1), 0.01, 5), np.nan)
    assert run(reward_mean=np.clip(fallen, 0, 1), eval_reward=held_out).verdict[0] != "reward_hacking"
    assert run(reward_mean=RISING, eval_reward=held_out).verdict == ("reward_hacking",)
