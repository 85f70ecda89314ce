"""verl's core_algos: its advantages, and its policy losses differentiated by autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import peers
import pytest
import torch
from ragged import MAX_LENGTH, Batch, assert_differs, assert_same, make_batch, our_advantage, our_gradient

peers.need("verl")

Tensor = torch.Tensor
EXACT = 1e-12  # float64 on both sides
SINGLE = 3e-7  # a step of the peer's is in float32
TOKEN_MEAN, SEQ_SUM, SEQ_MEAN, SEQ_NORM = (
    "token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
AGGREGATIONS = {  # verl's name: ours, tolerance (verl adds 1e-8 to a completion's length)
    TOKEN_MEAN: ("token_mean", EXACT),
    SEQ_SUM: ("sequence_sum", EXACT),
    SEQ_MEAN: ("sequence_mean", 2e-8),
    SEQ_NORM: ("constant", EXACT),
}
FAR = 1e6  # a dual clip that never acts
GRPO = {"baseline": "mean", "scale": "std"}


def config(mode: str, dro_beta: float | None = None, **settings: Any) -> Any:
    """verl's ActorConfig: its defaults, and these settings."""
    batch_info = {"loss_scale_factor": MAX_LENGTH} if mode == SEQ_NORM else {}
    it = peers.verl().ActorConfig(
        strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, global_batch_info=batch_info, **settings
    )
    vars(it.policy_loss)["dro_beta"] = dro_beta  # the dataclass is frozen
    return it


def token_rewards(b: Batch) -> Tensor:
    """[N, T] the reward on the last token of each completion."""
    out = torch.zeros_like(b.mask, dtype=torch.from_numpy(b.rewards).dtype)
    out[torch.arange(len(b.rewards)), torch.from_numpy(b.lengths) - 1] = torch.from_numpy(b.rewards)
    return out


def advantages(b: Batch, estimator: str, **extra: Any) -> Tensor:
    """[N, T]"""
    compute = peers.verl().get_adv_estimator_fn(estimator)
    return compute(token_level_rewards=token_rewards(b), response_mask=b.mask, index=b.groups, **extra)[0]


def gradient(b: Batch, policy_loss: str, advantage: Tensor, mode: str = TOKEN_MEAN, **settings: Any) -> Tensor:
    compute = peers.verl().get_policy_loss_fn(policy_loss)
    loss, _ = compute(
        old_log_prob=b.behaviour,
        log_prob=b.logp,
        advantages=advantage,
        response_mask=b.mask,
        loss_agg_mode=mode,
        config=config(mode, **settings),
    )
    return b.gradient(loss)


def whiten_config() -> Any:
    return peers.verl().AlgoConfig(gamma=1.0)


# -- advantages

ADVANTAGES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("grpo", "grpo", {}, GRPO),
    ("dr_grpo", "grpo", {"norm_adv_by_std_in_grpo": False}, {"baseline": "mean"}),
    ("grpo_vectorized", "grpo_vectorized", {}, GRPO),
    ("rloo", "rloo", {}, {"preset": "rloo"}),
    ("rloo_vectorized", "rloo_vectorized", {}, {"preset": "rloo"}),
    ("opo", "opo", {}, {"preset": "opo"}),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("estimator", "extra", "row"), [r[1:] for r in ADVANTAGES], ids=[f"{r[0]}-verl" for r in ADVANTAGES]
)
def test_advantage(estimator: str, extra: dict[str, Any], row: dict[str, Any], seed: int) -> None:
    b = make_batch(seed)
    ours = torch.from_numpy(our_advantage(row, b))[:, None] * b.mask
    assert_same(ours, advantages(b, estimator, **extra), SINGLE if estimator == "grpo_vectorized" else EXACT)


@pytest.mark.parametrize(
    "row",
    ["reinforce_plus_plus", "reinforce_plus_plus_baseline"],
    ids=["reinforce_pp-verl", "reinforce_pp_baseline-verl"],
)
def test_whitened_advantage(row: str) -> None:
    """verl multiplies by 1/√(σ² + 1e-8), we divide by σ + ε: equal to 1e-8/2σ² where ε = 0."""
    b = make_batch(1)
    preset = row.replace("plus_plus", "pp")
    ours = torch.from_numpy(our_advantage({"preset": preset, "scale_epsilon": 0.0}, b))[:, None] * b.mask
    assert_same(ours, advantages(b, row, config=whiten_config()), 1e-7)


def test_gpg_advantage() -> None:
    """gpg-verl: mean baseline, times N over the number of completions of non-zero reward. The factor is meant to make
    up for groups without a signal; counted over non-zero rewards it depends on what the rewards are counted from."""
    b = make_batch(2)
    ours = torch.from_numpy(our_advantage({"baseline": "mean"}, b))[:, None] * b.mask
    theirs = advantages(b, "gpg")
    assert_same(ours * len(b.rewards) / np.count_nonzero(b.rewards), theirs, SINGLE)
    b.rewards = b.rewards + 10
    assert_same(ours, advantages(b, "gpg"), 1e-10)  # the same comparison within groups, another step


def test_a_completion_alone_in_its_group() -> None:
    """verl: it has its whole reward as its advantage; ours leaves it out, and out of the normaliser."""
    b = make_batch(3, sizes=(4, 1), kinds=("signed", "lone success"))
    alone = b.groups == 1
    for estimator in ("grpo", "rloo", "opo"):
        assert advantages(b, estimator)[torch.from_numpy(alone), 0].item() == pytest.approx(1.0, rel=2e-6)
        assert our_advantage(estimator, b)[alone] == 0.0


