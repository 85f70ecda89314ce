"""While a run goes on: forecasts, an end at the plateau and the stability controller are functions of its rows."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Silent

from delphic.config import make_config
from delphic.dynamics.stability import Lag, exact_limit, gain_from_swing, oscillation_onset, spectral_radius
from delphic.errors import UserError
from delphic.report.terminal import outlook_lines, summarise
from delphic.rollouts import Rollouts
from delphic.training import outlook as module
from delphic.training.lag import Schedule, consumers, source_step
from delphic.training.loop import train
from delphic.training.metrics import METRICS
from delphic.training.outlook import Outlook

Content = dict[str, Any]


class Listening(Silent):
    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__(stop_after)
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


def files(run: Path, steps: int) -> dict[str, bytes]:
    last = run / "checkpoints" / f"step_{steps:06d}"
    paths = [run / "metrics.jsonl", last / "model.safetensors", last / "optimizer.safetensors", last / "state.json"]
    return {path.name: path.read_bytes() for path in paths}


def follow(outlook: Outlook, rewards: np.ndarray, rate: float = 0.1) -> list[dict[str, float]]:
    """Rows of a run whose rewards are given, up to its end."""
    rows = []
    for step, reward in enumerate(rewards.tolist(), 1):
        rows.append({"step": step, **outlook.look(step, {"reward_mean": reward, "learning_rate": rate})})
        if outlook.ended:
            break
    return rows


def saturating(steps: int, rate: float, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 0.01, steps)
    return 0.8 - 0.5 * np.exp(-rate * np.arange(1, steps + 1)) + noise


# -- the schedule --------------------------------------------------------------------------------------------------


def test_a_schedule_without_changes_is_the_formula() -> None:
    for interval in (1, 3, 20):
        for offset in (0, 1, 10):
            plain = Schedule(offset, ((0, interval),))
            assert [plain.source_step(t) for t in range(1, 80)] == [
                source_step(t, interval, offset) for t in range(1, 80)
            ]
            assert [plain.consumers(s, 60) for s in range(80)] == [
                consumers(s, 60, interval, offset) for s in range(80)
            ]
            assert [plain.syncs(s) for s in range(80)] == [s % interval == 0 for s in range(80)]


@pytest.mark.parametrize("offset", [0, 1, 5])
def test_every_step_is_sampled_once_across_changes_of_the_interval(offset: int) -> None:
    """As a run sees it: changes arrive at any step, and hold from the next sync on."""
    rng = np.random.default_rng(offset)
    for _ in range(50):
        schedule, sampled = Schedule(offset, ((0, 12),)), {}
        changes = {int(at): int(m) for at, m in zip(rng.integers(1, 60, 3), rng.integers(1, 12, 3), strict=True)}
        current = 0  # the version that the sampler holds
        for step in range(1, 61):
            for later in schedule.consumers(step - 1, 60):
                assert later not in sampled
                assert current == step - 1, "what samples has just been synced"
                sampled[later] = step - 1
            assert sampled[step] == schedule.source_step(step), "queued, and by the version that the formula names"
            if step in changes:
                schedule = schedule.change(step, changes[step])
            if schedule.syncs(step):
                current = step
        assert sorted(sampled) == list(range(1, 61))
        tail = [step - 1 - schedule.source_step(step) for step in range(80 + offset, 140)]
        assert (min(tail), max(tail)) == (offset, offset + schedule.interval - 1)


# -- the forecast --------------------------------------------------------------------------------------------------


def test_looks_come_when_the_config_says_and_every_figure_is_declared() -> None:
    assert Outlook(make_config({"train": {"steps": 1000}}, "test"), [], Path()).every == 100
    assert Outlook(make_config({"train": {"steps": 30}}, "test"), [], Path()).every == 10
    config = make_config({"train": {"steps": 60, "forecast_every": 20}}, "test")
    rows = follow(Outlook(config, [], Path()), saturating(60, 0.1))
    assert [row["step"] for row in rows if "forecast_refused" in row] == [20, 40], "none at the end, where it is known"
    assert set(rows[39]) - {"step"} <= set(METRICS)
    assert rows[39]["forecast_low"] < 0.8 < rows[39]["forecast_high"]
    again = Outlook(config, rows[:25], Path())
    assert [{"step": s, **again.look(s, {"reward_mean": r["reward_mean"], "learning_rate": 0.1})} for s, r in
            ((row["step"], row) for row in rows[25:])] == rows[25:], "a function of the rows"  # fmt: skip
    assert outlook_lines(rows[39], pace=2.0)[0].startswith("forecast: last tenth 0.")


def test_forecasts_leave_the_weights_alone(lagged: Content, reward_folder: Path, tmp_path: Path) -> None:
    lagged["train"] |= {"steps": 14, "sync_interval": 1, "sync_offset": 0}
    lagged["evaluation"]["problems"] = 0
    for every in (0, 6):
        lagged["train"]["forecast_every"] = every
        train(make_config(lagged, "test"), tmp_path / f"run{every}", reward_folder, False, Silent())
    with_, without = files(tmp_path / "run6", 14), files(tmp_path / "run0", 14)
    assert with_["model.safetensors"] == without["model.safetensors"]
    assert b"forecast_refused" in with_["metrics.jsonl"]
    assert b"forecast" not in without["metrics.jsonl"]


# -- the plateau ---------------------------------------------------------------------------------------------------


def test_a_run_ends_at_the_second_look_that_finds_a_plateau() -> None:
    config = make_config({"train": {"steps": 300, "forecast_every": 40, "stop_at_plateau": 0.02}}, "test")
    rows = follow(Outlook(config, [], Path()), saturating(300, 0.05))
    reached = [row["step"] for row in rows if row.get("plateau_reached")]
    assert 80 <= reached[-1] <= 200, "the level is within .02 of the plateau from step 65 on"
    assert reached[-2:] == [reached[-1] - 40, reached[-1]]
    assert rows[-1]["steps_saved"] == 300 - reached[-1] == summarise(rows)["ended_at_plateau"]["steps_saved"]
    assert rows[-1]["forecast_gain_high"] < 0.02
    resumed = Outlook(config, rows, Path())
    assert resumed.ended.startswith(f"ended at step {reached[-1]} of 300")


def test_what_still_rises_or_never_rose_is_not_stopped() -> None:
    config = make_config({"train": {"steps": 300, "forecast_every": 100, "stop_at_plateau": 0.02}}, "test")
    t = np.arange(1, 301)
    noise = np.random.default_rng(1).normal(0, 0.01, 300)
    for curve in (0.1 + 0.002 * t, 0.1 + 0.7 / (1 + np.exp((220 - t) / 15)), np.full(300, 0.1)):
        seen = curve + noise
        assert len(follow(Outlook(config, [], Path()), seen[:200])) == 200


def test_the_end_is_saved_evaluated_and_final(
    lagged: Content, reward_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lagged["train"] |= {"steps": 30, "forecast_every": 3, "stop_at_plateau": 0.01}
    lagged["checkpoint"]["every"] = lagged["evaluation"]["every"] = 100
    monkeypatch.setattr(module, "plateau_reached", lambda *_: True)
    monkeypatch.setattr(module, "_forecast_figures", lambda _: {"forecast_refused": 0.0, "forecast_gain_high": 0.004})
    config, run, display = make_config(lagged, "test"), tmp_path / "run", Listening()
    outcome = train(config, run, reward_folder, False, display)
    assert (outcome.finished, outcome.interrupted) == (15, False), "looks at 12 and 15"
    assert outcome.rows[-1]["steps_saved"] == 15
    assert "eval_accuracy" in outcome.rows[-1]
    assert any("15 steps saved" in text for text in display.texts)
    before, again = files(run, 15), Listening()
    outcome = train(config, run, reward_folder, True, again)
    assert (outcome.finished, outcome.interrupted) == (15, False)
    assert files(run, 15) == before
    assert again.texts == [text for text in display.texts if "steps saved" in text]
    train(config, tmp_path / "other", reward_folder, False, Silent(stop_after=13))
    train(config, tmp_path / "other", reward_folder, True, Silent())
    assert files(tmp_path / "other", 15) == before


# -- the margin and the controller ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lag", [Lag(1, 8), Lag(4, 2, 0.9), Lag(6, 0), Lag(1, 3, 0.5)])
def test_a_swing_gives_its_gain_back(lag: Lag) -> None:
    onset, limit = oscillation_onset(lag), exact_limit(lag)
    for share in (0.5, 0.9):
        gain = onset + share * (limit - onset)
        found = gain_from_swing(-math.log(spectral_radius(gain, lag)), lag)
        assert found == pytest.approx(gain, rel=1e-6)
    assert gain_from_swing(50.0, lag) is None


def closed_loop(outlook: Outlook, gain: float, steps: int = 150) -> list[dict[str, float]]:
    """The recurrence itself as the run: the distance from the fixed point under the outlook's schedule and rate."""
    noise = np.random.default_rng(3).normal(0, 0.01, steps)
    distance, rows = [0.4], []
    for step in range(1, steps + 1):
        rate = 0.1 * outlook.rate_scale
        distance.append(distance[-1] - rate / 0.1 * gain * distance[outlook.schedule.source_step(step)])
        row = {"reward_mean": 0.5 - distance[-1] + noise[step - 1], "learning_rate": rate}
        rows.append({"step": step, **outlook.look(step, row)})
    return rows


