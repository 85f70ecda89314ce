"""Trinity-RFT, the framework of arXiv 2509.24203's authors: its advantages and policy losses.

Its group advantages are computed in float32, and its means divide by the number of tokens + 1e-8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import peers
import pytest
import torch
from ragged import MAX_LENGTH, Batch, assert_differs, assert_same, make_batch, our_advantage, our_gradient

peers.need("trinity-rft")

Tensor = torch.Tensor
SINGLE = 5e-7

ADVANTAGES = {
    "grpo": ("grpo_advantage", "GRPOGroupedAdvantage"),
    "rec": ("rec_advantage", "RECGroupedAdvantage"),
    "opmd": ("opmd_advantage", "OPMDGroupAdvantage"),
    "asymre": ("asymre_advantage", "ASYMREGroupAdvantage"),
    "reinforce": ("reinforce_advantage", "REINFORCEGroupAdvantage"),
}
LOSSES = {
    "rec": ("rec_policy_loss", "RECPolicyLossFn"),
    "opmd": ("opmd_policy_loss", "OPMDPolicyLossFn"),
    "topr": ("topr_policy_loss", "TOPRPolicyLossFn"),
    "sppo": ("sppo_loss_fn", "sPPOPolicyLossFn"),
    "sapo": ("sapo_policy_loss", "SAPOPolicyLossFn"),
    "cispo": ("cispo_policy_loss", "CISPOPolicyLossFn"),
    "gspo": ("gspo_policy_loss", "GSPOLossFn"),
    "ppo": ("ppo_policy_loss", "PPOPolicyLossFn"),
    "importance_sampling": ("importance_sampling_policy_loss", "ImportanceSamplingLossFn"),
}


def advantages(b: Batch, name: str, **settings: Any) -> Tensor:
    """[N, T] by Trinity's own class, in its own defaults and these settings."""
    module, cls = ADVANTAGES[name]
    kind = getattr(peers.trinity(f"advantage_fn.{module}"), cls)
    defaults = kind.default_args()
    experience = peers.trinity_common("experience")
    rows = [
        experience.Experience(
            eid=experience.EID(task=int(group), run=i),
            tokens=torch.zeros(2, dtype=torch.long),
            reward=float(reward),
            action_mask=mask,
        )
        for i, (group, reward, mask) in enumerate(zip(b.groups, b.rewards, b.mask, strict=True))
    ]
    kind(**{**defaults, **settings}).process(list(rows))
    return torch.stack([row.advantages.double() for row in rows])


def gradient(b: Batch, name: str, advantage: Tensor, **settings: Any) -> Tensor:
    module, cls = LOSSES[name]
    kind = getattr(peers.trinity(f"policy_loss_fn.{module}"), cls)
    loss, _ = kind(**{**kind.default_args(), **settings})(
        logprob=b.logp, old_logprob=b.behaviour, action_mask=b.mask, advantages=advantage
    )
    return b.gradient(loss)


