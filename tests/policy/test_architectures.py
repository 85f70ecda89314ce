"""Whatever its attention is made of, a model is scored as it was sampled, alone and in a batch of unequal prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import make_tiny_model

from delphic.policy.load import load_policy
from delphic.policy.logprobs import score
from delphic.policy.model import Policy
from delphic.policy.sampling import Completions, SamplingSettings, sample
from delphic.randomness import Purpose

PROMPTS = ["1+2=", "3*3+10-2=", "7=", "(1-2)*13+5="]
TEMPERATURE = 0.7
SHARED = {
    "vocab_size": 21,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "initializer_range": 0.2,
}
ROTARY = {"intermediate_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 64}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "an ordinary one": ("LlamaConfig", ROTARY),
    "eager attention": ("LlamaConfig", ROTARY),
    "eager attention only, local layers": (
        "GPTNeoConfig",
        {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "window_size": 4},
    ),
    "a sliding window": ("MistralConfig", {**ROTARY, "sliding_window": 4}),
    "a sliding window in every other layer, soft caps": (
        "Gemma2Config",
        {**ROTARY, "sliding_window": 4, "head_dim": 16, "initializer_range": 0.05},
    ),
    "ALiBi": ("BloomConfig", {"n_layer": 2, "n_head": 2}),
    "positions read off the mask": ("OPTConfig", {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "several queries a key": ("Qwen3Config", {**ROTARY, "num_key_value_heads": 1, "head_dim": 16}),
    "scaled logits": ("GraniteConfig", {**ROTARY, "logits_scaling": 2.0}),
    "Qwen2, a bias on queries": ("Qwen2Config", ROTARY),
    "Gemma 3, two kinds of masks": (
        "Gemma3TextConfig",
        {**ROTARY, "sliding_window": 4, "head_dim": 16, "num_hidden_layers": 6, "initializer_range": 0.05},
    ),
    "GPT-2, learned positions": ("GPT2Config", {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}),
    "Phi, a part of each head rotates": ("PhiConfig", ROTARY),
    "Phi-3, joint projections": ("Phi3Config", ROTARY),
    "OLMo 2, norms after": ("Olmo2Config", ROTARY),
    "experts": (
        "Qwen3MoeConfig",
        {**ROTARY, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
}


def make(folder: Path, kind: str, changes: dict[str, Any]) -> str:
    """A random model of that kind beside the tiny model's tokenizer."""
    make_tiny_model(folder)
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**SHARED, **changes})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


