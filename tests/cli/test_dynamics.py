"""delphic stability, forecast and backtest: their JSON, their screens, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from delphic.cli import main
from delphic.config import make_config
from delphic.dynamics.stability import Lag, exact_limit


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def curve(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    t = np.arange(1, 201)
    y = 0.8 - 0.6 * np.exp(-0.02 * t) + rng.normal(0, 0.02, 200)
    path = tmp_path / "run" / "metrics.jsonl"
    path.parent.mkdir()
    path.write_text(
        "".join(json.dumps({"step": int(s), "reward_mean": float(v)}) + "\n" for s, v in zip(t, y, strict=True))
    )
    return path


def test_stability_from_settings(capsys: pytest.CaptureFixture[str]) -> None:
    hold = call(capsys, "stability", "--learning-rate", "0.01", "--stiffness", "2", "--sync-interval", "8")
    assert hold["gain"] == pytest.approx(0.01 * 2 * 7)
    assert hold["exact_limit"] == pytest.approx(2 / 8 / 2)
    assert hold["closed_form_limit"] == pytest.approx(1 / 7 / 2)
    assert hold["oscillation_onset"] == pytest.approx(1 / 8 / 2)
    assert (hold["regime"], hold["period"]) == ("overdamped", None)
    assert hold["max_sync_interval"] == 100
    fresh = call(capsys, "stability", "--learning-rate", "0.01", "--stiffness", "2")
    assert fresh["closed_form_limit"] is None, "no lag, no limit of that kind"
    adam = call(
        capsys, "stability", "--learning-rate", "0.01", "--stiffness", "2", "--optimizer", "adam", "--sync-offset", "1"
    )
    assert adam["exact_limit"] == pytest.approx(1 / 2, rel=1e-6), "β₁ = .9: ηK·d = 1"
    margin = call(
        capsys, "stability", "--learning-rate", "0.01", "--stiffness", "2", "--sync-interval", "8", "--margin", "2"
    )
    assert margin["max_learning_rate"] == pytest.approx(hold["exact_limit"] / 2)
    assert margin["max_sync_interval"] == 50
    weighted = call(
        capsys,
        "stability",
        "--learning-rate",
        "0.01",
        "--stiffness",
        "2",
        "--sync-interval",
        "8",
        "--objective",
        "topr",
    )
    assert weighted["exact_limit"] == pytest.approx(hold["exact_limit"])
    assert main(["stability", "--learning-rate", "0.2", "--stiffness", "2", "--sync-interval", "8"]) == 0
    assert "unstable" in capsys.readouterr().out


def test_stability_of_a_run_inverts_the_lag_and_is_not_certified(
    curve: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = call(capsys, "stability", str(curve), "--learning-rate", "0.1", "--sync-offset", "10")
    gain = 0.1 * run["stiffness"]
    assert gain == pytest.approx(np.exp(-0.02 * 10) * (1 - np.exp(-0.02)), rel=0.25)
    assert run["certified"] is False
    assert any("not certified" in note for note in run["notes"])
    assert {row["change"] for row in run["what_if"]} >= {"learning rate × 2", "sync interval 8", "momentum 0.9"}
    given = call(capsys, "stability", str(curve), "--learning-rate", "0.1", "--stiffness", "3")
    assert given["certified"] is True


def own_run(curve: Path, **content: Any) -> Path:
    config = make_config(content, "test").model_dump(mode="json")
    (curve.parent / "config.json").write_text(json.dumps({"config": config}))
    return curve.parent


def test_stability_of_a_delphic_run_counts_its_updates(curve: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"optimizer": "sgd", "learning_rate": 0.01, "sync_interval": 3, "minibatches": 2, "passes": 2}
    run = own_run(curve, train=settings)
    found = call(capsys, "stability", str(run), "--stiffness", "2")
    assert found["learning_rate"] == 0.01
    assert found["exact_limit"] == pytest.approx(2 / 12 / 2), "three steps of four updates learn from one policy"
    assert found["max_sync_interval"] == 25, "in steps: 100 updates"
    assert any("4 updates a step" in note for note in found["notes"])
    offset = call(capsys, "stability", str(run), "--stiffness", "2", "--sync-interval", "1", "--sync-offset", "2")
    assert offset["exact_limit"] == pytest.approx(exact_limit(Lag(4, 8, stiffness=2)))
    fitted = call(capsys, "stability", str(run))
    gain = 0.01 * fitted["stiffness"]  # of an update, under a hold of 12: 1 − 12·ηK = e^(−λ·12), λ = .02/4
    assert gain == pytest.approx((1 - np.exp(-0.02 / 4 * 12)) / 12, rel=0.25)


def test_full_importance_weights_of_a_run_cancel_its_lag(curve: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"optimizer": "sgd", "learning_rate": 0.01, "sync_interval": 8}
    weighted = own_run(
        curve, train=settings, objective={"preset": "rloo", "importance": "ratio", "ratio_level": "completion"}
    )
    found = call(capsys, "stability", str(weighted), "--stiffness", "2")
    assert found["exact_limit"] == pytest.approx(2 / 2), "as without lag: ηK = 2"
    clipped = own_run(curve, train=settings, objective="dr_grpo")
    found = call(capsys, "stability", str(clipped), "--stiffness", "2")
    assert found["exact_limit"] == pytest.approx(2 / 8 / 2)
    assert any("only as the whole completion's ratio, unclipped" in note for note in found["notes"])


def test_forecast_of_a_run(curve: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "f.html"
    found = call(capsys, "forecast", str(curve.parent), "--at", "0.5", "--html", str(page))
    assert found["final"]["low"] <= found["actual"] <= found["final"]["high"]
    assert found["plateau"]["low"] < 0.8 < found["plateau"]["high"]
    assert {row["name"] for row in found["laws"]} == {
        "three_phase",
        "exponential",
        "logistic",
        "difficulty_mixture",
        "scaling_sigmoid",
        "last_value",
    }
    assert found["chosen"] == found["laws"][0]["name"]
    text = page.read_text()
    assert "plotly" in text
    assert 'src="http' not in text
    assert main(["forecast", str(curve)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "mean of the last tenth, up to step 399" in out
    assert "twice the steps so far" in out


def test_backtest_of_a_folder(curve: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (curve.parent / "notes.csv").write_text("a,b\n1,2\n")
    found = call(capsys, "backtest", str(curve.parent))
    assert [row["at"] for row in found["summary"]] == [0.25, 0.5, 0.75]
    assert "no column of rewards" in found["left_out"][0]
    assert main(["backtest", str(curve.parent)]) == 0


def test_a_manifest_names_the_pool_and_metric_of_a_file(curve: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, text = curve.parent, curve.read_text()
    for name in ("b.jsonl", "c.jsonl"):
        (folder / name).write_text(text.replace("reward_mean", "quality"))
    assert len(call(capsys, "backtest", str(folder))["trials"]) == 3, "without a name for it, the metric is not found"
    (folder / "MANIFEST.csv").write_text("file,repo,reward_key\nb.jsonl,one,quality\nc.jsonl,two,quality\n")
    found = call(capsys, "backtest", str(folder))
    assert len(found["trials"]) == 9
    assert found["summary"][0]["runs"] == 3
    (folder / "MANIFEST.csv").write_text("file,reward_key\nb.jsonl,quality\n")
    assert main(["backtest", str(folder)]) == 2
    assert "no column repo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stability"], "give --learning-rate and --stiffness, or a run"),
        (["stability", "--learning-rate", "0.1", "--stiffness", "-1"], "stiffness must be positive"),
        (["stability", "--learning-rate", "0", "--stiffness", "1"], "--learning-rate must be positive"),
        (["stability", "--learning-rate", "1", "--stiffness", "1", "--momentum", "1"], "momentum must be in"),
        (["stability", "--learning-rate", "1", "--stiffness", "1", "--objective", "gpro"], 'did you mean "grpo"'),
        (["stability", "--learning-rate", "1", "--stiffness", "1", "--margin", "0.5"], "--margin must be 1 or more"),
        (["stability", "CURVE", "--learning-rate", "0"], "--learning-rate must be positive"),
        (["stability", "CURVE"], "does not say its learning rate"),
        (["stability", "CURVE", "--learning-rate", "1", "--margin", "0"], "--margin must be 1 or more"),
        (["forecast", "nowhere.jsonl"], "no such file"),
        (["forecast", "CURVE", "--at", "2"], "--at must be inside"),
        (["forecast", "CURVE", "--range", "0"], "reads two numbers"),
        (["forecast", "CURVE", "--range", "0,0.5"], "outside 0 to 0.5"),
        (["forecast", "CURVE", "--metric", "rewrd_mean"], 'did you mean "reward_mean"'),
        (["forecast", "CURVE", "--level", "95"], "--level must be inside"),
        (["backtest", "nowhere"], "no folder"),
    ],
)
def test_mistakes_get_one_sentence(
    curve: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main([str(curve) if a == "CURVE" else a for a in arguments]) == 2
    assert message in capsys.readouterr().err