# (our row, drift of the log-ratios, Trinity's loss, its settings, its advantage, its settings)
Row = tuple[str, Any, float, str, dict[str, Any], str, dict[str, Any]]
IS, SIS = {"weight": "importance_sampling"}, {"weight": "gspo_importance_sampling"}
ONE, TWO, RING, SEQ = ({"clip_mode": mode} for mode in ("one-side", "two-side", "ring", "gspo-one-side"))
NARROW = {"epsilon_low": 3e-4, "epsilon_high": 4e-4}
SEQ_CLIP = {"clip_range_low": 3e-4, "clip_range_high": 4e-4}
DUAL_OFF = {"clip_ratio_c": 1e6}
ROWS: list[Row] = [
    ("rec_oneside_is", "rec_oneside_is", 0.35, "rec", {**ONE, **IS}, "rec", {}),
    ("rec_oneside_nois", "rec_oneside_nois", 0.35, "rec", ONE, "rec", {}),
    ("rec_twoside_is", "rec_twoside_is", 0.35, "rec", {**TWO, **IS}, "rec", {}),
    ("rec_twoside_nois", "rec_twoside_nois", 0.35, "rec", TWO, "rec", {}),
    ("rec_ring_nois", "rec_ring_nois", 1.2, "rec", RING, "rec", {}),
    ("rec_ring_is", {"preset": "rec_ring_nois", "importance": "ratio"}, 1.2, "rec", {**RING, **IS}, "rec", {}),
    ("rec_gspo_is", "rec_gspo_is", 1e-3, "rec", {**SEQ, **NARROW, **SIS}, "rec", {}),
    ("rec_gspo_nois", "rec_gspo_nois", 1e-3, "rec", {**SEQ, **NARROW}, "rec", {}),
    ("rec_gspo_is-far", "rec_gspo_is", 0.35, "rec", {**SEQ, **NARROW, **SIS}, "rec", {}),
    ("red_weight", "red_weight", 0.35, "rec", {"weight": "advantage"}, "rec", {}),
    (
        "red_weight-T2",
        {"preset": "red_weight", "data_weight_temperature": 2.0},
        0.35,
        "rec",
        {"weight": "advantage", "temp": 2.0},
        "rec",
        {},
    ),
    ("opmd_logavgexp", "opmd_logavgexp", 0.35, "opmd", {}, "opmd", {"opmd_baseline": "logavgexp"}),
    ("opmd_mean", {"baseline": "mean", "multiplier": 0.5}, 0.35, "opmd", {}, "opmd", {}),
    (
        "opmd-token",
        {"preset": "opmd", "quadratic_level": "token"},
        0.35,
        "rec",
        {"regularizer": "k2", "regularizer_coef": 0.05},
        "rec",
        {},
    ),
    ("asymre", "asymre", 0.35, "rec", {"regularizer": "forward-kl", "regularizer_coef": 0.1}, "rec", {}),
    ("topr", "topr", 0.35, "topr", {}, "reinforce", {}),
    ("topr-mean", {"preset": "topr", "baseline": "mean"}, 0.35, "topr", {}, "opmd", {}),
    ("sppo-no-std", {"preset": "sppo", "scale": "none"}, 0.35, "sppo", {}, "opmd", {}),
    ("sppo", "sppo", 0.35, "sppo", {}, "grpo", {}),
    ("cispo", "cispo", 1.0, "cispo", {"clip_range_high": 4.0}, "grpo", {}),
    ("cispo-1.28", {"preset": "cispo", "importance_cap": 1.28}, 0.35, "cispo", {}, "grpo", {}),
    (
        "cispo-masked",
        {"preset": "cispo", "importance_cap": 1.28, "mask": "one_side", "clip_high": 0.28},
        0.35,
        "cispo",
        {"enable_mask_clip": True, "mask_clip_range_low": 0.2},
        "grpo",
        {},
    ),
    ("gspo", "gspo", 1e-3, "gspo", SEQ_CLIP, "grpo", {}),
    ("gspo-far", "gspo", 0.35, "gspo", SEQ_CLIP, "grpo", {}),
    ("grpo", "grpo", 0.35, "ppo", {**DUAL_OFF, "loss_agg_mode": "seq-mean-token-mean"}, "grpo", {}),
    ("dapo", "dapo", 0.35, "ppo", {**DUAL_OFF, "clip_range_high": 0.28}, "grpo", {}),
    ("importance_sampling", {"baseline": "mean", "importance": "ratio"}, 0.35, "importance_sampling", {}, "opmd", {}),
]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("row", "drift", "loss", "settings", "advantage", "advantage_settings"),
    [r[1:] for r in ROWS],
    ids=[f"{r[0]}-trinity" for r in ROWS],
)
def test_gradient(
    row: Any,
    drift: float,
    loss: str,
    settings: dict[str, Any],
    advantage: str,
    advantage_settings: dict[str, Any],
    seed: int,
) -> None:
    b = make_batch(seed, drift)
    theirs = gradient(b, loss, advantages(b, advantage, **advantage_settings), **settings)
    assert_same(our_gradient(row, b), theirs, SINGLE)


def red_drop(b: Batch) -> tuple[Tensor, np.ndarray]:
    """[N, T] Trinity's advantages with surplus negatives dropped at random, and [N] which ones it dropped."""
    a = advantages(b, "rec", drop="balance")
    silent = np.isclose(advantages(b, "rec")[:, 0].numpy(), 0)
    return a, (a[:, 0].numpy() == 0) & ~silent


