"""`delphic eval` end to end: figures, pairing, files, and one clear sentence for every mistake."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from delphic.cli import main
from delphic.config import TaskConfig, make_config
from delphic.evaluation.measure import measure
from delphic.evaluation.specs import read_exam
from delphic.training.loop import build_parts
from delphic.training.run_folder import find_checkpoint, write_json

FEW = ["--problems", "8", "--samples", "3", "--threads", "1"]


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["eval", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["eval", *arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1, error
    return error[0]


def task_file(folder: Path, name: str, text: str) -> str:
    (folder / f"{name}.toml").write_text(text)
    return str(folder / f"{name}.toml")


@pytest.fixture
def run(tiny_model: Path, tmp_path: Path) -> Path:
    """A run's folder with checkpoints of steps 2 and 4."""
    folder = tmp_path / "run"
    for step in (2, 4):
        shutil.copytree(tiny_model, folder / "checkpoints" / f"step_{step:06d}")
    write_json(folder / "config.json", {})
    return folder


# -- figures -------------------------------------------------------------------------------------------------------


def test_the_result_holds_what_is_needed_and_nothing_that_is_not_json(capsys: pytest.CaptureFixture[str]) -> None:
    result = evaluated(capsys, "builtin", "--tasks", "arithmetic", "--pass-at", "1,2", *FEW)
    row = result["tasks"]["arithmetic"]
    correct, counted = np.array(row["correct"]), np.array(row["counted"])
    assert counted.tolist() == [3] * 8
    assert row["accuracy"]["mean"] == pytest.approx(correct.sum() / 24)
    assert row["pass_at"]["1"] == pytest.approx(row["accuracy"])
    assert row["accuracy"]["mean"] <= row["pass_at"]["2"]["mean"] <= (correct > 0).mean()
    assert 0 <= row["accuracy"]["low"] < row["accuracy"]["high"] <= 1
    assert row["settings"] == {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 8, "stop": "", "seed": 0}
    assert (result["before"], result["comparison"], result["transfer"]) == (None, None, None)


def test_it_measures_what_an_evaluation_during_training_measures(quick: dict[str, Any], tmp_path: Path) -> None:
    quick["model"]["path"] = "builtin"
    quick["seed"] = 3
    config = make_config(quick, "test")
    parts = build_parts(config, tmp_path)
    during = parts.evaluate()
    assert during is not None
    text = "seed = 3\n[task]\nhigh = 3\nsize = 50\n[sampling]\nmax_new_tokens = 4"
    exam = read_exam(task_file(tmp_path, "c", text), 4, {}, False, None)
    for rows in (64, 2):  # all at once, or problem by problem
        exam = read_exam(exam.spec, 4, {"batch_rows": rows}, False, None)
        after = measure(parts.sampler.policy, exam, 2, lambda _: None)  # type: ignore[attr-defined]
        assert (after.accuracy.mean, after.accuracy.low) == (during.accuracy, during.low)
        assert after.pass_at(2).mean == pytest.approx(during.pass_at_k)


def test_greedy_takes_one_sample_of_the_likeliest_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--problems", "8", "--threads", "1"]
    greedy = evaluated(capsys, "builtin", "--tasks", "arithmetic", "--greedy", *few)["tasks"]["arithmetic"]
    assert greedy["samples"] == 1
    assert greedy["settings"]["temperature"] == 0
    cold = evaluated(capsys, "builtin", "--tasks", "arithmetic", "--temperature", "1e-4", "--samples", "2", *few)
    assert cold["tasks"]["arithmetic"]["correct"] == [2 * c for c in greedy["correct"]]
    zero = evaluated(capsys, "builtin", "--tasks", "arithmetic", "--temperature", "0", "--seed", "9", *few)
    assert zero["tasks"]["arithmetic"]["correct"] == greedy["correct"]


