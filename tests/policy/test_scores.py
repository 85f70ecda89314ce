"""Gram matrices of scores against a loop of backward passes, in float64."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from test_architectures import KINDS, make

from delphic.config import ModelConfig
from delphic.errors import UserError
from delphic.policy.load import load_policy
from delphic.policy.model import Policy
from delphic.policy.scores import group_scores

PROMPT = "3*3+10-2="
TEMPERATURE = 0.7
MODELS = [
    "an ordinary one",
    "several queries a key",
    "Qwen2, a bias on queries",
    "GPT-2, learned positions",
    "Gemma 3, two kinds of masks",
    "a sliding window in every other layer, soft caps",
    "Phi, a part of each head rotates",
    "Phi-3, joint projections",
    "scaled logits",
    "OLMo 2, norms after",
]


def completions(count: int = 5) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Tokens that repeat within and between completions, and one token of each but the shortest outside the loss."""
    rng = np.random.default_rng(0)
    tokens = [rng.integers(3, 12, size=n).astype(np.int32) for n in rng.integers(1, 8, size=count)]
    masks = [np.arange(len(t)) != 2 for t in tokens]
    return tokens, masks


def load(kind: str, folder: Path, tied: bool) -> Policy:
    name, changes = KINDS[kind]
    policy = load_policy(make(folder / "model", name, {**changes, "tie_word_embeddings": tied}))
    policy.model.double()
    return policy


def loop(policy: Policy, tokens: list[np.ndarray], masks: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """[G, …] gradients of log π(y), one backward pass each."""
    prompt = torch.from_numpy(policy.encode(PROMPT)).long()
    found: dict[str, list[torch.Tensor]] = {name: [] for name in policy.parameters()}
    for t, mask in zip(tokens, masks, strict=True):
        ids = torch.cat([prompt, torch.from_numpy(t).long()])[None]
        logits = policy.model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1] / TEMPERATURE
        logp = logits.log_softmax(-1)[torch.arange(len(t)), ids[0, len(prompt) :]]
        policy.model.zero_grad()
        (logp * torch.from_numpy(mask).double()).sum().backward()
        for name, p in policy.parameters().items():
            found[name].append(torch.zeros_like(p) if p.grad is None else p.grad.clone())
    return {name: torch.stack(rows) for name, rows in found.items()}


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", MODELS)
def test_the_gram_matrix_is_that_of_the_loop(kind: str, tied: bool, tmp_path: Path) -> None:
    policy = load(kind, tmp_path, tied)
    tokens, masks = completions()
    gradients = loop(policy, tokens, masks)
    flat = torch.cat([g.flatten(1) for g in gradients.values()], 1)
    found = group_scores(policy, policy.encode(PROMPT), tokens, masks, TEMPERATURE)
    assert relative(found.gram, (flat @ flat.T).numpy()) < 1e-9


