"""Every row's gradient is that of the loss its paper writes down.

The literal losses below are written out in torch and differentiated by autograd with respect to every token's
log-probability; ours is −Σ weight · sg(factor) · log π. Ragged groups, ragged lengths, float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from delphic.objective import Objective, StepInputs, build, coefficients, prepare, token_weights

Tensor = torch.Tensor
AGGREGATIONS = ["token_mean", "sequence_mean", "sequence_sum", "constant"]
MAX_LENGTH = 9


@dataclass
class Batch:
    """Twelve completions in three ragged groups; log-probs are 0 outside the mask."""

    rewards: np.ndarray
    groups: np.ndarray
    lengths: np.ndarray
    mask: Tensor
    behaviour: Tensor
    reference: Tensor
    logp: Tensor  # the leaf

    @property
    def log_ratio(self) -> Tensor:
        return (self.logp - self.behaviour) * self.mask

    @property
    def ratio(self) -> Tensor:
        return torch.exp(self.log_ratio)

    @property
    def delta(self) -> Tensor:
        return (self.logp - self.reference) * self.mask

    def sequence(self, x: Tensor) -> Tensor:
        return (x * self.mask).sum(-1, keepdim=True)


def make_batch(seed: int = 0, drift: float = 0.3) -> Batch:
    rng = np.random.default_rng(seed)
    groups = np.array([5, 5, 5, 5, -1, -1, -1, 9, 9, 9, 9, 9])
    order = rng.permutation(12)
    lengths = rng.integers(1, 7, 12)
    mask = torch.from_numpy((np.arange(6) < lengths[:, None]).astype(float))
    behaviour = torch.from_numpy(-rng.random((12, 6)) * 2) * mask
    logp = behaviour + torch.from_numpy(rng.normal(size=(12, 6)) * drift) * mask
    reference = behaviour + torch.from_numpy(rng.normal(size=(12, 6)) * 0.5) * mask
    rewards = rng.integers(-2, 3, 12) / 2
    return Batch(rewards, groups[order], lengths, mask, behaviour, reference, logp.requires_grad_())


def our_gradient(objective: Objective, b: Batch) -> Tensor:
    """The gradient of the loss form, through the same three calls that training makes."""
    moved = b.sequence(b.log_ratio)[:, 0].detach().numpy()
    prepared = prepare(objective, StepInputs(b.rewards, b.groups, lengths=b.lengths, sequence_log_ratio=moved))
    factors = coefficients(
        objective,
        torch.from_numpy(prepared.coefficient)[:, None],
        torch.from_numpy(prepared.penalised.astype(float))[:, None],
        b.log_ratio.detach(),
        b.mask,
        b.delta.detach(),
    )
    kept = torch.from_numpy(prepared.kept.astype(float))[:, None]
    weight = token_weights(b.mask, kept, objective.aggregation, prepared.totals(b.lengths), MAX_LENGTH)
    loss = -(weight * (factors.policy + factors.penalty).detach() * b.logp).sum()
    return torch.autograd.grad(loss, b.logp)[0]


def aggregate(x: Tensor, b: Batch, how: str) -> Tensor:
    """The four aggregations as one would write them by hand."""
    x = x * b.mask
    if how == "token_mean":
        return x.sum() / b.mask.sum()
    if how == "sequence_mean":
        return (x.sum(-1) / b.mask.sum(-1)).mean()
    return x.sum(-1).mean() / (MAX_LENGTH if how == "constant" else 1)


def group_advantage(b: Batch, std: bool) -> Tensor:
    """[N, 1] by a plain loop over groups."""
    out = np.zeros(len(b.rewards))
    for g in set(b.groups.tolist()):
        r = b.rewards[b.groups == g]
        out[b.groups == g] = (r - r.mean()) / (r.std(ddof=1) + 1e-6 if std else 1)
    return torch.from_numpy(out)[:, None]


def assert_same(objective: Objective, b: Batch, loss: Tensor) -> None:
    literal = torch.autograd.grad(loss, b.logp)[0]
    ours = our_gradient(objective, b)
    assert literal.abs().max() > 0
    torch.testing.assert_close(ours, literal, rtol=1e-12, atol=1e-14)


def ppo_clip(ratio: Tensor, a: Tensor, low: float, high: float) -> Tensor:
    return -torch.minimum(ratio * a, torch.clamp(ratio, 1 - low, 1 + high) * a)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_ppo_clip_is_the_one_side_mask_with_the_ratio(aggregation: str, seed: int) -> None:
    b = make_batch(seed)
    loss = aggregate(ppo_clip(b.ratio, group_advantage(b, std=True), 0.2, 0.28), b, aggregation)
    assert_same(build({"preset": "dapo", "aggregation": aggregation}), b, loss)


def test_ppo_clip_test_meets_every_side_of_the_clip() -> None:
    b = make_batch(0)
    inside, a = b.mask > 0, group_advantage(b, std=True).expand_as(b.mask)
    for sign in (a > 0, a < 0):
        for side in (b.ratio > 1.28, b.ratio < 0.8, (b.ratio > 0.8) & (b.ratio < 1.28)):
            assert (inside & sign & side).any()


@pytest.mark.parametrize("preset", ["grpo", "dr_grpo", "rec_oneside_is"])
def test_grpo_and_its_relatives(preset: str) -> None:
    b, row = make_batch(4), build(preset)
    a = group_advantage(b, std=preset == "grpo")
    assert_same(row, b, aggregate(ppo_clip(b.ratio, a, 0.2, 0.2), b, row.aggregation))


@pytest.mark.parametrize(("preset", "std"), [("gspo", True), ("rec_gspo_is", False)])
@pytest.mark.parametrize("drift", [3e-4, 0.1])
def test_gspo_is_the_clipped_loss_of_the_sequence_ratio(preset: str, std: bool, drift: float) -> None:
    b = make_batch(1, drift)
    s = torch.exp(b.sequence(b.log_ratio) / b.sequence(b.mask))
    assert_same(build(preset), b, ppo_clip(s, group_advantage(b, std), 3e-4, 4e-4).mean())


@pytest.mark.parametrize("cap", [5.0, 1.2])
def test_cispo_weighs_by_the_capped_ratio_without_differentiating_it(cap: float) -> None:
    b = make_batch(2)
    weight = torch.clamp(b.ratio, max=cap).detach()
    loss = aggregate(-weight * group_advantage(b, std=True) * b.logp, b, "token_mean")
    assert_same(build({"preset": "cispo", "importance_cap": cap}), b, loss)


def test_sapo_is_the_soft_gate() -> None:
    b = make_batch(3)
    a = group_advantage(b, std=True)
    tau = torch.where(a > 0, torch.ones_like(a), 1.05)
    gate = torch.sigmoid(tau * (b.ratio - 1)) * 4 / tau
    assert_same(build("sapo"), b, aggregate(-gate * a, b, "sequence_mean"))


def test_sppo_is_the_clipped_log_ratio() -> None:
    b = make_batch(3)
    inside = torch.log(torch.clamp(b.ratio, 1 / 1.3, 1.3))
    assert_same(build("sppo"), b, aggregate(-group_advantage(b, std=True) * inside, b, "token_mean"))


def test_topr_trusts_successes_and_truncates_failures() -> None:
    b = make_batch(5)
    r = torch.from_numpy(b.rewards)[:, None]
    positive = torch.where(r > 0, r, 0.0) * b.logp
    negative = torch.where(r < 0, r, 0.0) * torch.clamp(b.ratio, 0, 1).detach() * b.logp
    assert_same(build("topr"), b, aggregate(-positive - negative, b, "token_mean"))


def test_topr_as_published_truncates_the_ratio_of_the_whole_completion() -> None:
    b = make_batch(5)
    r = torch.from_numpy(b.rewards)[:, None]
    whole = torch.exp(b.sequence(b.log_ratio)).detach()
    loss = aggregate(-torch.where(r < 0, torch.clamp(whole, 0, 1), 1.0) * r * b.logp, b, "token_mean")
    assert_same(build({"preset": "topr", "ratio_level": "completion"}), b, loss)


def test_red_weight_weighs_by_the_exponential_advantage() -> None:
    b = make_batch(6)
    a = group_advantage(b, std=False)
    assert_same(build("red_weight"), b, aggregate(-torch.exp(a) * a * b.logp, b, "token_mean"))


def test_ring_passes_far_ratios_only_where_the_step_leads_back() -> None:
    b = make_batch(7, drift=1.0)
    a, rho = group_advantage(b, std=False), b.ratio.detach()
    band = ((rho >= 0.8) & (rho <= 1.2)) | ((a >= 0) & (rho <= 0.4)) | ((a < 0) & (rho >= 3.0))
    assert_same(build("rec_ring_nois"), b, aggregate(-a * band * b.logp, b, "token_mean"))
    band = (rho >= 0.8) & (rho <= 1.2)
    assert_same(build("rec_twoside_is"), b, aggregate(-a * band * rho * b.logp, b, "token_mean"))


# -- penalties

KL: dict[str, Callable[[Tensor], Tensor]] = {"k2": lambda d: d**2 / 2, "k3": lambda d: torch.exp(-d) - 1 + d}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_kl_in_the_loss(estimator: str, aggregation: str) -> None:
    b = make_batch(8)
    row = build({"preset": "grpo", "kl": estimator, "kl_coefficient": 0.3, "aggregation": aggregation})
    loss = ppo_clip(b.ratio, group_advantage(b, std=True), 0.2, 0.2) + 0.3 * KL[estimator](b.delta)
    assert_same(row, b, aggregate(loss, b, aggregation))


def test_corrected_k3_is_the_ratio_times_the_estimator_differentiated_through() -> None:
    b = make_batch(9)
    row = build({"preset": "reinforce", "kl": "k3", "kl_coefficient": 0.3, "kl_corrected": True})
    r = torch.from_numpy(b.rewards)[:, None]
    assert_same(row, b, aggregate(-r * b.logp + 0.3 * b.ratio * KL["k3"](b.delta), b, "sequence_sum"))


def test_corrected_k2_is_the_ratio_times_the_estimator_the_ratio_fixed() -> None:
    b = make_batch(9)
    row = build({"preset": "reinforce", "kl": "k2", "kl_coefficient": 0.3, "kl_corrected": True})
    r = torch.from_numpy(b.rewards)[:, None]
    loss = -r * b.logp + 0.3 * b.ratio.detach() * KL["k2"](b.delta)
    assert_same(row, b, aggregate(loss, b, "sequence_sum"))


def test_correction_uses_the_token_ratio_even_in_sequence_level_rows() -> None:
    b = make_batch(9, drift=0.05)
    row = build({"preset": "gspo", "kl": "k3", "kl_coefficient": 0.3, "kl_corrected": True})
    s = torch.exp(b.sequence(b.log_ratio) / b.sequence(b.mask))
    loss = ppo_clip(s, group_advantage(b, std=True), 3e-4, 4e-4).mean()
    assert_same(row, b, loss + aggregate(0.3 * b.ratio * KL["k3"](b.delta), b, "sequence_mean"))


def test_opmd_token_level_is_a_sum_of_squares() -> None:
    b = make_batch(10)
    loss = -group_advantage(b, std=False) * b.logp + 0.1 / 2 * b.log_ratio**2
    assert_same(build({"preset": "opmd", "quadratic_level": "token"}), b, aggregate(loss, b, "token_mean"))


def test_opmd_sequence_level_is_the_square_of_the_sum() -> None:
    b = make_batch(10)
    a = group_advantage(b, std=False)
    mean_of_sums = aggregate(-a * b.logp, b, "sequence_sum") + 0.1 / 2 * (b.sequence(b.log_ratio) ** 2).mean()
    assert_same(build({"preset": "opmd", "aggregation": "sequence_sum"}), b, mean_of_sums)
    per_token = aggregate(-a * b.logp, b, "token_mean") + 0.1 / 2 * (b.sequence(b.log_ratio) ** 2).sum() / b.mask.sum()
    assert_same(build("opmd"), b, per_token)


def test_opmd_log_average_exp_divides_by_one_plus_temperature() -> None:
    b, tau = make_batch(11), 0.5
    baseline = np.zeros(12)
    for g in set(b.groups.tolist()):
        baseline[b.groups == g] = tau * np.log(np.mean(np.exp(b.rewards[b.groups == g] / tau)))
    a = torch.from_numpy(b.rewards - baseline)[:, None]
    row = build({"preset": "opmd_logavgexp", "baseline_temperature": tau, "multiplier": 1 / (1 + tau)})
    assert_same(row, b, aggregate(-a * b.logp, b, "token_mean") / (1 + tau))


def test_the_shift_of_asymre_is_a_pull_towards_the_data() -> None:
    b, beta = make_batch(12), 0.1
    loss = -group_advantage(b, std=False) * b.logp + beta * (b.behaviour - b.logp)
    assert_same(build("asymre"), b, aggregate(loss, b, "token_mean"))


# -- the theorem: the pairwise surrogate is group-relative REINFORCE, whoever sampled


def surrogate(b: Batch, tau: float) -> Tensor:
    """Mean of (1/K²) Σ_{i<j} (a_i − a_j)² over groups, each with the weight of its K completions."""
    a = torch.from_numpy(b.rewards) - tau * b.sequence(b.log_ratio)[:, 0]
    total = torch.zeros((), dtype=torch.float64)
    for g in set(b.groups.tolist()):
        mine = a[torch.from_numpy(b.groups == g)]
        pairs = [(mine[i] - mine[j]) ** 2 for i in range(len(mine)) for j in range(i)]
        total = total + sum(pairs) / len(mine) ** 2 * len(mine) / len(a)
    return total


@pytest.mark.parametrize("tau", [0.1, 1.0])
@pytest.mark.parametrize("drift", [0.0, 0.3], ids=["at_the_data_policy", "away_from_it"])
def test_pairwise_is_the_surrogate_itself(tau: float, drift: float) -> None:
    b = make_batch(13, drift)
    assert_same(build({"preset": "pairwise", "pairwise": tau}), b, surrogate(b, tau))


@pytest.mark.parametrize("tau", [0.1, 1.0])
def test_the_first_pairwise_step_is_2_tau_times_group_reinforce(tau: float) -> None:
    b = make_batch(13, drift=0.0)
    literal = torch.autograd.grad(surrogate(b, tau), b.logp)[0]
    reinforce = our_gradient(build({"preset": "reinforce", "baseline": "mean"}), b)
    torch.testing.assert_close(literal, 2 * tau * reinforce, rtol=1e-12, atol=1e-15)


def test_away_from_the_data_policy_the_two_differ() -> None:
    b = make_batch(13, drift=0.3)
    pairwise = our_gradient(build("pairwise"), b)
    reinforce = our_gradient(build({"preset": "reinforce", "baseline": "mean"}), b)
    assert (pairwise - 0.2 * reinforce).abs().max() > 1e-3


# -- what must not poison a step


def test_a_masked_infinite_ratio_gives_zero_not_nan() -> None:
    row = build({"preset": "grpo"})
    one, far = np.ones((2, 1)), np.array([[800.0], [0.0]])
    with np.errstate(over="ignore"):
        factors = coefficients(row, one, one, far, one)
    np.testing.assert_array_equal(factors.policy, [[0], [1]])


def test_the_soft_gate_closes_for_an_infinite_ratio() -> None:
    with np.errstate(all="ignore"):
        factors = coefficients(build("sapo"), *[np.ones((1, 1))] * 2, np.array([[800.0]]), np.ones((1, 1)))
    np.testing.assert_array_equal(factors.policy, 0)


@pytest.mark.parametrize("preset", ["grpo", "sapo", "cispo", "topr", "opmd", "reinforce", "gspo", "rec_oneside_is"])
def test_excluded_rows_have_zero_factors(preset: str) -> None:
    row = build({"preset": preset, "kl": "k3", "kl_coefficient": 0.1})
    row = row.model_copy(update={"kl_corrected": True})
    zero, far = np.zeros((1, 1)), np.array([[0.4, 800.0, -800.0]])
    with np.errstate(all="ignore"):
        factors = coefficients(row, zero, zero, far, np.ones((1, 3)), far)
    assert not factors.policy.any()
    assert not factors.penalty.any()
