"""Train the built-in model from scratch: a tiny Llama that can do the sums, but answers at random often enough.

    python scripts/train_builtin.py --out src/delphic/assets/arithmetic

How, and on what: `delphic.reproduce.pretrain`. The last stages see every expression, as pretraining does: what is held
out is held out from reinforcement learning.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from transformers import LlamaForCausalLM

from delphic.policy.load import load_policy
from delphic.policy.model import Policy
from delphic.policy.sampling import SamplingSettings, sample
from delphic.randomness import Purpose
from delphic.reproduce.pretrain import HIGH, LOW, STAGES, fit, make_model, write
from delphic.tasks.arithmetic import KINDS, Arithmetic


def measure(policy: Policy, samples: int = 16) -> dict[str, object]:
    """Held-out sampled accuracy, pass@16 and greedy accuracy, in all and by kind."""
    task = Arithmetic(LOW, HIGH)
    problems = task.held_out
    prompts = [str(p.prompt) for p in problems]

    def hits(temperature: float, count: int) -> np.ndarray:
        settings = SamplingSettings(temperature, 1.0, 6, "", 512)
        rows = np.arange(len(prompts) * count)
        out = sample(policy, prompts, count, settings, seed=1, purpose=Purpose.EVALUATE, step=0, rows=rows)
        repeated = [p for p in problems for _ in range(count)]
        return np.array(task.reward(repeated, out.text)).reshape(len(prompts), count)

    sampled, greedy = hits(1.0, samples), hits(1e-4, 1)
    kinds = np.array([p.columns["kind"] for p in problems])
    return {
        "sampled": float(sampled.mean()),
        f"pass@{samples}": float(sampled.max(1).mean()),
        "greedy": float(greedy.mean()),
        "sampled_by_kind": {k: float(sampled[kinds == k].mean()) for k in KINDS},
        "greedy_by_kind": {k: float(greedy[kinds == k].mean()) for k in KINDS},
    }


README = """# The built-in model

A {parameters:,}-parameter Llama with a character tokenizer, trained from scratch by `scripts/train_builtin.py` on
integer arithmetic (five kinds, operands 1 to 20), so that everything in delphic runs with no download. It can do the sums, and answers wrongly about as often as its training text did: reinforcement
learning has work. Its training text holds every expression; what the task holds out, it holds out from reinforcement
learning. Apache-2.0, like the project.

Held out, temperature 1: {sampled:.3f} of samples right, {passes:.3f} of problems within 16 samples; greedy {greedy:.3f}.
"""


def save(model: LlamaForCausalLM, folder: Path) -> dict[str, object]:
    """Write the folder in 16 bit, measure what was written, and note it beside."""
    write(model, folder)
    card = measure(load_policy(str(folder)))
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    text = README.format(
        parameters=model.num_parameters(), sampled=card["sampled"], passes=card["pass@16"], greedy=card["greedy"]
    )
    (folder / "README.md").write_text(text)
    print(folder, json.dumps(card), flush=True)
    return card


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=192)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    model = make_model(options.width, options.layers, options.seed)
    print(f"{model.num_parameters():,} parameters", flush=True)
    for number, stage in enumerate(STAGES):
        fit(model, stage, options.batch, options.seed + number, lambda text: print(text, flush=True))
    save(model, options.out)


if __name__ == "__main__":
    main()