def test_equal_rewards_that_are_no_binary_fractions() -> None:
    """grpo-verl: in float32 the mean of equal rewards is off by a rounding, and so small a std lets it through: every
    completion of the silent group is pushed down by a twentieth of a standard deviation. Ours is exactly 0."""
    b = make_batch(4, sizes=(8,), kinds=["silent"])
    b.rewards = np.full(8, 0.9, dtype=np.float32)
    b.mask = b.mask.float()
    assert our_advantage("grpo", b).tolist() == [0.0] * 8
    assert 0.05 < advantages(b, "grpo")[:, 0].abs().max() < 0.06


# -- policy losses

LOSSES: list[tuple[str, str, dict[str, Any], dict[str, Any], float]] = [
    ("grpo", "vanilla", {"clip_ratio_c": FAR}, {"preset": "grpo"}, 0.35),
    ("dapo", "vanilla", {"clip_ratio_c": FAR, "clip_ratio_high": 0.28}, {"preset": "dapo"}, 0.35),
    ("gspo", "gspo", {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}, {"preset": "gspo"}, 1e-3),
    ("gspo-far", "gspo", {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}, {"preset": "gspo"}, 0.35),
    ("cispo", "cispo", {"clip_ratio_low": 1.0, "clip_ratio_high": 4.0}, {"preset": "cispo"}, 1.0),
    ("gpg", "gpg", {}, GRPO, 0.35),
    ("opmd-token", "dro", {"dro_beta": 0.1}, {"preset": "opmd", "scale": "std", "quadratic_level": "token"}, 0.35),
]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize(
    ("loss", "settings", "row", "drift"), [r[1:] for r in LOSSES], ids=[f"{r[0]}-verl" for r in LOSSES]
)
def test_gradient(loss: str, settings: dict[str, Any], row: dict[str, Any], drift: float, mode: str, seed: int) -> None:
    b = make_batch(seed, drift)
    aggregation, tolerance = AGGREGATIONS[mode]
    theirs = gradient(b, loss, advantages(b, "grpo"), mode, **settings)
    assert_same(our_gradient({**row, "aggregation": aggregation}, b), theirs, tolerance)


@pytest.mark.parametrize("seed", range(2))
def test_sapo(seed: int) -> None:
    """sapo-verl (its aggregation is fixed)."""
    b = make_batch(seed)
    assert_same(our_gradient("sapo", b), gradient(b, "sapo", advantages(b, "grpo"), SEQ_MEAN), 2e-8)


@pytest.mark.parametrize("row", ["reinforce_pp", "reinforce_pp_baseline"])
def test_gradient_of_whitened_rows(row: str) -> None:
    b = make_batch(5)
    estimator = row.replace("pp", "plus_plus")
    theirs = gradient(b, "vanilla", advantages(b, estimator, config=whiten_config()), clip_ratio_c=FAR)
    assert_same(our_gradient({"preset": row, "scale_epsilon": 0.0}, b), theirs, 1e-7)


def test_gradients_of_rloo_opo_and_dr_grpo() -> None:
    b = make_batch(6)
    assert_same(our_gradient("rloo", b), gradient(b, "gpg", advantages(b, "rloo"), SEQ_SUM), EXACT)
    assert_same(our_gradient("opo", b), gradient(b, "gpg", advantages(b, "opo")), EXACT)
    centred = advantages(b, "grpo", norm_adv_by_std_in_grpo=False)
    assert_same(our_gradient("dr_grpo", b), gradient(b, "vanilla", centred, SEQ_NORM, clip_ratio_c=FAR), EXACT)
    assert_same(our_gradient("rec_oneside_is", b), gradient(b, "vanilla", centred, clip_ratio_c=FAR), EXACT)


def test_dual_clip_is_on_by_default() -> None:
    """grpo-verl: clip_ratio_c = 3 stops A < 0 above ρ = 3 (arXiv 1912.09729); GRPO's paper has no such edge."""
    b = make_batch(7, drift=1.2)
    a = advantages(b, "grpo")
    stopped = (a < 0) & (b.ratio > 3) & (b.mask > 0)
    assert stopped.any()
    ours = our_gradient({"preset": "grpo", "aggregation": "token_mean"}, b)
    assert_same(torch.where(stopped, 0.0, ours), gradient(b, "vanilla", a), EXACT)


def test_cispo_has_a_floor_by_default() -> None:
    """cispo-verl: the weight is also kept above 1 − clip_ratio_low = .8; MiniMax's own runs had no lower bound."""
    b = make_batch(8)
    a = advantages(b, "grpo")
    ours = our_gradient({"preset": "cispo", "importance_cap": 1.2}, b)
    theirs = gradient(b, "cispo", a)
    assert_differs(ours, theirs)
    assert_same(ours * torch.clamp(0.8 / b.ratio, min=1.0), theirs, EXACT)


@pytest.mark.parametrize(
    ("theirs", "ours"), [("k2", "k2"), ("low_var_kl", "k3"), ("k3+", "k2")], ids="{0[0]}-verl".format
)
def test_kl_in_the_loss(theirs: str, ours: str) -> None:
    """grpo_with_kl-verl: k3+ has k3's value and k2's gradient."""
    b = make_batch(9)
    algos = peers.verl()
    kl = algos.agg_loss(algos.kl_penalty(b.logp, b.reference, theirs), b.mask, TOKEN_MEAN)
    row = {"preset": "grpo", "aggregation": "token_mean", "kl": ours}
    added = our_gradient({**row, "kl_coefficient": 0.3}, b) - our_gradient(row, b)
    assert_same(added, 0.3 * b.gradient(kl), 1e-11)