@pytest.mark.parametrize("seed", range(3))
def test_red_drop(seed: int) -> None:
    """red_drop-trinity: the same completions drop out and the same mean is taken over the rest; Trinity still counts
    the dropped ones' tokens in the mean over tokens, so its step is smaller by the share that is kept."""
    torch.manual_seed(seed)
    b = make_batch(seed, sizes=(5, 6, 3, 7))
    a, dropped = red_drop(b)
    assert dropped.sum() >= 5
    ours = our_gradient("red_drop", b, priority=np.where(dropped, 0.1, 0.9))
    kept = b.lengths[~dropped].sum() / b.lengths.sum()
    assert_same(ours * kept, gradient(b, "rec", a), SINGLE)


@pytest.mark.parametrize("seed", range(2))
def test_sapo_differentiates_the_gate_by_its_value(seed: int) -> None:
    """sapo-trinity is not the SAPO of arXiv 2511.20347. The paper maximises gate(ρ)·A, whose gradient is
    4ρσ(1 − σ)·A: 1 on-policy, and 0 far from it. Trinity multiplies ∇ log π by the gate's *value* (4/τ)σ: 2/τ on-policy,
    and largest where ρ is largest, so that nothing keeps the step near the data. Trinity's own gate, differentiated,
    gives our gradient (and TRL's, and verl's)."""
    b = make_batch(seed)
    a = advantages(b, "grpo")
    tau = torch.where(a > 0, 1.0, 1.05)
    theirs = gradient(b, "sapo", a)
    value = 4 / tau * torch.sigmoid(tau * (b.ratio - 1))
    assert_same(-a * value * b.mask / b.mask.sum(), theirs, SINGLE)

    ours = our_gradient({"preset": "sapo", "aggregation": "token_mean"}, b)
    assert_differs(ours, theirs, by=0.1)
    kind = peers.trinity("policy_loss_fn.sapo_policy_loss").SAPOPolicyLossFn()
    gate = kind.soft_gate_function(torch.exp(b.logp - b.behaviour), a)
    assert_same(ours, b.gradient(-(gate * a * b.mask).sum() / b.mask.sum()), SINGLE)


def test_asymre_algorithm_takes_half_the_step() -> None:
    """asymre-trinity as configured: its loss is OPMD's, which divides by 1 + τ with τ = 1. Its REC loss with the
    forward-kl regulariser has no such factor, nor has arXiv 2506.20520."""
    b = make_batch(3)
    assert_same(our_gradient("asymre", b) / 2, gradient(b, "opmd", advantages(b, "asymre")), SINGLE)


def test_rec_divides_by_the_population_std() -> None:
    """rec-trinity: std_normalize uses n, not n − 1 (its grpo, as everyone else's, uses n − 1)."""
    b = make_batch(4)
    size = np.bincount(b.groups)[b.groups]
    ours = our_advantage({"baseline": "mean", "scale": "std", "scale_epsilon": 0.0}, b) * np.sqrt(size / (size - 1))
    theirs = advantages(b, "rec", std_normalize=True)
    assert_same(torch.from_numpy(ours)[:, None] * b.mask, theirs, 5e-6)  # Trinity's ε = 1e-6 remains


def test_batch_scale_has_no_row() -> None:
    """grpo-trinity: std_cal_level = "batch" divides by the std of the step's rewards, the mean still the group's."""
    b = make_batch(4)
    ours = our_advantage({"baseline": "mean"}, b) / (np.std(b.rewards, ddof=1) + 1e-6)
    assert_same(torch.from_numpy(ours)[:, None] * b.mask, advantages(b, "grpo", std_cal_level="batch"), SINGLE)


def test_a_completion_alone_in_its_group() -> None:
    """trinity: it has its whole reward as its advantage, and rec fails; ours leaves it out."""
    b = make_batch(5, sizes=(4, 1), kinds=("signed", "lone success"))
    alone = torch.from_numpy(b.groups == 1)
    for name in ("grpo", "opmd", "asymre"):
        assert advantages(b, name)[alone, 0].item() == pytest.approx(1.0, rel=2e-6)
    with pytest.raises(UnboundLocalError):
        advantages(b, "rec")
    assert our_advantage("rec_oneside_is", b)[b.groups == 1] == 0.0


