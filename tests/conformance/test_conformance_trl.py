"""TRL's GRPOTrainer: its own `_compute_loss` and its own advantages, on a trainer without a model."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import MISSING, fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import peers
import pytest
import torch
from ragged import MAX_LENGTH, Batch, assert_differs, assert_same, make_batch, our_advantage, our_gradient

peers.need("trl")

Tensor = torch.Tensor
EXACT = 1e-12  # float64 on both sides
WITH_STD = 5e-8  # TRL computes n/(n − 1) of the sample std in float32
EPSILON = {"scale_epsilon": 1e-4}  # TRL's ε beside the std; ours is 1e-6
CLIP = {"epsilon": 0.2, "epsilon_high": 0.2}
SEQUENCE = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}


def identity(x: Any, *_: Any, **__: Any) -> Any:
    return x


def trainer(**settings: Any) -> Any:
    """A GRPOTrainer with GRPOConfig's defaults and these settings, one process, no model and no data."""
    from trl import GRPOConfig, GRPOTrainer

    values = {f.name: f.default for f in fields(GRPOConfig) if f.default is not MISSING}
    args = SimpleNamespace(**{**values, "steps_per_generation": 1, "gradient_accumulation_steps": 1, **settings})
    it = GRPOTrainer.__new__(GRPOTrainer)
    vars(it).update(vars(args))
    it.args = args
    it.epsilon_low, it.epsilon_high = args.epsilon, args.epsilon_high
    it.max_completion_length = MAX_LENGTH
    it.current_gradient_accumulation_steps = args.gradient_accumulation_steps
    it.model = SimpleNamespace(training=True)
    it.accelerator = SimpleNamespace(
        num_processes=1, process_index=0, device=torch.device("cpu"), gather=identity, reduce=identity
    )
    it._metrics = defaultdict(lambda: defaultdict(list))
    it.aux_loss_enabled = it._entropy_bonus_enabled = it.use_vllm = False
    return it


def loss(it: Any, b: Batch, advantage: Tensor, items: float | None = None, rows: slice = slice(None)) -> Tensor:
    """TRL's loss of one micro-batch (`rows`) of the batch."""
    it._get_per_token_logps_and_entropies = lambda *_, **__: (b.logp[rows], torch.zeros_like(b.logp[rows]), None)
    mask = b.mask[rows].long()
    ids = torch.zeros_like(mask)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": advantage[rows],
        "old_per_token_logps": b.behaviour[rows],
        "ref_per_token_logps": b.reference[rows],
        "num_items_in_batch": torch.tensor(b.mask.sum().item() if items is None else items),
    }
    return it._compute_loss(it.model, inputs)


def batch(seed: int = 0, drift: float = 0.35) -> Batch:
    """TRL's groups have one size, and their completions follow each other."""
    return make_batch(seed, drift, sizes=(4, 4, 4, 4), shuffled=False)


def advantages(b: Batch, scale_rewards: str, size: int = 4) -> Tensor:
    """TRL's own advantages of these rewards: `_generate_and_score_completions` with nothing to generate."""
    it = trainer(scale_rewards=scale_rewards, beta=0.0, steps_per_generation=1, gradient_accumulation_steps=1)
    it.num_generations, it.num_iterations = size, 1
    it.reward_weights = torch.ones(1, dtype=torch.from_numpy(b.rewards).dtype)
    it.reward_funcs, it.reward_func_names = [None], ["reward"]
    it.environment_factories = it.tools = it.environments = None
    it._tokenizer = SimpleNamespace(pad_token_id=0)
    it.pad_to_multiple_of, it.multi_objective_aggregation = None, "sum_then_normalize"
    it._pending_extra_logs, it._pending_metrics = {}, {}
    it._logs = defaultdict(list, rewards=defaultdict(list), extra=defaultdict(list))
    it.model = SimpleNamespace(training=True, is_gradient_checkpointing=False)
    n = len(b.rewards)
    ids = [[1] * int(length) for length in b.lengths]
    it._generate = lambda _: ([[1]] * n, ids, None, [""] * n, None, {}, None, None)
    it._calculate_rewards = lambda *_: torch.from_numpy(b.rewards)[:, None]
    return it._generate_and_score_completions([{"prompt": ""}] * n)["advantages"]


