"""Exact identities of the group-relative gradient, by enumeration of small policies in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delphic.statistics.ustatistic import baseline_weights, hoeffding, prompt_moments, u_statistic


class Policy:
    """A softmax over arms with random features: everything about it is known exactly."""

    def __init__(self, seed: int, arms: int = 3, dimensions: int = 4) -> None:
        rng = np.random.default_rng(seed)
        self.p = rng.dirichlet(np.ones(arms))
        features = rng.normal(size=(arms, dimensions))
        self.scores = features - self.p @ features
        self.rewards = rng.normal(size=arms)
        self.value = float(self.p @ self.rewards)
        self.gradient = (self.p * (self.rewards - self.value)) @ self.scores
        self.norms = (self.scores**2).sum(1)

    def mean(self, of: np.ndarray) -> float:
        return float(self.p @ of)

    def groups(self, size: int) -> list[tuple[float, np.ndarray, np.ndarray]]:
        """(probability, scores, rewards) of every possible group."""
        arms = range(len(self.p))
        drawn = [np.array(g) for g in itertools.product(arms, repeat=size)]
        return [(float(np.prod(self.p[g])), self.scores[g], self.rewards[g]) for g in drawn]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(2, 9))
def test_the_leave_one_out_gradient_is_the_u_statistic(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    scores, rewards = rng.normal(size=(count, 5)), rng.normal(size=count)
    direct = baseline_weights(rewards, "loo") @ scores
    assert np.allclose(direct, u_statistic(scores, rewards), atol=1e-12)
    written_out = sum(scores[i] * (rewards[i] - np.delete(rewards, i).mean()) for i in range(count)) / count
    assert np.allclose(direct, written_out, atol=1e-12)
    shrunk = baseline_weights(rewards, "self_inclusive") @ scores
    assert np.allclose(shrunk, (count - 1) / count * direct, atol=1e-12)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_the_parts_sum_up_and_are_orthogonal(seed: int, count: int) -> None:
    policy = Policy(seed)
    cross, mean_oracle, mean_degenerate, total = 0.0, 0.0, 0.0, 0.0
    for chance, scores, rewards in policy.groups(count):
        parts = hoeffding(scores, rewards, policy.value, policy.gradient)
        whole = baseline_weights(rewards, "loo") @ scores
        assert np.allclose(parts.mean + parts.oracle + parts.degenerate, whole, atol=1e-12)
        cross += chance * parts.oracle @ parts.degenerate
        mean_oracle = mean_oracle + chance * parts.oracle
        mean_degenerate = mean_degenerate + chance * parts.degenerate
        total += chance
    assert total == pytest.approx(1)
    assert abs(cross) < 1e-13
    assert np.allclose(mean_oracle, 0, atol=1e-13)
    assert np.allclose(mean_degenerate, 0, atol=1e-13)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [4, 5])
def test_every_moment_is_unbiased(seed: int, count: int) -> None:
    policy = Policy(seed)
    centred = (policy.rewards - policy.value) ** 2
    truth = {
        "score": policy.mean(policy.norms),
        "spread": policy.mean(policy.norms * centred),
        "product": policy.mean(policy.norms) * policy.mean(centred),
        "square": policy.mean(policy.norms * policy.rewards**2),
        "linear": policy.mean(policy.norms * policy.rewards),
        "gradient": float(policy.gradient @ policy.gradient),
        "value": policy.value,
        "variance": policy.mean(centred),
    }
    found = dict.fromkeys(truth, 0.0)
    for chance, scores, rewards in policy.groups(count):
        moments = prompt_moments(scores @ scores.T, rewards)
        for name in found:
            found[name] += chance * getattr(moments, name)
    for name, value in truth.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(4, 8))
def test_closed_forms_are_the_sums_over_distinct_completions(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    scores, z = rng.normal(size=(count, 3)), rng.normal(size=count)
    gram = scores @ scores.T
    moments = prompt_moments(gram, z)
    triples = list(itertools.permutations(range(count), 3))
    assert moments.spread == pytest.approx(np.mean([gram[i, i] * (z[i] - z[j]) * (z[i] - z[k]) for i, j, k in triples]))
    assert moments.product == pytest.approx(np.mean([gram[i, i] * (z[j] - z[k]) ** 2 / 2 for i, j, k in triples]))
    pairs = list(itertools.combinations(range(count), 2))
    h = {(i, j): 0.5 * (scores[i] - scores[j]) * (z[i] - z[j]) for i, j in pairs}
    disjoint = [h[p] @ h[q] for p in pairs for q in pairs if not set(p) & set(q)]
    assert moments.gradient == pytest.approx(np.mean(disjoint))
    order = rng.permutation(count)
    shuffled = prompt_moments(gram[np.ix_(order, order)], z[order])
    for name, value in vars(moments).items():
        assert getattr(shuffled, name) == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_too_few_completions_give_nan_and_no_number() -> None:
    scores, z = np.eye(2), np.array([0.0, 1.0])
    moments = prompt_moments(scores @ scores.T, z)
    assert np.isnan([moments.spread, moments.product, moments.gradient]).all()
    assert moments.norm == pytest.approx(0.5)
    with pytest.raises(ValueError, match="two completions"):
        baseline_weights(np.ones(1), "loo")
    with pytest.raises(ValueError, match="no baseline"):
        baseline_weights(np.ones(2), "best")
