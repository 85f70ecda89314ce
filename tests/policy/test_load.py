"""Models come from a folder, a GGUF file or a hub name; with a chat template, adapters, half precision, checkpointing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Silent, make_tiny_model

from delphic.config import ModelConfig, make_config
from delphic.errors import UserError
from delphic.policy.load import load_policy
from delphic.policy.logprobs import score
from delphic.policy.model import Policy
from delphic.training.loop import train

PROMPTS = ["1+2=", "1+2=", "3*3+10-2=", "3*3+10-2="]
TOKENS = [np.array(t, dtype=np.int32) for t in ([4, 5, 6, 1], [7, 1], [9, 10, 11], [12])]
TEMPLATE = "{% for m in messages %}({{ m.role }}){{ m.content }}{% endfor %}{% if add_generation_prompt %}(assistant){% endif %}"


def run(
    content: dict[str, Any],
    folder: Path,
    rewards: Path | None = None,
    resume: bool = False,
    stop_after: int | None = None,
) -> list[dict[str, Any]]:
    outcome = train(make_config(content, "test"), folder, rewards or folder.parent, resume, Silent(stop_after))
    return outcome.rows


def logp(policy: Policy) -> np.ndarray:
    return score(policy, [policy.encode(p) for p in PROMPTS], TOKENS, 1.0).logp.detach().numpy()


@pytest.mark.parametrize("path", ["nothing/here/at/all", "./model", "model.gguf", "/tmp/none"])
def test_a_path_with_nothing_there_is_refused_in_a_sentence(path: str) -> None:
    with pytest.raises(UserError, match=r"model\.path: there is nothing at"):
        load_policy(path)


def test_a_hub_name_without_a_hub_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants
    import transformers.utils.hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(transformers.utils.hub, "is_offline_mode", lambda: True)
    with pytest.raises(UserError, match=r'"org/none" cannot be loaded .* no such folder, and the hub gave nothing'):
        load_policy("org/none")


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_text("x")
    with pytest.raises(UserError, match=r"no \.gguf one"):
        load_policy(str(tmp_path / "model.bin"))


def test_a_gguf_file_becomes_a_plain_model_that_trains_and_saves(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package reads GGUF files")
    writer = gguf.GGUFWriter(str(tmp_path / "tiny.gguf"), "llama")
    width, heads, layers, words = 32, 2, 1, 40
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(64)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(words)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<eos>", *[chr(33 + i) for i in range(words - 2)], "!A"])
    writer.add_token_merges(["! A"])
    writer.add_token_types([gguf.TokenType.NORMAL] * words)
    writer.add_token_scores([0.0] * words)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    rng = np.random.default_rng(0)
    shapes = {"attn_q": (32, 32), "attn_k": (32, 32), "attn_v": (32, 32), "attn_output": (32, 32)}
    shapes |= {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64), "attn_norm": (32,), "ffn_norm": (32,)}
    writer.add_tensor("token_embd.weight", rng.normal(size=(words, width)).astype(np.float32))
    writer.add_tensor("output_norm.weight", np.ones(width, dtype=np.float32))
    for name, shape in shapes.items():
        writer.add_tensor(f"blk.0.{name}.weight", rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    policy = load_policy(str(tmp_path / "tiny.gguf"))
    embedding = policy.model.get_input_embeddings().weight
    assert torch.equal(embedding.detach(), torch.from_numpy(np.random.default_rng(0).normal(size=(40, 32))).float())
    assert embedding.requires_grad
    assert policy.eos == {0}
    policy.save(tmp_path / "plain")
    assert load_policy(str(tmp_path / "plain")).fingerprint() == policy.fingerprint()


def test_a_prompt_goes_into_the_chat_template_once(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = make_tiny_model(tmp_path / "model")
    plain = load_policy(str(folder), ModelConfig(chat=True))
    with pytest.raises(UserError, match="the model has no chat template"):
        plain.encode("1+2=")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    policy = load_policy(str(folder), ModelConfig(chat=True, system="7"))
    assert policy.render("1+2=") == "(system)7(user)1+2=(assistant)"
    assert policy.render([{"role": "user", "content": "1"}]) == "(system)7(user)1(assistant)"
    assert policy.render([{"role": "system", "content": "2"}]) == "(system)2(assistant)"
    unasked = load_policy(str(folder))
    assert unasked.render("1+2=") == "1+2=", "plain text stays as it is unless model.chat says otherwise"
    assert unasked.render([{"role": "user", "content": "1"}]) == "(user)1(assistant)"
    assert len(policy.encode("1+2=")) == len("(system)7(user)1+2=(assistant)")


def test_checkpointed_layers_give_the_same_gradient(tmp_path: Path) -> None:
    folder = str(make_tiny_model(tmp_path / "model"))
    found = []
    for keeps_less in (False, True):
        policy = load_policy(folder, ModelConfig(gradient_checkpointing=keeps_less))
        assert policy.shares_prefix is not keeps_less
        calls: list[int] = []
        scored = score(policy, [policy.encode(p) for p in PROMPTS], TOKENS, 1.0)
        policy.model.model.layers[0].input_layernorm.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        scored.logp.sum().backward()
        found.append(({n: p.grad for n, p in policy.parameters().items()}, len(calls)))
    (plain, _), (checkpointed, passes) = found
    assert passes == 1, "a layer runs once more for the gradient"
    for name, gradient in plain.items():
        assert torch.allclose(checkpointed[name], gradient, rtol=1e-4, atol=1e-5), name


def test_logits_made_in_pieces_give_the_same_loss_and_gradient(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for numbers in (1 << 24, 50):  # 50 numbers: two positions at a time
        monkeypatch.setattr("delphic.policy.logprobs.LOGITS", numbers)
        policy = load_policy(str(tiny_model))
        largest: list[int] = []
        policy.model.get_output_embeddings().register_forward_hook(
            lambda _m, _i, out, largest=largest: largest.append(out.numel())
        )
        scored = score(policy, [policy.encode(p) for p in PROMPTS], TOKENS, 0.7, with_entropy=True)
        assert scored.entropy is not None
        (scored.logp.sum() + scored.entropy.sum()).backward()
        found.append((scored, {n: p.grad for n, p in policy.parameters().items()}, max(largest)))
    (whole, gradient, _), (cut, cut_gradient, most) = found
    assert most <= 50
    assert torch.allclose(whole.logp, cut.logp, atol=1e-6)
    assert torch.allclose(whole.entropy, cut.entropy, atol=1e-6)
    for name, g in gradient.items():
        assert torch.allclose(g, cut_gradient[name], rtol=1e-4, atol=1e-5), name


def test_adapters_train_alone_resume_to_the_same_bits_and_merge(
    quick: dict[str, Any], tmp_path: Path, reward_folder: Path
) -> None:
    pytest.importorskip("peft")
    quick["model"]["lora_rank"] = 2
    quick["objective"] = {"preset": "grpo", "kl": "k3", "kl_coefficient": 0.1}
    quick["task"]["rewards"] = ["tiny_rewards:digits"]
    quick["train"]["steps"] = 4
    quick["checkpoint"]["every"] = 1
    whole = run(quick, tmp_path / "whole", reward_folder)
    run(quick, tmp_path / "cut", reward_folder, stop_after=2)
    assert run(quick, tmp_path / "cut", reward_folder, resume=True) == whole
    saved = tmp_path / "whole" / "checkpoints" / "step_000004"
    assert (saved / "adapter_model.safetensors").exists()
    assert not (saved / "model.safetensors").exists(), "the base model is not copied into every checkpoint"
    config = make_config(quick, "test").model
    base = load_policy(config.path)
    fresh = load_policy(config.path, config)
    assert all("lora" in name for name in fresh.parameters())
    assert np.array_equal(logp(fresh), logp(base)), "fresh adapters change nothing"
    trained, merged = load_policy(config.path, config, saved), load_policy(str(saved))
    assert not np.allclose(logp(trained), logp(base))
    assert np.allclose(logp(trained), logp(merged), atol=1e-5)
    with trained.without_adapters():
        assert np.array_equal(logp(trained), logp(base)), "the reference of a run with adapters"


def test_an_adapter_for_a_layer_that_is_not_there_is_refused(tiny_model: Path) -> None:
    pytest.importorskip("peft")
    with pytest.raises(UserError, match=r"model\.lora_targets: .*none_such"):
        load_policy(str(tiny_model), ModelConfig(lora_rank=2, lora_targets=("none_such",)))


@pytest.mark.parametrize("masters", [True, False])
def test_half_precision_trains_and_resumes_to_the_same_bits(
    quick: dict[str, Any], tmp_path: Path, reward_folder: Path, masters: bool
) -> None:
    quick["task"]["rewards"] = ["tiny_rewards:digits"]
    quick["model"]["dtype"] = "bfloat16"
    quick["train"] |= {"steps": 4, "master_weights": masters}
    quick["checkpoint"]["every"] = 1
    whole = run(quick, tmp_path / "whole", reward_folder)
    run(quick, tmp_path / "cut", reward_folder, stop_after=2)
    assert run(quick, tmp_path / "cut", reward_folder, resume=True) == whole
    saved = tmp_path / "whole" / "checkpoints" / "step_000004"
    assert json.loads((saved / "config.json").read_text())["dtype"] == "bfloat16"


def test_float32_copies_keep_updates_that_half_precision_would_lose(tiny_model: Path) -> None:
    from delphic.config import TrainConfig
    from delphic.training.optimiser import Optimiser

    moved = {}
    for masters in (True, False):
        parameter = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
        optimiser = Optimiser(
            {"w": parameter}, TrainConfig(optimizer="sgd", learning_rate=1e-3, master_weights=masters, steps=20)
        )
        for number in range(20):
            optimiser.zero()
            assert parameter.grad is not None
            parameter.grad += 1
            optimiser.step(number)
        moved[masters] = float(1 - parameter.detach())
    assert moved[False] == 0.0, "1 − 0.001 rounds to 1"
    assert moved[True] == pytest.approx(0.02, rel=0.1)