@pytest.mark.parametrize(
    ("interval", "offset", "key"), [(1, 8, "control_learning_rate"), (8, 0, "control_sync_interval")]
)
def test_a_ringing_reward_is_calmed(interval: int, offset: int, key: str) -> None:
    """Nothing is measured: K is read off the swing, at 0.95 of the limit."""
    settings = {"steps": 300, "forecast_every": 30, "sync_interval": interval, "sync_offset": offset}
    settings |= {"optimizer": "sgd", "controller": "stability"}
    gain = 0.95 * exact_limit(Lag(interval, offset))
    held = closed_loop(Outlook(make_config({"objective": "dr_grpo", "train": settings}, "test"), [], Path()), gain)
    changes = [(row["step"], row[key]) for row in held if key in row]
    assert changes == [(60, 0.5 if offset else 4)], "the second look that finds too small a margin, and no more"
    assert held[59]["stability_margin"] == pytest.approx(1 / 0.95, rel=0.1)
    assert held[59]["stability_regime"] == 1
    settings |= {"controller": "none", "forecast_every": 0}
    free = closed_loop(Outlook(make_config({"objective": "dr_grpo", "train": settings}, "test"), [], Path()), gain)
    late = [np.std([row["reward_mean"] for row in rows[110:150]]) for rows in (held, free)]
    assert late[0] < 0.5 * late[1]
    assert late[0] < 0.02, "the noise is 0.01"


