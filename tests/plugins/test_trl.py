"""TRL's trainer with delphic's objectives: the same as TRL where the objective is TRL's, and others besides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("trl", reason="trl is not installed")

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from delphic.errors import UserError
from delphic.plugins.trl import DelphicGRPOTrainer, Recorder
from delphic.rollouts import Rollouts
from delphic.tasks import Arithmetic

PROMPTS = [f"{a}+{b}-1=" for a in (1, 2, 3) for b in (1, 2)]


def digits(completions: list[str], **kwargs: Any) -> list[float]:
    return [sum(c.isdigit() for c in text) / 4 + 0.1 * (len(text) % 2) for text in completions]


def make(
    kind: type, folder: Path, output: Path, reward: Any = digits, prompts: list[str] = PROMPTS, **options: Any
) -> Any:
    objective = {"objective": options.pop("objective")} if "objective" in options else {}
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_completion_length": 5,
        "max_steps": 3,
        "learning_rate": 3e-4,
        "logging_steps": 1,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "bf16": False,
        "disable_dropout": True,
        "gradient_checkpointing": False,
        "seed": 7,
        **options,
    }
    return kind(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        args=GRPOConfig(output_dir=str(output), **settings),
        **objective,
    )


def history(trainer: Any, key: str) -> list[float]:
    return [row[key] for row in trainer.state.log_history if key in row]


def weights(trainer: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


TRLS_GRPO = {"preset": "grpo", "scale_epsilon": 1e-4}


@pytest.mark.parametrize(
    ("options", "objective"),
    [
        ({"loss_type": "grpo", "beta": 0.0}, TRLS_GRPO),
        ({"loss_type": "grpo", "beta": 0.1}, {**TRLS_GRPO, "kl_coefficient": 0.1, "kl_corrected": True}),
        ({"loss_type": "grpo", "beta": 0.0, "num_iterations": 2}, TRLS_GRPO),
        ({"loss_type": "dapo", "beta": 0.0, "epsilon_high": 0.28}, {"preset": "dapo", "scale_epsilon": 1e-4}),
        ({"loss_type": "dr_grpo", "beta": 0.0, "scale_rewards": "none"}, "dr_grpo"),
    ],
    ids=["grpo", "grpo with KL", "grpo two iterations", "dapo", "dr_grpo"],
)
def test_trls_own_objective_through_the_plugin_is_trl_step_by_step(
    options: dict[str, Any], objective: Any, tiny_model: Path, tmp_path: Path
) -> None:
    own = make(GRPOTrainer, tiny_model, tmp_path / "own", **options)
    own.train()
    plugin = make(DelphicGRPOTrainer, tiny_model, tmp_path / "plugin", objective=objective, **options)
    plugin.train()
    assert history(plugin, "reward") == pytest.approx(history(own, "reward"), abs=1e-6)
    assert history(plugin, "grad_norm") == pytest.approx(history(own, "grad_norm"), rel=1e-4)
    assert max(history(own, "grad_norm")) > 0
    assert float((weights(plugin) - weights(own)).abs().max()) < 2e-6  # float32 rounding, through Adam: 1.0e-6 was seen


@pytest.mark.parametrize(
    "objective", ["rec_ring_nois", "red_weight", "red_drop", "opmd", "asymre", "opo", "sapo", "gspo"]
)
def test_other_rows_train(objective: str, tiny_model: Path, tmp_path: Path) -> None:
    trainer = make(DelphicGRPOTrainer, tiny_model, tmp_path / "run", objective=objective, beta=0.0)
    before = weights(trainer).clone()
    trainer.train()
    assert max(history(trainer, "grad_norm")) > 0
    assert not torch.equal(weights(trainer), before)
    assert "delphic/masked_share" in trainer.state.log_history[0]


def test_the_built_in_model_learns_through_trl(tmp_path: Path) -> None:
    from importlib import resources

    folder = Path(str(resources.files("delphic") / "assets" / "arithmetic"))

    def right(prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
        return [float(c.strip() == str(eval(p[:-1]))) for p, c in zip(prompts, completions, strict=True)]

    for objective in ("rec_ring_nois", "red_weight"):
        trainer = make(
            DelphicGRPOTrainer,
            folder,
            tmp_path / objective,
            reward=right,
            prompts=[p.prompt for p in Arithmetic(size=200).train],
            objective=objective,
            per_device_train_batch_size=32,
            num_generations=8,
            max_steps=24,
            learning_rate=1e-4,
            beta=0.0,
        )
        trainer.train()
        rewards = history(trainer, "reward")
        assert np.mean(rewards[-8:]) > np.mean(rewards[:4]) + 0.05, objective


@pytest.mark.parametrize(
    ("objective", "piece"),
    [
        ("a2c", "critic"),
        ("oracle", "oracle"),
        ("best_baseline", "score norms"),
        ("pairwise", "scored log-probs"),
        ({"preset": "grpo", "entropy_bonus": 0.1}, "entropy"),
        ({"preset": "rloo", "kl": "k1", "kl_place": "reward", "kl_coefficient": 0.1}, "KL in the reward"),
    ],
)
def test_what_trl_cannot_serve_is_refused_by_the_missing_piece(
    objective: Any, piece: str, tiny_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"TRL cannot serve .* it needs {piece}"):
        make(DelphicGRPOTrainer, tiny_model, tmp_path, objective=objective)


def test_settings_that_would_change_the_objective_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="spans several generations"):
        make(DelphicGRPOTrainer, tiny_model, tmp_path, objective="grpo", steps_per_generation=1)


def test_an_untested_version_is_said_and_works(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delphic.plugins.trl.TESTED", "0.0.1")
    with pytest.warns(UserWarning, match=r"tested with trl 0\.0\.1"):
        trainer = make(DelphicGRPOTrainer, tiny_model, tmp_path, objective="grpo", beta=0.0, max_steps=1)
    trainer.train()
    assert trainer.state.global_step == 1


@pytest.mark.parametrize("kind", [GRPOTrainer, DelphicGRPOTrainer])
def test_a_recorder_writes_rollouts_and_metrics(kind: type, tiny_model: Path, tmp_path: Path) -> None:
    trainer = make(kind, tiny_model, tmp_path / "run", beta=0.0)
    Recorder(tmp_path / "record").attach(trainer)
    trainer.train()
    rows = [json.loads(line) for line in (tmp_path / "record" / "metrics.jsonl").read_text().splitlines()]
    rewards = [row["reward"] for row in rows if "reward" in row]
    files = sorted((tmp_path / "record" / "rollouts").glob("*.parquet"))
    assert len(files) == len(rewards) == 3
    for file, reward in zip(files, rewards, strict=True):
        rollouts, meta = Rollouts.read(file)
        assert meta["source"] == "trl"
        assert rollouts.reward.mean() == pytest.approx(reward, abs=1e-6)
        assert len(np.unique(rollouts.group)) == 2
        for i in range(len(rollouts)):
            assert len({rollouts.prompt[j] for j in np.flatnonzero(rollouts.group == rollouts.group[i])}) == 1
        assert rollouts.reward == pytest.approx(digits(rollouts.completion))