def draw(policy: Policy, prompts: list[str], count: int, rows: np.ndarray, batch_rows: int = 512) -> Completions:
    settings = SamplingSettings(TEMPERATURE, 1.0, max_new_tokens=10, stop="", batch_rows=batch_rows)
    return sample(policy, prompts, count, settings, seed=0, purpose=Purpose.TRAIN_SAMPLE, step=1, rows=rows)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_sampled_is_what_is_scored(kind: str, tmp_path: Path) -> None:
    name, changes = KINDS[kind]
    policy = load_policy(make(tmp_path / "model", name, changes))
    if kind == "eager attention":  # a choice made at loading, not one that is saved with a model
        policy.model.set_attn_implementation("eager")
    out = draw(policy, PROMPTS, 6, np.arange(24))
    assert max(len(t) for t in out.tokens) == 10
    scored = score(policy, out.prompt_tokens, out.tokens, TEMPERATURE).logp.detach().numpy()
    for i, logp in enumerate(out.logp):
        assert np.allclose(scored[i, : len(logp)], logp, atol=2e-5), "the ratio at lag 0 is 1"
    few = draw(policy, PROMPTS, 6, np.arange(24), batch_rows=12)  # groups that wait take the place of finished ones
    assert all(np.array_equal(a, b) for a, b in zip(out.tokens, few.tokens, strict=True))
    assert all(np.allclose(a, b, atol=2e-5) for a, b in zip(out.logp, few.logp, strict=True))
    for row in range(0, 24, 3):
        alone = draw(policy, [PROMPTS[row // 6]], 1, np.array([row]))
        assert np.array_equal(alone.tokens[0], out.tokens[row])


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_decoding_is_the_generate_of_transformers(kind: str, tmp_path: Path) -> None:
    name, changes = KINDS[kind]
    policy = load_policy(make(tmp_path / "model", name, changes))
    settings = SamplingSettings(0.0, 1.0, max_new_tokens=10, stop="", batch_rows=512)
    ours = sample(policy, PROMPTS, 1, settings, seed=0, purpose=Purpose.EVALUATE, step=0, rows=np.arange(len(PROMPTS)))
    for prompt, tokens in zip(PROMPTS, ours.tokens, strict=True):
        ids = torch.from_numpy(policy.encode(prompt)).long()[None]
        theirs = policy.model.generate(ids, max_new_tokens=10, do_sample=False, eos_token_id=sorted(policy.eos))
        assert theirs[0, ids.shape[1] :].tolist() == tokens.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_shared_by_its_completions_gives_the_loss_and_gradient_of_rows_alone(
    kind: str, tmp_path: Path
) -> None:
    name, changes = KINDS[kind]
    policy = load_policy(make(tmp_path / "model", name, changes))
    assert policy.shares_prefix
    rng = np.random.default_rng(0)
    prompts = [policy.encode(p) for p in PROMPTS for _ in range(5)]
    tokens = [rng.integers(3, 21, size=rng.integers(1, 9)).astype(np.int32) for _ in prompts]
    weights = torch.from_numpy(rng.normal(size=(len(tokens), max(len(t) for t in tokens)))).float()
    found, through = [], []
    inputs = policy.model.get_input_embeddings()
    inputs.register_forward_hook(lambda _module, ids, _out: through.append(ids[0].numel()))
    for shared in (True, False):
        policy.shares_prefix = shared
        through.append(0)
        policy.model.zero_grad()
        loss = (score(policy, prompts, tokens, TEMPERATURE).logp * weights).sum()
        loss.backward()
        found.append((loss.detach(), {n: p.grad for n, p in policy.parameters().items() if p.grad is not None}))
    (loss, gradient), (plain_loss, plain) = found
    second = len(through) - 1 - through[::-1].index(0)
    assert sum(through[:second]) < 0.7 * sum(through[second:]), "prompts went through the model once, not five times"
    assert torch.allclose(loss, plain_loss, rtol=1e-5)
    assert gradient.keys() == plain.keys()
    scale = max(float(g.abs().max()) for g in plain.values())
    for n, g in plain.items():
        assert bool(torch.isfinite(g).all())
        assert float((gradient[n] - g).abs().max()) < 1e-5 * scale, n


@pytest.mark.parametrize(
    ("kind", "changes"), [("MambaConfig", {"state_size": 4}), ("Lfm2Config", {**ROTARY, "full_attn_idxs": [1]})]
)
def test_layers_with_a_recurrent_state_get_rows_of_their_own(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    if not hasattr(transformers, kind):
        pytest.skip(f"this transformers has no {kind}")
    policy = load_policy(make(tmp_path / "model", kind, changes))
    assert not policy.repeats_cache
    assert not policy.shares_prefix
    out = draw(policy, PROMPTS, 6, np.arange(24))
    scored = score(policy, out.prompt_tokens, out.tokens, TEMPERATURE).logp.detach().numpy()
    for i, logp in enumerate(out.logp):
        assert np.allclose(scored[i, : len(logp)], logp, atol=2e-5), "the ratio at lag 0 is 1"


def test_pitfall_24_a_start_token_is_there_once_and_only_in_the_prompt(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    folder = make_tiny_model(tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<unk> $A", special_tokens=[("<unk>", 2)])
    tokenizer.save_pretrained(folder)
    policy = load_policy(str(folder))
    out = draw(policy, PROMPTS, 2, np.arange(8))
    for prompt, ids in zip([p for p in PROMPTS for _ in range(2)], out.prompt_tokens, strict=True):
        assert ids[0] == 2
        assert len(ids) == 1 + len(prompt)
        assert 2 not in ids[1:]
    for text, tokens in zip(out.text, out.tokens, strict=True):
        assert text == policy.decode(tokens), "decoded for people; scored from the ids"