# (id, TRL's settings, its scale_rewards, our row, drift of the log-ratios)
ROWS: list[tuple[str, dict[str, Any], str, dict[str, Any], float]] = [
    ("grpo", {"loss_type": "grpo", **CLIP}, "group", {"preset": "grpo"}, 0.35),
    ("grpo-no-std", {"loss_type": "grpo", **CLIP}, "none", {"preset": "grpo", "scale": "none"}, 0.35),
    ("grpo-token-mean", {"loss_type": "bnpo", **CLIP}, "group", {"preset": "grpo", "aggregation": "token_mean"}, 0.35),
    ("dr_grpo", {"loss_type": "dr_grpo", **CLIP}, "none", {"preset": "dr_grpo"}, 0.35),
    ("dr_grpo-std", {"loss_type": "dr_grpo", **CLIP}, "group", {"preset": "dr_grpo", "scale": "std"}, 0.35),
    ("dapo", {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28}, "group", {"preset": "dapo"}, 0.35),
    ("cispo", {"loss_type": "cispo", "epsilon_high": 5.0}, "group", {"preset": "cispo"}, 1.0),
    (
        "cispo-1.28",
        {"loss_type": "cispo", "epsilon_high": 1.28},
        "none",
        {"preset": "cispo", "scale": "none", "importance_cap": 1.28},
        0.35,
    ),
    ("sapo", {"loss_type": "sapo"}, "group", {"preset": "sapo"}, 0.35),
    ("gspo", {"loss_type": "grpo", **SEQUENCE}, "group", {"preset": "gspo"}, 1e-3),
    ("gspo-far", {"loss_type": "grpo", **SEQUENCE}, "group", {"preset": "gspo"}, 0.35),
    ("rec_gspo_is", {"loss_type": "grpo", **SEQUENCE}, "none", {"preset": "rec_gspo_is"}, 1e-3),
    (
        "gspo-sequence-sum",
        {"loss_type": "luspo", **SEQUENCE},
        "group",
        {"preset": "gspo", "aggregation": "sequence_sum"},
        1e-3,
    ),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("settings", "scale", "row", "drift"), [r[1:] for r in ROWS], ids=[f"{r[0]}-trl" for r in ROWS]
)
def test_gradient(settings: dict[str, Any], scale: str, row: dict[str, Any], drift: float, seed: int) -> None:
    b = batch(seed, drift)
    theirs = b.gradient(loss(trainer(beta=0.0, **settings), b, advantages(b, scale)))
    assert_same(our_gradient({**row, **EPSILON}, b), theirs, EXACT if scale == "none" else WITH_STD)


KL_ROWS = [
    ("grpo", {"loss_type": "grpo", **CLIP}, {"preset": "grpo"}),
    ("dr_grpo", {"loss_type": "dr_grpo", **CLIP}, {"preset": "dr_grpo", "scale": "std"}),
    ("dapo", {"loss_type": "dapo", **CLIP, "epsilon_high": 0.28}, {"preset": "dapo"}),
    ("cispo", {"loss_type": "cispo", "epsilon_high": 5.0}, {"preset": "cispo"}),
    ("sapo", {"loss_type": "sapo"}, {"preset": "sapo"}),
    ("gspo", {"loss_type": "grpo", **SEQUENCE}, {"preset": "gspo"}),
]


KL_CASES = [
    pytest.param(settings, row, corrected, id=f"{name}_with_{'corrected_' * corrected}k3-trl")
    for name, settings, row in KL_ROWS
    for corrected in (False, True)
    if not (corrected and name == "gspo")  # differs: test_corrected_kl_of_a_sequence_level_row
]


@pytest.mark.parametrize(("settings", "row", "corrected"), KL_CASES)
def test_gradient_with_kl(settings: dict[str, Any], row: dict[str, Any], corrected: bool) -> None:
    b = batch(3)
    it = trainer(beta=0.3, use_bias_correction_kl=corrected, **settings)
    ours = our_gradient({**row, **EPSILON, "kl": "k3", "kl_coefficient": 0.3, "kl_corrected": corrected}, b)
    assert_same(ours, b.gradient(loss(it, b, advantages(b, "group"))), WITH_STD)


def test_corrected_kl_of_a_sequence_level_row() -> None:
    """gspo-trl: TRL corrects by the sequence's s, differentiated through all its tokens; we correct each token by its
    own ratio at every level (test_only_the_token_ratio_corrects_kl says who is right)."""
    b, beta = batch(3), 0.3
    row = {"preset": "gspo", **EPSILON, "kl": "k3", "kl_coefficient": beta, "kl_corrected": True}
    it = trainer(beta=beta, use_bias_correction_kl=True, loss_type="grpo", **SEQUENCE)
    theirs = b.gradient(loss(it, b, advantages(b, "group")))
    assert_differs(our_gradient(row, b), theirs)
    length = b.mask.sum(-1, keepdim=True)
    k3 = torch.expm1(-b.delta) + b.delta
    factor = b.sequence_ratio * (-torch.expm1(-b.delta) + k3.sum(-1, keepdim=True) / length)
    policy = our_gradient({**row, "kl_coefficient": 0.0}, b)
    assert_same(policy + beta * factor * b.mask / length / len(b.rewards), theirs, WITH_STD)


