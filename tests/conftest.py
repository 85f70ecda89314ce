"""Shared fixtures: a tiny random model, and a quick run's configuration."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two threads on a busy machine crawl, and bits may depend on the number

import pytest

CHARACTERS = "0123456789+-*/()= "


def make_tiny_model(folder: Path, seed: int = 0, layers: int = 2, width: int = 32) -> Path:
    """A random Llama with a character tokenizer, small enough for a test to train."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {"<pad>": 0, "<eos>": 1, "<unk>": 2, **{c: i + 3 for i, c in enumerate(CHARACTERS)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = 1
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def quick(tiny_model: Path) -> dict[str, Any]:
    """A run of a few seconds, as nested dictionaries: change what a test is about."""
    return {
        "objective": "grpo",
        "model": {"path": str(tiny_model), "threads": 1},
        "task": {"name": "arithmetic", "high": 3, "size": 50},
        "sampling": {"prompts": 4, "completions": 4, "max_new_tokens": 4},
        "train": {"steps": 3, "learning_rate": 1e-3, "estimate": False},
        "evaluation": {"problems": 4, "samples": 2, "every": 0},
        "checkpoint": {"every": 2},
    }


class Silent:
    """A display that shows nothing; with `stop_after`, it asks for an interruption after that step, as Ctrl-C does."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after = stop_after

    def start(self, *_: object) -> None: ...

    def step(self, row: dict[str, float], _timing: dict[str, float]) -> None:
        if self.stop_after is not None and row["step"] == self.stop_after:
            os.kill(os.getpid(), signal.SIGINT)

    def message(self, _text: str) -> None: ...

    def close(self) -> None: ...


def toml(path: Path, content: dict[str, Any]) -> Path:
    """The nested dictionaries of a test as a TOML file (JSON values are TOML values)."""
    lines = [f"{k} = {json.dumps(v)}" for k, v in content.items() if not isinstance(v, dict)]
    for section, values in content.items():
        if isinstance(values, dict):
            lines += [f"[{section}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items())]
    path.write_text("\n".join(lines))
    return path


def forkserver() -> ForkServerContext:
    """Starts children that have imported all that a run imports (a kill then hits the run, not an import), and in which
    no thread of torch runs. One server serves the whole session, so its imports are the same for everyone."""
    context = multiprocessing.get_context("forkserver")
    lazily = ["torch._dynamo", "transformers.models.llama.modeling_llama", "transformers.tokenization_utils_tokenizers"]
    context.set_forkserver_preload(["delphic.training.loop", "delphic.cli", "pandas", *lazily])
    return context


DIGITS_REWARD = '''
def digits(completions, **kwargs):
    """Varies within a random model's groups: share of digits, and a little for an odd length."""
    return [sum(c.isdigit() for c in text) / 4 + 0.1 * (len(text) % 2) for text in completions]
'''


@pytest.fixture(scope="session")
def reward_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a reward module, as a user would keep it beside the config."""
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "tiny_rewards.py").write_text(DIGITS_REWARD)
    return folder


@pytest.fixture
def lagged(quick: dict[str, Any]) -> dict[str, Any]:
    """Twelve steps with everything that a checkpoint must carry: lag, minibatches, epochs, refilling, a schedule."""
    quick["task"]["rewards"] = ["tiny_rewards:digits"]
    quick["sampling"] |= {"dynamic": True, "order": "epochs"}
    quick["train"] |= {
        "steps": 12,
        "sync_interval": 3,
        "sync_offset": 2,
        "minibatches": 2,
        "schedule": "cosine",
        "warmup_steps": 3,
        "reference_every": 5,
    }
    quick["evaluation"]["every"] = 4
    quick["checkpoint"] = {"every": 1, "keep": 2}
    return quick