@pytest.mark.parametrize("numbers", [1 << 26, 40])
def test_both_ways_and_any_slices_agree(numbers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delphic.policy.outer.NUMBERS", numbers)
    policy = load("an ordinary one", tmp_path, True)
    tokens, masks = completions()
    gradients = loop(policy, tokens, masks)
    prompt = policy.encode(PROMPT)
    rng = np.random.default_rng(1)
    factors = {n: torch.from_numpy(rng.uniform(0.5, 2, size=tuple(p.shape))) for n, p in policy.parameters().items()}
    scaled = torch.cat([(g * factors[n]).flatten(1) for n, g in gradients.items()], 1)
    found = group_scores(policy, prompt, tokens, masks, TEMPERATURE, precondition=factors)
    assert found.scaled is not None
    assert relative(found.scaled.gram, (scaled @ scaled.T).numpy()) < 1e-9
    plain = group_scores(policy, prompt, tokens, masks, TEMPERATURE)
    assert plain.scaled is None
    assert relative(found.gram, plain.gram) < 1e-9, "gradients made, and never made"
    few = [name for name in policy.parameters() if "q_proj" in name or "norm" in name]
    part = torch.cat([gradients[n].flatten(1) for n in few], 1)
    subset = group_scores(policy, prompt, tokens, masks, TEMPERATURE, only=few)
    assert relative(subset.gram, (part @ part.T).numpy()) < 1e-9


def test_layers_computed_twice_count_once(tmp_path: Path) -> None:
    name, changes = KINDS["an ordinary one"]
    folder = make(tmp_path / "model", name, changes)
    tokens, masks = completions()
    grams = []
    for again in (False, True):
        policy = load_policy(folder, ModelConfig(gradient_checkpointing=again))
        policy.model.double()
        grams.append(group_scores(policy, policy.encode(PROMPT), tokens, masks, TEMPERATURE).gram)
    assert relative(grams[1], grams[0]) < 1e-9


def test_adapters_have_scores_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    name, changes = KINDS["an ordinary one"]
    policy = load_policy(make(tmp_path / "model", name, changes), ModelConfig(lora_rank=2))
    policy.model.double()
    rng = torch.Generator().manual_seed(0)
    for p in policy.parameters().values():  # fresh adapters are zero on one side
        p.data = torch.randn(p.shape, generator=rng, dtype=torch.float64) * 0.1
    tokens, masks = completions()
    flat = torch.cat([g.flatten(1) for g in loop(policy, tokens, masks).values()], 1)
    found = group_scores(policy, policy.encode(PROMPT), tokens, masks, TEMPERATURE)
    assert relative(found.gram, (flat @ flat.T).numpy()) < 1e-9


def test_sketches_keep_inner_products_on_average(tmp_path: Path) -> None:
    """Mean over 80 seeds within four standard errors (false-failure rate 6e-5 a pair)."""
    policy = load("an ordinary one", tmp_path, True)
    tokens, masks = completions()
    flat = torch.cat([g.flatten(1) for g in loop(policy, tokens, masks).values()], 1).numpy()
    prompt = policy.encode(PROMPT)
    rng = np.random.default_rng(2)
    weights = rng.normal(size=(2, len(tokens)))
    vectors = weights @ flat
    products = []
    for seed in range(80):
        a, b = (
            group_scores(policy, prompt, tokens, masks, TEMPERATURE, weights=w, sketch=64, seed=seed).sketch
            for w in weights
        )
        assert a is not None
        assert b is not None
        products.append([a @ a, a @ b, b @ b])
    found = np.array(products)
    wanted = np.array([vectors[0] @ vectors[0], vectors[0] @ vectors[1], vectors[1] @ vectors[1]])
    errors = found.std(0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(found.mean(0) - wanted) < 4 * errors).all()
    lengths = np.linalg.norm(vectors, axis=1)
    assert found[:, 1].std() < 2 * lengths[0] * lengths[1] / np.sqrt(64)


def test_nothing_of_the_pass_stays_in_memory(tmp_path: Path) -> None:
    policy = load("an ordinary one", tmp_path, True)
    tokens, masks = completions()
    prompt = policy.encode(PROMPT)

    def tensors() -> int:
        gc.collect()
        return sum(isinstance(o, torch.Tensor) for o in gc.get_objects())

    group_scores(policy, prompt, tokens, masks, TEMPERATURE)
    before = tensors()
    kept: list[weakref.ref[torch.Tensor]] = []
    handle = policy.model.get_output_embeddings().register_forward_hook(lambda *a: kept.append(weakref.ref(a[1][0])))
    group_scores(policy, prompt, tokens, masks, TEMPERATURE)
    handle.remove()
    assert tensors() <= before
    assert [tensor() for tensor in kept] == [None], "the graph was let go of"


def test_a_layer_of_an_unknown_kind_is_refused_by_name(tmp_path: Path) -> None:
    policy = load("experts", tmp_path, False)
    tokens, masks = completions()
    with pytest.raises(UserError, match=r"the layer model\.layers\.0\.mlp\.\S+ \(\w+\) is of a kind"):
        group_scores(policy, policy.encode(PROMPT), tokens, masks, TEMPERATURE)