def test_equal_rewards_that_are_no_binary_fractions() -> None:
    """grpo-trinity: the float32 mean of equal rewards is off by a rounding, and the silent group learns; ours is 0."""
    b = make_batch(6, sizes=(8,), kinds=["silent"])
    b.rewards = np.full(8, 0.9)
    assert our_advantage("grpo", b).tolist() == [0.0] * 8
    assert 0.05 < advantages(b, "grpo")[:, 0].abs().max() < 0.06


def test_dual_clip_is_on_by_default() -> None:
    """grpo-trinity: clip_ratio_c = 3 stops A < 0 above ρ = 3, as verl's."""
    b = make_batch(7, drift=1.2)
    a = advantages(b, "grpo")
    stopped = (a < 0) & (b.ratio > 3) & (b.mask > 0)
    assert stopped.any()
    ours = our_gradient({"preset": "grpo", "aggregation": "token_mean"}, b)
    assert_same(torch.where(stopped, 0.0, ours), gradient(b, "ppo", a), SINGLE)


def test_constant_normaliser_does_not_count_completions() -> None:
    """dr_grpo-trinity: seq-mean-token-sum-norm divides by a length alone (a sum over completions, not their mean), so
    the step grows with the batch; verl's mode of that name, TRL's dr_grpo and ours divide by completions too."""
    b = make_batch(8)
    utils = peers.trinity("utils")
    a = advantages(b, "opmd")
    loss = utils.aggregate_loss(-a * torch.exp(b.logp - b.behaviour), b.mask, "seq-mean-token-sum-norm", MAX_LENGTH)
    ours = our_gradient({"baseline": "mean", "importance": "ratio", "aggregation": "constant"}, b)
    assert_same(ours * len(b.rewards), b.gradient(loss), SINGLE)


KL = {"k2": "K2Fn", "k3": "K3Fn", "low_var_kl": "LowVarKLFn", "corrected_k3": "CorrectedK3Fn"}


def kl_gradients(b: Batch, kind: str) -> tuple[Tensor, Tensor]:
    """Ours and Trinity's, of the KL term alone."""
    fn = getattr(peers.trinity("kl_fn.kl_fn"), KL[kind])(kl_coef=0.3)
    loss, _ = fn.calculate_kl_loss(b.logp, b.reference, b.mask, "token-mean", b.behaviour)
    row = {"preset": "grpo", "aggregation": "token_mean", "kl": kind if kind == "k2" else "k3"}
    row["kl_corrected"] = kind == "corrected_k3"
    return our_gradient({**row, "kl_coefficient": 0.3}, b) - our_gradient(row, b), b.gradient(loss)


@pytest.mark.parametrize("kind", KL, ids="{}-trinity".format)
def test_kl_in_the_loss(kind: str) -> None:
    b = make_batch(9, drift=0.15)
    assert b.ratio.max() < 2
    assert_same(*kl_gradients(b, kind), SINGLE)


def test_corrected_kl_is_cut_at_a_ratio_of_two() -> None:
    """corrected_k3-trinity: above ρ = 2 the ratio is fixed at 2 and no longer differentiated; ours is not cut."""
    b = make_batch(9, drift=0.8)
    ours, theirs = kl_gradients(b, "corrected_k3")
    cut = (b.ratio > 2) & (b.mask > 0)
    assert cut.any()
    assert_same(torch.where(cut, 0.3 * 2 * -torch.expm1(-b.delta) / b.mask.sum(), ours), theirs, SINGLE)


def test_topr_of_the_paper_truncates_the_ratio_of_the_completion() -> None:
    """topr-trinity: arXiv 2503.14286 truncates π(y|x)/μ(y|x), the ratio of a whole completion. Trinity, and our row as
    it stands, truncate each token's own; ratio_level = "completion" is the paper's form."""
    b = make_batch(10, drift=0.5)
    r = torch.from_numpy(b.rewards)[:, None]
    whole = torch.exp(b.log_ratio.sum(-1, keepdim=True))
    paper = -(torch.where(r < 0, torch.clamp(whole, 0, 1), 1.0) * r * b.logp * b.mask).sum() / b.mask.sum()
    ours = our_gradient({"preset": "topr", "ratio_level": "completion"}, b)
    assert_same(ours, b.gradient(paper), 1e-12)
    assert_differs(ours, gradient(b, "topr", advantages(b, "reinforce")), by=0.1)
