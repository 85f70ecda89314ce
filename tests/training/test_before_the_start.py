"""What is looked at before a run starts: prompts that fit, memory that is enough, trackers that exist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Silent

from delphic.config import make_config
from delphic.errors import UserError
from delphic.report.terminal import TerminalDisplay
from delphic.report.trackers import Tracked
from delphic.training.estimate import count_memory
from delphic.training.loop import build_parts, train


class Heard(Silent):
    """A display that keeps what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


def run(content: dict[str, Any], folder: Path, display: Any = None) -> list[dict[str, Any]]:
    return train(make_config(content, "test"), folder, folder.parent, False, display or Silent()).rows


@pytest.fixture
def long_and_short(quick: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    rows = [{"prompt": "1+" * n + "1=", "answer": "1"} for n in (1, 2, 3, 40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    quick["task"] = {
        "name": "file",
        "path": str(tmp_path / "rows.jsonl"),
        "answer_column": "answer",
        "rewards": ["exact_match"],
        "held_out_share": 0,
    }
    quick["evaluation"]["problems"] = 0
    return quick


def test_a_prompt_beyond_the_context_is_refused_before_the_start(
    long_and_short: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(
        UserError, match=r"training problem \d: its prompt of 82 tokens and 4 new ones exceed .* 64; lower"
    ):
        run(long_and_short, tmp_path / "run")
    assert not (tmp_path / "run").exists(), "nothing was written"


def test_no_advice_that_cannot_help(long_and_short: dict[str, Any], tmp_path: Path) -> None:
    long_and_short["sampling"]["max_new_tokens"] = 1000
    with pytest.raises(UserError, match=r"lower sampling\.max_new_tokens") as error:
        run(long_and_short, tmp_path / "run")
    assert "max_prompt_tokens" not in str(error.value)


def test_a_run_without_a_finite_reward_says_so(quick: dict[str, Any], reward_folder: Path, tmp_path: Path) -> None:
    (reward_folder / "no_rewards.py").write_text("def none(completions, **_):\n    return [None] * len(completions)\n")
    quick["task"]["rewards"] = ["no_rewards:none"]
    heard = Heard()
    train(make_config(quick, "test"), tmp_path / "run", reward_folder, False, heard)
    assert sum("no completion has a finite reward" in text for text in heard.texts) == 3


def test_such_problems_can_be_left_out_and_are_counted(long_and_short: dict[str, Any], tmp_path: Path) -> None:
    long_and_short["sampling"]["max_prompt_tokens"] = 60
    heard = Heard()
    assert len(run(long_and_short, tmp_path / "run", heard)) == 3
    assert "left out: 1 problems with more than 60 tokens" in heard.texts
    long_and_short["sampling"]["max_prompt_tokens"] = 1
    with pytest.raises(UserError, match="leaves no training problem"):
        run(long_and_short, tmp_path / "none")


def test_the_estimate_changes_no_bits_and_names_memory_and_time(
    lagged: dict[str, Any], reward_folder: Path, tmp_path: Path
) -> None:
    rows = {}
    for looked in (True, False):
        lagged["train"] |= {"estimate": looked, "steps": 4, "warmup_steps": 1}
        heard = Heard()
        config = make_config(lagged, "test")
        rows[looked] = train(config, tmp_path / str(looked), reward_folder, False, heard).rows
        assert any("GB of" in text and "s a step" in text for text in heard.texts) is looked
    assert rows[True] == rows[False]


def test_memory_counts_what_a_run_holds(quick: dict[str, Any], tmp_path: Path) -> None:
    def counted(**train_options: Any) -> Any:
        config = make_config(quick | {"train": quick["train"] | train_options}, "test")
        return count_memory(build_parts(config, tmp_path).policy, config, prompt=8)

    plain = counted()
    assert plain.gradients == plain.weights, "all weights are trained"
    assert plain.optimiser == 2 * plain.weights, "Adam's two moments"
    assert counted(optimizer="sgd").optimiser == 0
    assert counted(reference_every=0).reference == 0 < plain.reference
    small, large = counted(token_budget=64), counted(token_budget=128)
    assert large.activations == pytest.approx(2 * small.activations, rel=0.01)


@pytest.mark.parametrize(
    ("available", "advice"),
    [(1e5, r"model\.lora_rank"), (0.50062e9, r"lower train\.token_budget \(now 16384\)")],
)
def test_a_run_that_cannot_fit_is_refused_with_the_setting_to_change(
    available: float, advice: str, quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delphic.training.estimate._available", lambda _device: available)
    quick["train"]["estimate"] = True
    with pytest.raises(UserError, match=advice):
        run(quick, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused_with_the_nearest() -> None:
    pytest.importorskip("accelerate")
    with pytest.raises(UserError, match=r'no tracker "wandbb"; did you mean "wandb"'):
        Tracked(Silent(), ("wandbb",))


def test_figures_reach_a_tracker(quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate")
    logged: list[tuple[int, dict[str, Any]]] = []

    class Fake:
        requires_logging_directory = False

        def __init__(self, name: str) -> None:
            assert name == "delphic"

        def store_init_configuration(self, values: dict[str, Any]) -> None:
            assert values["sampling.prompts"] == 4
            assert all(isinstance(v, (int, float, str, bool)) for v in values.values())

        def log(self, values: dict[str, Any], step: int) -> None:
            logged.append((step, values))

        def finish(self) -> None:
            logged.append((-1, {}))

    from accelerate import tracking

    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "fake", Fake)
    rows = run(quick, tmp_path / "run", Tracked(Silent(), ("fake",)))
    assert [step for step, _ in logged] == [0, 1, 2, 3, -1]
    assert logged[1][1]["reward_mean"] == rows[1]["reward_mean"]
    assert "seconds_total" in logged[1][1]


def test_a_tracker_without_its_package_is_refused_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", list)
    with pytest.raises(UserError, match=r'trackers: "wandb" needs its package: pip install wandb'):
        Tracked(Silent(), ("wandb",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"trackers": "wandb"}, r'trackers: input should be a list, such as \["a", "b"\], got \'wandb\''),
        ({"model": {"lora_alpha": 4}}, r"model: lora_alpha is for adapters; set model\.lora_rank"),
        ({"model": {"lora_targets": ["x"]}}, r"model: lora_targets is for adapters; set model\.lora_rank"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_config(content, "test")


def test_a_step_without_rewards_is_shown_as_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    display = TerminalDisplay()
    display.start(make_config({"train": {"steps": 1}}, "test"), 0)
    display.step({"step": 1, "lag_mean": 0.0}, {})
    display.close()
    error = capsys.readouterr().err
    assert "step 1/1" in error
    assert "before training" not in error