@pytest.mark.parametrize(("level", "right"), [("token", True), ("sequence", False)], ids="{}-trl".format)
def test_only_the_token_ratio_corrects_kl(level: str, right: bool) -> None:
    """Every completion of two tokens from three, once: the behaviour policy is uniform, and TRL's mean is an exact
    expectation. With the token's ratio its corrected k3 has the gradient of KL(π‖ref); with the sequence's, not."""
    theta = torch.tensor([0.9, -0.4, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([-0.2, 0.5, 0.0], dtype=torch.float64), 0)
    tokens = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    logp = torch.log_softmax(theta, 0)
    uniform = torch.full((9, 2), -np.log(3), dtype=torch.float64)
    b = Batch(
        np.zeros(9), np.zeros(9), np.full(9, 2), torch.ones(9, 2).double(), uniform, reference[tokens], logp[tokens]
    )
    it = trainer(beta=1.0, use_bias_correction_kl=True, loss_type="grpo", importance_sampling_level=level, **CLIP)
    expected = torch.autograd.grad(loss(it, b, torch.zeros(9)), theta, retain_graph=True)[0]
    exact = torch.autograd.grad((logp.exp() * (logp - reference)).sum(), theta)[0]
    assert torch.allclose(expected, exact, rtol=1e-12) == right


def test_two_sided_clip_has_no_row() -> None:
    """grpo-trl: `delta` (default: off) also stops A < 0 above δ; our rows have no such edge."""
    b, delta = batch(4, drift=0.8), 1.5
    row = {"preset": "grpo", "scale": "none"}
    stopped = (torch.from_numpy(our_advantage(row, b))[:, None] < 0) & (b.ratio > delta)
    assert (stopped & (b.mask > 0)).any()
    theirs = b.gradient(loss(trainer(beta=0.0, loss_type="grpo", delta=delta, **CLIP), b, advantages(b, "none")))
    assert_same(torch.where(stopped, 0.0, our_gradient(row, b)), theirs, EXACT)


def test_batch_scale_has_no_row() -> None:
    """trl: scale_rewards = "batch" divides by the std of the step's rewards, the mean still the group's."""
    b = batch(5)
    ours = our_advantage({"preset": "grpo", "scale": "none"}, b) / (np.std(b.rewards, ddof=1) + 1e-4)
    np.testing.assert_allclose(advantages(b, "batch"), ours, rtol=1e-7)


def accumulated(b: Batch, items: float | None = None, **settings: Any) -> Tensor:
    """The gradient of a step of two micro-batches of eight completions."""
    it = trainer(beta=0.0, gradient_accumulation_steps=2, **CLIP, **{"steps_per_generation": 2, **settings})
    a = advantages(b, "none")
    return b.gradient(loss(it, b, a, items, slice(0, 8)) + loss(it, b, a, items, slice(8, 16)))


@pytest.mark.parametrize(
    ("loss_type", "row"),
    [("grpo", {"preset": "grpo", "scale": "none"}), ("dr_grpo", "dr_grpo"), ("dapo", "rec_oneside_is")],
    ids=["grpo-trl", "dr_grpo-trl", "dapo-trl"],
)
def test_gradient_of_accumulated_micro_batches(loss_type: str, row: Any) -> None:
    b = batch(6)
    assert_same(our_gradient(row, b), accumulated(b, loss_type=loss_type), EXACT)


def test_bnpo_is_a_mean_of_micro_batch_means() -> None:
    """trl: bnpo's normaliser is each micro-batch's own, so the cut changes the step; ours is the whole step's."""
    b = batch(6)
    ours, theirs = our_gradient("rec_oneside_is", b), accumulated(b, loss_type="bnpo")
    assert_differs(ours, theirs)
    own = torch.cat([b.mask[:8].sum().expand(8), b.mask[8:].sum().expand(8)])[:, None]
    assert_same(ours * b.mask.sum() / (2 * own), theirs, EXACT)


def test_dapo_normaliser_is_the_average_step_of_a_generation() -> None:
    """trl: where one generation serves several steps, dapo and cispo divide each step by the generation's tokens over
    its number of steps, not by the step's own; equal on average over the generation, not step by step."""
    b, generation = batch(6), 3 * 100.0
    theirs = accumulated(b, items=generation, loss_type="dapo", steps_per_generation=6)
    average = generation / 3
    assert_same(our_gradient("rec_oneside_is", b) * b.mask.sum() / average, theirs, EXACT)


def test_equal_rewards_that_are_no_binary_fractions() -> None:
    """trl: the float32 mean of equal rewards is off by a rounding, so a silent group learns a little; ours is 0."""
    b = make_batch(7, sizes=(8,), kinds=["silent"], shuffled=False)
    b.rewards = np.full(8, 0.9, dtype=np.float32)
    assert our_advantage("grpo", b).tolist() == [0.0] * 8
    assert 1e-4 < advantages(b, "group", size=8).abs().max() < 1e-3
