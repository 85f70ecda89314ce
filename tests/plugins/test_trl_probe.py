"""The probe inside TRL: the raised rate reaches the optimiser and nobody else, and the fit finds what was put in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("trl", reason="trl is not installed")

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from delphic.dynamics.response import raised_slope
from delphic.errors import UserError
from delphic.plugins.trl import DelphicDiagnoseCallback, DelphicProbeCallback


def digits(completions: list[str], **kwargs: Any) -> list[float]:
    return [sum(c.isdigit() for c in text) / 4 + 0.1 * (len(text) % 2) for text in completions]


def make(folder: Path, output: Path, **options: Any) -> GRPOTrainer:
    settings: dict[str, Any] = {"logging_steps": 1, "lr_scheduler_type": "cosine", "max_steps": 16, **options}
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=digits,
        train_dataset=Dataset.from_dict({"prompt": ["1+2-1=", "2+2-1=", "3+1-1="]}),
        args=GRPOConfig(
            output_dir=str(output),
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=4,
            learning_rate=1e-4,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            bf16=False,
            disable_dropout=True,
            gradient_checkpointing=False,
            seed=7,
            **settings,
        ),
    )


class Spy(TrainerCallback):
    """The rate that the optimiser steps with, and the weights after the step."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.weights: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])

    def on_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
        self.weights.append(torch.cat([p.detach().flatten().clone() for p in model.parameters()]))


def test_the_rate_is_raised_for_a_few_steps_and_put_back_exactly(tiny_model: Path, tmp_path: Path) -> None:
    spies, trainers = [Spy(), Spy()], []
    probe = DelphicProbeCallback(every=6, steps=2, factor=3)
    doctor = DelphicDiagnoseCallback(every=8)
    for number, spy in enumerate(spies):
        trainer = make(tiny_model, tmp_path / str(number))  # seeds what it draws
        if number:
            assert probe.attach(trainer) is probe
        else:
            trainer.add_callback(doctor)
        trainer.add_callback(spy)
        trainer.train()
        trainers.append(trainer)
    assert doctor.live.last is not None  # TRL's own rows are understood
    assert {"reward", "frac_reward_zero_std", "grad_norm"} <= doctor.live.rows[0].keys()
    assert [f.name for f in doctor.live.last.findings if f.severity == "info"] == ["too_short"]
    raised = [probe.raises(k) for k in range(16)]
    assert [k for k in range(16) if raised[k]] == [6, 7, 12, 13]
    own, seen = np.array(spies[0].rates), np.array(spies[1].rates)
    assert np.array_equal(seen, np.where(raised, own * 3, own)), "bit for bit, under a schedule that changes each step"
    same = [torch.equal(a, b) for a, b in zip(spies[0].weights, spies[1].weights, strict=True)]
    assert same.index(False) == 6, "the first raised update is the first that differs"
    logged = [[row["learning_rate"] for row in t.state.log_history if "learning_rate" in row] for t in trainers]
    assert logged[0] == logged[1]
    rows = [row for row in trainers[1].state.log_history if "delphic/probe_reward" in row]
    assert len(rows) == 1, "the first window is complete, the second one is not"
    assert rows[0]["delphic/probe_reward_low"] < rows[0]["delphic/probe_reward"] < rows[0]["delphic/probe_reward_high"]
    assert "delphic/probe_log_grad_norm" in rows[0]
    assert "reward" in probe.result
    assert probe.verdict != "no window is complete yet"


def test_the_fit_finds_the_extra_slope_and_its_interval_covers() -> None:
    """400 fits of three windows, 95 % intervals: below 91 % covered comes once in 3,000 (binomial)."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(400):
        windows = []
        for start in (50, 100, 150):
            t = np.arange(start - 4.0, start + 9)
            raised = np.clip(t - start, 0, 4)
            windows.append((t, raised, rng.normal() + 0.01 * t + 0.05 * raised + rng.normal(0, 0.03, len(t))))
        found = raised_slope(windows)
        assert found is not None
        hits += found.low <= 0.05 <= found.high
    assert hits / 400 >= 0.91
    assert raised_slope([(np.arange(5.0), np.zeros(5), np.arange(5.0))]) is None, "no raised step, no answer"


def test_windows_that_cannot_work_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"every >= 3 × steps"):
        DelphicProbeCallback(every=10, steps=4)
    with pytest.raises(UserError, match="factor must be above 1"):
        DelphicProbeCallback(factor=1)
    with pytest.raises(UserError, match="logging_steps = 1"):
        DelphicProbeCallback().attach(make(tiny_model, tmp_path, logging_steps=5))
