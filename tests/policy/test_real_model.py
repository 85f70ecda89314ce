"""The identities that hold for tiny models, on a real one: DELPHIC_REAL_MODEL names its folder (SmolLM2-135M-Instruct)."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from delphic.config import make_config
from delphic.policy.load import load_policy
from delphic.policy.logprobs import score
from delphic.policy.model import Policy
from delphic.policy.sampling import Completions, SamplingSettings, sample
from delphic.randomness import Purpose
from delphic.tasks import evaluate, load_rewards, make_task

FOLDER = os.environ.get("DELPHIC_REAL_MODEL", "")
pytestmark = pytest.mark.skipif(not Path(FOLDER, "config.json").is_file(), reason="DELPHIC_REAL_MODEL names no model")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "smollm2"
PROMPTS = ["12 + 5 = 17\n40 + 8 =", "The capital of France is", "3 * 3 = 9\n2 * 4 = 8\n5 * 3 ="]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(FOLDER)


def draw(policy: Policy, prompts: list[str], count: int, temperature: float = 1.0, **more: int) -> Completions:
    settings = SamplingSettings(temperature, 1.0, more.get("length", 8), "\n", more.get("batch_rows", 512))
    rows = np.arange(len(prompts) * count)
    return sample(policy, prompts, count, settings, seed=0, purpose=Purpose.TRAIN_SAMPLE, step=1, rows=rows)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_ratio_is_one_at_lag_zero(policy: Policy, temperature: float) -> None:
    out = draw(policy, PROMPTS, 4, temperature)
    with torch.no_grad():
        scored = score(policy, out.prompt_tokens, out.tokens, temperature).logp.numpy()
    worst = max(float(np.abs(scored[i, : len(p)] - p).max()) for i, p in enumerate(out.logp))
    assert worst < 1e-3, worst


def test_a_row_does_not_depend_on_its_batch(policy: Policy) -> None:
    together = draw(policy, PROMPTS, 4)
    few = draw(policy, PROMPTS, 4, batch_rows=4)
    flips = sum(not np.array_equal(a, b) for a, b in zip(together.tokens, few.tokens, strict=True))
    assert flips == 0, "a uniform within rounding of a boundary may flip a token; none does here"


def test_greedy_is_the_generate_of_transformers(policy: Policy) -> None:
    ours = draw(policy, PROMPTS, 1, temperature=0.0, length=12)
    stops = sorted(policy.eos | policy.tokens_containing("\n"))
    for prompt, tokens in zip(PROMPTS, ours.tokens, strict=True):
        ids = torch.from_numpy(policy.encode(prompt)).long()[None]
        theirs = policy.model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=stops)[0, ids.shape[1] :]
        assert theirs.tolist() == tokens.tolist()


def test_tokens_in_are_tokens_out_over_the_whole_vocabulary(policy: Policy) -> None:
    """Every id is scored as itself: nothing is decoded and encoded again on the way."""
    ids = np.arange(policy.vocabulary, dtype=np.int32)
    prompt = policy.encode("a")
    with torch.no_grad():
        direct = policy.model(torch.from_numpy(prompt).long()[None]).logits[0, -1].log_softmax(-1)
        firsts = []
        for part in np.array_split(ids, 48):
            scored = score(policy, [prompt] * len(part), [part[i : i + 1] for i in range(len(part))], 1.0).logp[:, 0]
            firsts.append(scored)
    assert torch.allclose(torch.cat(firsts), direct, atol=1e-4)


def test_the_end_token_is_learned(policy: Policy) -> None:
    out = draw(policy, ["Q: 1 + 1?\nA: 2<|im_end|>\nQ: 2 + 2?\nA:"], 8, length=6)
    end = next(iter(policy.eos))
    tokens = [np.append(t[:-1], end).astype(np.int32) for t in out.tokens]
    policy.model.zero_grad()
    before = score(policy, out.prompt_tokens, tokens, 1.0).logp
    last = torch.stack([row[len(t) - 1] for row, t in zip(before, tokens, strict=True)])
    last.sum().backward()
    head = policy.model.get_output_embeddings().weight.grad
    assert head is not None
    assert float(head[end].abs().sum()) > 0
    policy.model.zero_grad(set_to_none=True)


def test_rewards_agree_with_an_independent_count(policy: Policy, tmp_path: Path) -> None:
    """The example's task, scored by a few plain lines."""
    sys.path.insert(0, str(EXAMPLES))
    from make_tasks import make  # type: ignore[import-not-found]

    rows = make("two_digits_plus_one")[:24]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    content = {
        "task": {"name": "file", "path": str(tmp_path / "rows.jsonl"), "answer_column": "answer"}
        | {"rewards": ["exact_match"], "held_out_share": 0},
        "model": {"path": FOLDER},
        "train": {"estimate": False},
    }
    config = make_config(content, "test")
    task = make_task(config.task, 0, 0, tmp_path)
    rewards = load_rewards(task, config.task.rewards, (), tmp_path)
    problems = list(task.train)
    out = draw(policy, [str(p.prompt) for p in problems], 4, temperature=0.7, length=5)
    repeated = [p for p in problems for _ in range(4)]
    total, _ = evaluate(rewards, repeated, out.text, out.tokens)
    right = 0
    for problem, text in zip(repeated, out.text, strict=True):
        a, b = map(int, re.findall(r"(\d+) \+ (\d+) =$", str(problem.prompt))[0])
        right += text.strip() == str(a + b)
    assert total.sum() == right
    assert 0.1 < right / len(repeated) < 0.5, "the pass rate that the example starts from"