def test_rewards_that_do_not_apply_are_left_out_and_a_task_may_say_what_the_answer_is(
    reward_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (reward_folder / "some_rewards.py").write_text(
        "def some(completions, **k): return [1.0 if i % 4 else None for i, _ in enumerate(completions)]\n"
        "def never(completions, **k): return [None] * len(completions)"
    )
    spec = task_file(reward_folder, "some", '[task]\nrewards = ["some_rewards:some"]')
    row = evaluated(capsys, "builtin", "--tasks", spec, "--problems", "8", "--samples", "4")["tasks"]["some"]
    assert row["left_out"] == 8
    assert row["counted"] == row["correct"] == [3] * 8
    assert row["pass_at"]["4"] == {"mean": None, "low": None, "high": None, "problems": 0}
    assert main(["eval", "builtin", "--tasks", spec, *FEW]) == 0
    assert "completions without a reward were left out" in capsys.readouterr().out
    never = task_file(reward_folder, "never", '[task]\nrewards = ["some_rewards:never"]')
    assert main(["eval", "builtin", "--tasks", never, *FEW]) == 2
    assert "never: no completion has a reward" in capsys.readouterr().err
    monkeypatch.setattr("delphic.tasks.Arithmetic.answer", lambda _self, _text: None, raising=False)
    row = evaluated(capsys, "builtin", "--tasks", "arithmetic", *FEW)["tasks"]["arithmetic"]
    assert row["majority"]["mean"] == 0, "nobody votes"


# -- before and after ----------------------------------------------------------------------------------------------


def test_before_and_after_are_paired_from_two_models_and_from_a_file(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "tiny.json"
    arguments = ["--tasks", "arithmetic", "--problems", "20", "--threads", "1"]
    assert main(["eval", str(tiny_model), *arguments, "--output", str(kept)]) == 0
    out = capsys.readouterr()
    assert "arithmetic" in out.out
    assert "20 problems × 4" in out.err
    assert "there already; nothing was overwritten" in refused(capsys, "builtin", *arguments, "--output", str(kept))
    models = evaluated(capsys, "builtin", *arguments, "--before", str(tiny_model))
    file = evaluated(capsys, "builtin", *arguments, "--before", str(kept))
    assert models["comparison"] == file["comparison"]
    gain = file["comparison"]["arithmetic"]["gain"]
    after, before = models["tasks"]["arithmetic"], models["before"]["tasks"]["arithmetic"]
    assert gain["mean"] == pytest.approx(after["accuracy"]["mean"] - before["accuracy"]["mean"])
    assert gain["excludes_zero"]
    assert file["before"] == {"model": str(tiny_model), "file": str(kept)}
    same = evaluated(capsys, str(tiny_model), *arguments, "--before", str(kept))["comparison"]["arithmetic"]
    assert same["gain"]["mean"] == 0, "both sampled the same problems with the same random numbers"
    assert same["settings_changed"] == {}
    assert main(["eval", "builtin", *arguments, "--greedy", "--before", str(kept)]) == 0
    assert "temperature was 1.0 before and is 0.0 now" in capsys.readouterr().out


def test_a_result_of_other_problems_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept.json"
    assert main(["eval", "builtin", "--tasks", "arithmetic", *FEW, "--output", str(kept)]) == 0
    capsys.readouterr()
    before = ["--before", str(kept)]
    assert "other problems (8) than those asked for now (9)" in refused(
        capsys, "builtin", "--tasks", "arithmetic", "--problems", "9", *before
    )
    harder = task_file(tmp_path, "hard", "[task]\nhigh = 30")
    assert "other problems" in refused(capsys, "builtin", "--tasks", f"arithmetic={harder}", *FEW, *before)
    assert 'has no task "hard"' in refused(capsys, "builtin", "--tasks", harder, *FEW, *before)
    content = json.loads(kept.read_text())
    del content["tasks"]["arithmetic"]["counted"]
    kept.write_text(json.dumps(content))
    assert "cannot be read (KeyError('counted'))" in refused(capsys, "builtin", "--tasks", "arithmetic", *FEW, *before)
    kept.write_text("{}")
    assert "not a result of delphic eval" in refused(capsys, "builtin", "--tasks", "arithmetic", *before)


def test_transfer_is_sorted_by_distance(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    others = [task_file(tmp_path, f"to{high}", f"[task]\nhigh = {high}") for high in (5, 9, 40, 90)]
    arguments = ["builtin", "--tasks", *others, "arithmetic", *FEW, "--before", str(tiny_model)]
    table = evaluated(capsys, *arguments, "--trained-on", "arithmetic")["transfer"]
    distances = [row["distance"] for row in table["tasks"]]
    assert table["trained_on"] == "arithmetic"
    assert {row["task"] for row in table["tasks"]} == {"to5", "to9", "to40", "to90"}
    assert distances == sorted(distances)
    assert distances[0] > 0
    assert distances[-1] < 1
    assert table["gain"]["mean"] > 0
    assert table["spearman"] is None or (table["spearman"]["exact"] and table["spearman"]["tasks"] == 4)
    apart = task_file(tmp_path, "apart", "[task]\nhigh = 5")  # the problems of to5, and not among the tasks
    table = evaluated(capsys, *arguments, "--trained-on", apart)["transfer"]
    assert table["gain"] is None
    assert (table["tasks"][0]["task"], table["tasks"][0]["distance"]) == ("to5", 0)
    assert main(["eval", *arguments, "--trained-on", "arithmetic"]) == 0
    assert "transfer: trained on arithmetic" in capsys.readouterr().out


# -- models and tasks ----------------------------------------------------------------------------------------------


def test_a_run_folder_means_its_best_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def weights(*extra: str) -> str:
        result = evaluated(capsys, str(run), "--tasks", "arithmetic", "--problems", "1", "--samples", "1", *extra)
        return Path(result["weights"]).name

    assert weights() == "step_000004", "without a best one, the last"
    assert "take --checkpoint last" in refused(capsys, str(run), "--tasks", "arithmetic", "--checkpoint", "best")
    write_json(run / "checkpoints" / "best.json", {"step": 2, "eval_accuracy": 0.5})
    assert weights() == "step_000002"
    assert find_checkpoint(run, "last").name == find_checkpoint(run, "4").name == "step_000004"
    assert "no checkpoint of step 3; valid: 2, 4, best, last" in refused(
        capsys, str(run), "--tasks", "arithmetic", "--checkpoint", "3"
    )
    assert 'must be "last", "best" or' in refused(capsys, str(run), "--tasks", "arithmetic", "--checkpoint", "lst")
    for folder in (run / "checkpoints").glob("step_*"):
        shutil.rmtree(folder)
    assert "holds no checkpoint yet" in refused(capsys, str(run), "--tasks", "arithmetic")


def test_a_benchmark_by_name(
    reward_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) + "\n" for i in range(20)))

    def benchmark(name: str, path: str) -> TaskConfig:
        assert name == "sums"
        return TaskConfig(name="file", path=path, answer_column="answer", rewards=("exact_match",), held_out_share=0.9)

    monkeypatch.setattr("delphic.evaluation.specs.benchmark", benchmark)
    arguments = ["builtin", "--tasks", f"sums={rows}", "--samples", "1", "--max-new-tokens", "4"]
    assert evaluated(capsys, *arguments, "--problems", "0")["tasks"]["sums"]["problems"] == 18


def test_damaged_weights_are_said_to_be_damaged(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "damaged"))
    weights = load_file(folder / "model.safetensors")
    save_file(
        {k: torch.full_like(v, torch.nan) for k, v in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    assert "log-probs are not finite" in refused(capsys, str(folder), "--tasks", "arithmetic", *FEW)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: MODEL, --tasks"),
        (["builtin"], "required: --tasks"),
        (["builtin", "--tasks", "arithmetics"], 'there is no task "arithmetics"; did you mean "arithmetic"'),
        (["builtin", "--tasks", "none.toml"], "none.toml: there is no such config file"),
        (["builtin", "--tasks", "=none.toml"], "none.toml"),
        (["builtin", "--tasks", "arithmetic", "arithmetic"], 'two tasks are called "arithmetic"'),
        (["nowhere", "--tasks", "arithmetic"], 'there is nothing at "nowhere"'),
        (["tests", "--tasks", "arithmetic"], "there is nothing at"),
        (["builtin", "--tasks", "arithmetic", "--before", "nowhere"], '--before: there is nothing at "nowhere"'),
        (["builtin", "--tasks", "arithmetic", "--before", "nowhere.json"], "nowhere.json: cannot be read"),
        (["builtin", "--tasks", "arithmetic", "--checkpoint", "last"], '"builtin" is no run folder'),
        (["builtin", "--tasks", "arithmetic", "--trained-on", "arithmetic"], "need --before"),
        (["builtin", "--tasks", "arithmetic", "--before", "x", "--trained-on", "arithmetic"], "needs another task"),
        (["builtin", "--tasks", "arithmetic", "--problems", "-1"], "--problems must be 0 (all) or more"),
        (["builtin", "--tasks", "arithmetic", "--problems", "x"], "argument --problems: invalid int value"),
        (["builtin", "--tasks", "arithmetic", "--samples", "0"], "--samples must be 1 or more, got 0"),
        (["builtin", "--tasks", "arithmetic", "--threads", "0"], "--threads must be 1 or more, got 0"),
        (["builtin", "--tasks", "arithmetic", "--seed", "-1"], "--seed must be at least 0"),
        (["builtin", "--tasks", "arithmetic", "--pass-at", "1,5"], "--pass-at 5: k must be from 1 to"),
        (["builtin", "--tasks", "arithmetic", "--pass-at", "two"], "--pass-at reads whole numbers"),
        (["builtin", "--tasks", "arithmetic", "--greedy", "--top-p", "0.5"], "leave out --temperature and --top-p"),
        (["builtin", "--tasks", "arithmetic", "--greedy", "--samples", "4"], "leave out --samples"),
        (["builtin", "--tasks", "arithmetic", "--temperature", "-1"], "temperature: input should be greater than 0"),
        (["builtin", "--tasks", "arithmetic", "--top-p", "2"], "top_p: input should be less than or equal to 1"),
        (["builtin", "--tasks", "arithmetic", "--max-new-tokens", "9999"], "exceed the model's context"),
        (["builtin", "--tasks", "arithmetic", "--output", "nowhere/x.json"], "there is no folder nowhere"),
        (["builtin", "--tasks", "arithmetic", "--sample", "x"], "--sample"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, *arguments)
    assert not list(tmp_path.iterdir())


def test_ctrl_c_ends_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("delphic.evaluation.measure.sample_held_out", interrupted)
    output = tmp_path / "r.json"
    assert main(["eval", "builtin", "--tasks", "arithmetic", *FEW, "--output", str(output)]) == 130
    assert "kept only when it is complete" in capsys.readouterr().err
    assert not output.exists()


def test_before_without_a_model_is_refused_before_anything_is_sampled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(capsys, "builtin", "--tasks", "arithmetic", "--before", str(tmp_path), *FEW)
    assert "holds no model: neither config.json nor adapter_config.json" in error
