"""The diagnosis inside other trainers: rows in their keys, findings once, and an end where it is asked for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from delphic.errors import UserError
from delphic.plugins.live import LiveDiagnosis
from delphic.plugins.verl_log import watch_logging
from delphic.runs.read import read_run

RNG = np.random.default_rng(0)
LOST = [float(np.clip((0.6 if t < 40 else 0.05) + RNG.normal(0, 0.03), 0, 1)) for t in range(80)]


def test_a_finding_is_said_once_when_it_is_new() -> None:
    said: list[str] = []
    live = LiveDiagnosis(10, said.append)
    first = None
    for step, reward in enumerate(LOST):
        if live.add(step, {"reward": reward, "reward_std": 0.1, "name": "text"}) and first is None:
            first = step
    assert first is not None
    assert 40 < first < 75
    assert len([s for s in said if "collapse" in s]) == 1
    assert live.last is not None
    assert live.last.verdict == ("collapse",)
    with pytest.raises(UserError, match="1 or more"):
        LiveDiagnosis(0)


def test_verls_tracking_is_judged_and_left_as_it_is() -> None:
    class Tracking:
        def __init__(self) -> None:
            self.rows: list[tuple[Any, int]] = []

        def log(self, data: dict[str, float], step: int) -> str:
            self.rows.append((data, step))
            return "logged"

    said: list[str] = []
    watch_logging(every=8, say=said.append, tracking=Tracking)
    tracking = Tracking()
    for step, reward in enumerate(LOST):
        assert tracking.log({"critic/score/mean": reward, "actor/pg_loss": 0.0}, step) == "logged"
    assert len(tracking.rows) == 80
    assert any("collapse" in s for s in said)


def test_verls_own_tracking_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("orjson", reason="verl's logger needs orjson")
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("verl is not installed")
    file = Path(spec.submodule_search_locations[0]) / "utils" / "tracking.py"  # verl itself would import ray
    own = importlib.util.spec_from_file_location("verl_tracking", file)
    assert own is not None
    assert own.loader is not None
    module = importlib.util.module_from_spec(own)
    own.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VERL_FILE_LOGGER_ROOT", str(tmp_path))
    said: list[str] = []
    watch_logging(every=8, say=said.append, tracking=module.Tracking)
    tracking = module.Tracking("project", "name", "file", config={})
    for step, reward in enumerate(LOST):
        tracking.log(data={"critic/score/mean": np.float32(reward), "actor/pg_loss": 0.0}, step=step)
    tracking.finish()
    assert any("collapse" in s for s in said)
    written = read_run(tmp_path / "project" / "name.jsonl")
    assert (written.framework, written.steps[-1]) == ("verl", 79)


def test_the_callback_of_trl_ends_a_run_at_an_error() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from delphic.plugins.trl_diagnose import DelphicDiagnoseCallback

    said: list[str] = []
    callback = DelphicDiagnoseCallback(every=5, stop=True, say=said.append)
    control = SimpleNamespace(should_training_stop=False, should_save=False)
    for step, reward in enumerate(LOST):
        state = SimpleNamespace(is_world_process_zero=True, global_step=step)
        callback.on_log(None, state, control, {"reward": reward, "reward_std": 0.1, "kl": 0.01})
        if control.should_training_stop:
            break
    assert 40 < step < 75
    assert control.should_save
    assert said
