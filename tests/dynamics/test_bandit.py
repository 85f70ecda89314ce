"""The softmax bandit: exact quantities against finite differences and enumeration, draws against both."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from delphic.dynamics.bandit import Bandit
from delphic.dynamics.bandit_run import Anchor, Optimiser, Plan, prompt_order, stiffness, train
from delphic.dynamics.bandit_update import Draws, draw, expected_update, sampled_update
from delphic.objective import Objective, build
from delphic.statistics.error import mean_squared_error
from delphic.training.lag import lag

GRPO = {"baseline": "mean", "scale": "std", "scale_epsilon": 0.0, "mask": "one_side", "importance": "ratio"}
ONE_TOKEN = {"aggregation": "sequence_sum"}


def world(noise: str = "binary", prompts: int = 2, arms: int = 3, dimensions: int = 4) -> Bandit:
    rng = np.random.default_rng(3)
    features, rewards = rng.normal(size=(prompts, arms, dimensions)), rng.random((prompts, arms))
    return Bandit(features, rewards, noise, 0.3)  # type: ignore[arg-type]


def theta(seed: int, size: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size)


def groups(
    bandit: Bandit, objective: Objective, size: int, now: np.ndarray, old: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(chance [M], update [M, D]) of every prompt and every group of `size` drawn from `old`: one replica each."""
    P, count = bandit.outcome_rewards.shape
    every = np.array([(x, *g) for x in range(P) for g in itertools.product(range(count), repeat=size)])
    prompts, outcome = every[:, :1], every[:, 1:]
    rewards = bandit.outcome_rewards[prompts, outcome][:, None]
    draws = Draws(prompts, outcome[:, None] // bandit.outcomes_per_arm, rewards)
    pi, pi_old = bandit.probabilities(now), bandit.probabilities(old)
    tiled = [np.broadcast_to(p, (len(every), *p.shape)) for p in (pi, pi_old)]
    chance = bandit.outcome_chances(pi_old)[prompts, outcome].prod(1) / P
    return chance, sampled_update(bandit, objective, draws, *tiled)


def expected(bandit: Bandit, choices: dict[str, object], size: int, now: np.ndarray, old: np.ndarray) -> np.ndarray:
    chance, update = groups(bandit, build({**ONE_TOKEN, **choices}), size, now, old)
    assert chance.sum() == pytest.approx(1, abs=1e-12)
    return chance @ update


# -- exact quantities


@pytest.mark.parametrize("noise", ["none", "binary"])
def test_the_gradient_is_the_slope_of_j(noise: str) -> None:
    bandit, at, h = world(noise), theta(0), 1e-5
    slope = [(bandit.expected_reward(at + e) - bandit.expected_reward(at - e)) / (2 * h) for e in h * np.eye(len(at))]
    np.testing.assert_allclose(bandit.gradient(at), slope, atol=1e-8)


@pytest.mark.parametrize("noise", ["none", "binary"])
@pytest.mark.parametrize("size", [2, 3])
def test_the_moments_give_the_enumerated_error(noise: str, size: int) -> None:
    bandit, at = world(noise), theta(1)
    chance, update = groups(bandit, build({**ONE_TOKEN, "baseline": "leave_one_out"}), size, at, at)
    g = bandit.gradient(at)
    np.testing.assert_allclose(chance @ update, g, atol=1e-12)
    error = chance @ ((update - g) ** 2).sum(1)
    assert float(mean_squared_error("loo", bandit.moments(at), 1, size)) == pytest.approx(error, abs=1e-12)


def test_gaussian_noise_adds_its_variance_to_every_moment() -> None:
    quiet, loud, at = world("none"), world("gaussian"), theta(1)
    a, b = quiet.moments(at), loud.moments(at)
    p = quiet.probabilities(at)
    scores = quiet.features - np.einsum("pk,pkd->pd", p, quiet.features)[:, None]
    extra = 0.3**2 * (p * (scores**2).sum(-1)).sum(-1).mean()
    for name in ("spread", "product", "square"):
        assert getattr(b, name) - getattr(a, name) == pytest.approx(extra, abs=1e-12)
    assert (a.between, a.best) == (b.between, b.best)


def test_the_best_reward_is_reached_where_prompts_share_nothing() -> None:
    rewards = np.array([[0.1, 0.9, 0.4], [0.7, 0.2, 0.3]])
    bandit = Bandit.tabular(rewards)
    assert bandit.best(np.zeros(6)) == pytest.approx(0.8, abs=1e-4)
    # with a KL term of weight β the optimum of a prompt is β log Σ π_start exp(r/β)
    closed = np.mean(0.5 * np.log(np.exp(rewards / 0.5).mean(1)))
    assert bandit.best(np.zeros(6), 0.5) == pytest.approx(closed, abs=1e-9)


# -- theory section 2, fact (b)


@pytest.mark.parametrize("size", [2, 3])
def test_stale_samples_follow_the_old_gradient_and_exact_ratios_the_new_one(size: int) -> None:
    """In the tabular bandit, where a prompt's scores at θ_now are e − π_now: their mean part is lost in the baseline."""
    bandit = Bandit.tabular(world().rewards, "binary")
    now, old = theta(5, 6), theta(6, 6)
    for baseline, kept in (("leave_one_out", 1.0), ("mean", (size - 1) / size)):
        stale = expected(bandit, {"baseline": baseline}, size, now, old)
        np.testing.assert_allclose(stale, kept * bandit.gradient(old), atol=1e-12)
        exact = expected(bandit, {"baseline": baseline, "importance": "ratio"}, size, now, old)
        np.testing.assert_allclose(exact, kept * bandit.gradient(now), atol=1e-12)


# -- sampled updates


@pytest.mark.parametrize("choices", [{"baseline": "mean"}, {"baseline": "leave_one_out"}, GRPO], ids=str)
def test_the_mean_of_sampled_updates_is_the_enumerated_one(choices: dict[str, object]) -> None:
    """40,000 steps of 2 prompts × 3, off-policy: each of 4 numbers within four standard errors (6e-5 each)."""
    bandit, now, old, R = world(), theta(1), theta(1) + 0.2 * theta(2), 40_000
    rng = np.random.default_rng(0)
    pi, pi_old = (np.broadcast_to(bandit.probabilities(t), (R, 2, 3)) for t in (now, old))
    draws = draw(bandit, bandit.outcome_chances(pi_old), rng.integers(2, size=(R, 2)), rng.random((R, 2, 3)))
    update = sampled_update(bandit, build({**ONE_TOKEN, **choices}), draws, pi, pi_old)
    error = update.std(0, ddof=1) / np.sqrt(R)
    assert (np.abs(update.mean(0) - expected(bandit, choices, 3, now, old)) < 4 * error).all()


@pytest.mark.parametrize("noise", ["none", "binary"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize(("prompts", "per_step"), [(1, 1), (1, 3), (5, 3)])
def test_the_form_from_counts_is_the_trainers_update(noise: str, baseline: str, prompts: int, per_step: int) -> None:
    bandit = world(noise, prompts)
    plan = Plan(build({"baseline": baseline}), per_step, 6, "epochs", Optimiser(rate=0.5), interval=3, offset=1)
    start = np.tile(theta(4), (7, 1))
    runs = [train(bandit, plan, start, 20, seed=1, counted=counted).last for counted in (True, False)]
    np.testing.assert_allclose(runs[0], runs[1], atol=1e-12)
    assert np.abs(runs[0] - start).max() > 0.01


def test_gaussian_rewards_are_drawn_around_the_arms_mean() -> None:
    """Within four standard errors: 6e-5."""
    bandit, rng = world("gaussian", 1), np.random.default_rng(1)
    chances = np.broadcast_to(bandit.probabilities(theta(0)), (1, 1, 3))
    uniforms = rng.random((1, 1, 20_000))
    draws = draw(bandit, chances, np.zeros((1, 1), dtype=int), uniforms, rng.standard_normal(uniforms.shape))
    rest = draws.rewards - bandit.rewards[0][draws.arms]
    assert abs(rest.mean()) < 4 * 0.3 / np.sqrt(20_000)
    assert rest.std() == pytest.approx(0.3, rel=4 / np.sqrt(40_000))


# -- the limit of infinite groups


def test_the_limit_with_std_is_each_prompts_gradient_over_its_deviation() -> None:
    bandit, at = world(), theta(2)
    found = expected_update(bandit, build({**GRPO, **ONE_TOKEN}), at)
    value = bandit.values(at)
    own = np.array([Bandit(bandit.features[x : x + 1], bandit.rewards[x : x + 1]).gradient(at) for x in range(2)])
    np.testing.assert_allclose(found, (own / np.sqrt(value * (1 - value))[:, None]).mean(0), atol=1e-12)
    np.testing.assert_allclose(
        expected_update(bandit, build({"baseline": "mean"}), at), bandit.gradient(at), atol=1e-12
    )


def test_finite_groups_approach_the_limit_off_policy() -> None:
    """Groups of 20,000, mask and ratio at work: 200 of them within five standard errors and 1/G of bias."""
    bandit, now, R, G = world(), theta(1), 20, 20_000
    old, rng = now + 0.3 * theta(2), np.random.default_rng(0)
    objective = build({**GRPO, **ONE_TOKEN})
    pi, pi_old = (np.broadcast_to(bandit.probabilities(t), (R, 2, 3)) for t in (now, old))
    prompts = np.tile(np.arange(2), (R, 1))
    draws = draw(bandit, bandit.outcome_chances(pi_old), prompts, rng.random((R, 2, G)))
    update = sampled_update(bandit, objective, draws, pi, pi_old)
    error = 5 * update.std(0, ddof=1) / np.sqrt(R) + 1 / G
    limit = expected_update(bandit, objective, now, old)
    assert (np.abs(update.mean(0) - limit) < error).all()
    assert np.abs(limit - expected_update(bandit, objective, now)).max() > 0.02, "the behaviour policy matters"


# -- runs


@pytest.mark.parametrize(("interval", "offset"), [(1, 0), (4, 0), (1, 3), (3, 2), (100, 0)])
def test_runs_are_lagged_as_the_trainer_is(interval: int, offset: int) -> None:
    """Equal rewards leave the lagged anchor's pull alone: its path is known step by step."""
    bandit = Bandit(world("none").features, np.ones((2, 3)))
    anchor = Anchor(0.5, lagged=True)
    plan = Plan(build("rloo"), 1, 2, optimiser=Optimiser(rate=0.7), interval=interval, offset=offset, anchor=anchor)
    reference, path = theta(8), [theta(9)]
    for step in range(1, 13):
        source = path[step - 1 - lag(step, interval, offset)]
        path.append(path[-1] - 0.7 * 0.5 * bandit.kl_gradient(source, reference))
    trace = train(bandit, plan, path[0][None], 12, 0, every=1, keep_theta=True, reference=reference)
    assert trace.theta is not None
    np.testing.assert_allclose(trace.theta[:, 0], path, atol=1e-12)


def test_a_fresh_anchor_and_one_at_the_behaviour_policy() -> None:
    bandit, start, reference = world(), theta(1), theta(2)
    fresh, behind = Anchor(2.0), Anchor(2.0, to="behaviour")
    h = 1e-6

    def kl(at: np.ndarray, other: np.ndarray) -> float:
        p, q = bandit.probabilities(at), bandit.probabilities(other)
        return float((p * np.log(p / q)).sum() / len(p))

    for anchor, other in ((fresh, reference), (behind, start)):
        at = start + 0.3
        slope = [(kl(at + e, other) - kl(at - e, other)) / (2 * h) for e in h * np.eye(4)]
        np.testing.assert_allclose(anchor.pull(bandit, at, start, reference), -2 * np.array(slope), atol=1e-8)
    with pytest.raises(ValueError, match="cannot be lagged"):
        Anchor(1.0, "behaviour", lagged=True)


def test_the_optimisers_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    updates = np.random.default_rng(0).normal(size=(30, 5))
    for own, theirs in (
        (Optimiser("sgd", 0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        (Optimiser("adam", 0.1, betas=(0.8, 0.95)), lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.95))),
    ):
        at, parameter = np.zeros(5), torch.zeros(5, dtype=torch.float64, requires_grad=True)
        step, optimiser = own.start(at), theirs([parameter])
        for update in updates:
            at = at + step(update)
            parameter.grad = -torch.tensor(update)
            optimiser.step()
        np.testing.assert_allclose(at, parameter.detach().numpy(), atol=1e-12)


def test_epochs_show_every_prompt_once() -> None:
    order = prompt_order(6, 3, 4, "epochs", np.random.default_rng(0))
    seen = np.concatenate([order() for _ in range(6)], axis=1)
    for epoch in np.split(seen, 4, axis=1):
        assert (np.sort(epoch, axis=1) == np.arange(6)).all()
    assert (seen[0] != seen[1]).any(), "replicas shuffle for themselves"


@pytest.mark.parametrize("scale", ["none", "std"])
def test_stiffness_is_the_closed_form_of_two_arms(scale: str) -> None:
    """Theory section 3: K = 2βv* for the mean baseline, 2βv*(1 − h′(p*)) with the std (two free logits)."""
    beta, p_reference = 2.0, 0.3
    bandit = Bandit.tabular(np.array([[1.0, 0.0]]))
    plan = Plan(build({"baseline": "mean", "scale": scale, "scale_epsilon": 0.0}), anchor=Anchor(beta))
    start = np.log([p_reference, 1 - p_reference])

    def h(p: float) -> float:
        force = 1.0 if scale == "none" else 1 / np.sqrt(p * (1 - p))
        return float(1 / (1 + np.exp(-(start[0] - start[1] + force / beta))))

    p = p_reference
    for _ in range(500):
        p = h(p)
    slope = (h(p + 1e-6) - h(p - 1e-6)) / 2e-6
    values = stiffness(bandit, plan, np.log([p, 1 - p]), start)
    assert values[0].real == pytest.approx(2 * beta * p * (1 - p) * (1 - slope), rel=1e-5)
    assert abs(values[1]) < 1e-8, "adding to both logits changes nothing"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Bandit(np.zeros((2, 3, 4)), np.zeros((3, 2))), "features"),
        (lambda: Bandit(np.zeros((1, 2, 2)), np.full((1, 2), 2.0), "binary"), "between 0 and 1"),
        (lambda: expected_update(world(), build("red_drop"), theta(0)), "no infinite-group limit"),
        (lambda: expected_update(world("gaussian"), build(GRPO), theta(0)), "linear"),
        (lambda: train(world(), Plan(build("reinforce_pp")), theta(0)[None], 1, 0), "batch_whiten"),
    ],
)
def test_what_cannot_be_done_is_said(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()
