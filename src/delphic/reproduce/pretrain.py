"""Training a tiny Llama on arithmetic from scratch: the built-in model, and the other sizes that a study compares it with.

The text is what the arithmetic task generates. First the answers are right, so that the skill is learned; then a share
of them is wrong, as in text from the web, and the model learns to answer wrongly that often. Reinforcement learning has
that much to win back.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from delphic.tasks.arithmetic import KINDS, draw

CHARACTERS = "0123456789+-*/()="
PAD, EOS, UNK = 0, 1, 2
IDS = {c: i + 3 for i, c in enumerate(CHARACTERS)}
LOW, HIGH = 1, 20


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character; no token is added to a prompt."""
    vocabulary = {"<pad>": PAD, "<eos>": EOS, "<unk>": UNK, **IDS}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )


def make_model(width: int, layers: int, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(CHARACTERS) + 3,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def wrong(rng: random.Random, answer: str) -> str:
    """A plausible mistake: off by a little, off by ten, a changed digit, a lost or added sign, any number."""
    value = int(answer)
    while True:
        how = rng.random()
        if how < 0.35:
            guess = value + rng.choice((-3, -2, -1, 1, 2, 3))
        elif how < 0.55:
            guess = value + rng.choice((-20, -10, 10, 20))
        elif how < 0.7:
            digits = list(str(abs(value)))
            digits[rng.randrange(len(digits))] = rng.choice("0123456789")
            guess = int("".join(digits)) * (1 if value >= 0 else -1)
        elif how < 0.8:
            guess = -value
        else:
            guess = rng.randint(-60, 60) if value < 80 else rng.randint(1, 400)
        if guess != value:
            return str(guess)


def corpus(size: int, wrong_share: float, everything: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and answer mask, [size, width]; kinds in equal shares; `everything`: held-out ones too."""
    rng = random.Random(f"corpus/{seed}/{wrong_share}")
    width = 20
    ids = np.zeros((size, width), dtype=np.int64)
    learn = np.zeros((size, width), dtype=bool)
    kinds = list(KINDS)
    for i in range(size):
        problem = draw(rng, kinds[i % len(kinds)], LOW, HIGH, held_out=None if everything else False)
        answer = problem.columns["answer"]
        if rng.random() < wrong_share:
            answer = wrong(rng, answer)
        tokens = [IDS[c] for c in problem.prompt + answer] + [EOS]
        ids[i, : len(tokens)] = tokens
        learn[i, len(problem.prompt) : len(tokens)] = True
    return ids, learn


@dataclass(frozen=True)
class Stage:
    name: str
    steps: int
    rate: float
    wrong_share: float
    everything: bool


STAGES = (
    Stage("skill", 2200, 3e-3, 0.0, everything=False),
    Stage("polish", 1200, 1.5e-3, 0.0, everything=False),
    Stage("recall", 800, 1e-3, 0.0, everything=True),
    Stage("soften", 200, 3e-4, 0.48, everything=True),
)


def fit(model: LlamaForCausalLM, stage: Stage, batch: int, seed: int, note: Callable[[str], None]) -> None:
    """AdamW with warm-up and cosine decay on fresh text, cross-entropy on the answers alone."""
    steps, rate = stage.steps, stage.rate
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.05)
    rng = np.random.default_rng(seed)
    pool_ids, pool_learn = corpus(min(steps * batch, 400_000), stage.wrong_share, stage.everything, seed)
    model.train()
    started, shown = time.time(), []
    for step in range(steps):
        progress = step / steps
        scale = min(1.0, (step + 1) / 100) * (0.5 * (1 + np.cos(np.pi * progress)) * 0.98 + 0.02)
        for group in optimizer.param_groups:
            group["lr"] = rate * scale
        rows = rng.integers(len(pool_ids), size=batch)
        rows = rows[np.argsort((pool_ids[rows] != PAD).sum(1), kind="stable")]
        targets = int(pool_learn[rows].sum())
        optimizer.zero_grad()
        total = 0.0
        for part in np.split(rows, [batch // 2, 3 * batch // 4]):  # short and long rows apart: less padding
            width = int((pool_ids[part] != PAD).sum(1).max())
            x, chosen = torch.from_numpy(pool_ids[part, :width]), torch.from_numpy(pool_learn[part, 1:width])
            hidden = model.model(input_ids=x[:, :-1], use_cache=False).last_hidden_state[chosen]
            loss = torch.nn.functional.cross_entropy(model.lm_head(hidden), x[:, 1:][chosen], reduction="sum") / targets
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        shown.append(total)
        if (step + 1) % 200 == 0 or step + 1 == steps:
            mean = np.mean(shown[-200:])
            note(f"{stage.name} step {step + 1}/{steps}  loss {mean:.4f}  {time.time() - started:.0f} s")
    model.eval()


def write(model: LlamaForCausalLM, folder: Path) -> None:
    """The model in 16 bit and its tokenizer, in place of the folder; it appears whole or not at all."""
    half = LlamaForCausalLM(model.config).to(torch.float16)
    half.load_state_dict(model.state_dict())
    half.config.dtype = torch.float16
    unfinished = folder.with_name(f".{folder.name}.part")
    half.save_pretrained(unfinished)
    make_tokenizer().save_pretrained(unfinished)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.replace(folder)