def test_a_calm_reward_is_left_alone() -> None:
    settings = {"steps": 200, "forecast_every": 60, "sync_offset": 4, "controller": "stability"}
    rows = follow(Outlook(make_config({"train": settings}, "test"), [], Path()), saturating(200, 0.03))
    assert not any(key.startswith("control") for row in rows for key in row)
    looks = [row for row in rows if "stability_margin" in row]
    assert min(row["stability_margin"] for row in looks) > 3
    assert outlook_lines(looks[-1], pace=1.0)[-1].startswith("overdamped; margin ")
    assert outlook_lines(looks[-1], pace=1.0)[-1].endswith(", not certified")


def test_a_measured_stiffness_makes_the_controller_act_and_a_resumed_run_acts_alike(
    lagged: Content, reward_folder: Path, tmp_path: Path
) -> None:
    """Interval 3, offset 2, two updates a step, K three times what is stable at interval 1."""
    lagged["train"] |= {"steps": 20, "forecast_every": 6, "controller": "stability", "schedule": "constant"}
    lagged["train"] |= {"warmup_steps": 0}
    lagged["evaluation"]["problems"] = 0
    lagged["sampling"]["dynamic"] = False
    lagged["checkpoint"]["every"] = 100
    config = make_config(lagged, "test")
    high = 3 * exact_limit(Lag(2, 4, 0.9, averaged=True)) / config.train.learning_rate
    measured = {"step": 2, "low": high / 1.2, "high": high, "certified": True, "prompts_needed": None}
    seen = {}
    for name, stops in (("whole", ()), ("twice", (13, 18))):
        run, display = tmp_path / name, Listening(stop_after=2)
        train(config, run, reward_folder, False, display)
        (run / "stability.json").write_text(json.dumps(measured))
        for stop in stops:
            train(config, run, reward_folder, True, Silent(stop_after=stop))
        display = Listening()
        rows = train(config, run, reward_folder, True, display).rows
        seen[name] = files(run, 20)
        if name == "whole":
            (text,) = [text for text in display.texts if "margin" in text]
            assert text.startswith("step 12: margin ")
            assert "sync interval 3 → 1, learning rate × 0.125" in text
    assert seen["whole"] == seen["twice"]
    changed = [row for row in rows if "control_sync_interval" in row]
    assert [row["step"] for row in changed] == [12], "one change makes the margin enough: 8 / 3 above 1.5"
    assert changed[0]["stability_certified"] == 1
    assert changed[0]["stability_margin_high"] == pytest.approx(changed[0]["stability_margin"] * 1.2)
    assert rows[-3]["stability_margin"] == pytest.approx(8 / 3)
    assert [row["learning_rate"] for row in rows] == pytest.approx([1e-3] * 12 + [1e-3 / 8] * 8)
    versions = [int(Rollouts.read(run / "rollouts" / f"step_{t:06d}.parquet")[0].version[0]) // 2 for t in range(1, 21)]
    assert versions[:14] == [source_step(t, 3, 2) for t in range(1, 15)], "sampled before the change"
    assert versions[14:] == [source_step(t, 1, 2) for t in range(15, 21)]


def test_a_stiffness_measured_after_a_crash_changes_what_was_sampled_ahead(
    lagged: Content, reward_folder: Path, tmp_path: Path
) -> None:
    """Steps 11 to 14 are learned again, now under another learning rate: their policies sample anew."""
    lagged["train"] |= {"steps": 15, "forecast_every": 12, "controller": "stability", "sync_offset": 0}
    lagged["train"] |= {"schedule": "constant"}
    lagged["evaluation"]["problems"] = 0
    lagged["checkpoint"] = {"every": 10, "keep": 2}
    config, contents = make_config(lagged, "test"), {}
    measured = {"step": 10, "stiffness": 1e9, "low": 1e9, "high": 1e9, "certified": True, "prompts_needed": None}
    for name, stop in (("crashed", 14), ("stopped", 10)):
        run = tmp_path / name
        train(config, run, reward_folder, False, Silent(stop_after=stop))
        for later in (run / "checkpoints").glob("step_00001[1-9]"):
            shutil.rmtree(later)
        (run / "stability.json").write_text(json.dumps(measured))
        train(config, run, reward_folder, True, Silent())
        contents[name] = files(run, 15)
    assert contents["crashed"] == contents["stopped"]


def test_a_decision_needs_looks_and_a_certificate_needs_a_measurement(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"stop_at_plateau decides at forecasts; leave out forecast_every = 0"):
        make_config({"train": {"stop_at_plateau": 0.01, "forecast_every": 0}}, "test")
    config = make_config({"train": {"steps": 60, "forecast_every": 20}}, "test")
    for content in ("{", '{"certified": true}', json.dumps({"step": 1, "low": 1, "high": 2, "certified": False})):
        (tmp_path / "stability.json").write_text(content)
        rows = follow(Outlook(config, [], tmp_path), saturating(20, 0.1))
        assert rows[-1]["stability_certified"] == 0
