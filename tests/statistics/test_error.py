"""Every error formula against the exhaustive enumeration of small policies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from test_ustatistic import Policy

from delphic.statistics.error import ESTIMATORS, ErrorMoments, mean_squared_error
from delphic.statistics.ustatistic import baseline_weights

SHIFT = 0.3  # how wrong the critic is


def moments(policies: list[Policy]) -> ErrorMoments:
    """Exact moments over prompts that are equally likely."""
    g = np.mean([p.gradient for p in policies], axis=0)
    gradient = float(np.mean([p.gradient @ p.gradient for p in policies]))

    def over(of) -> float:  # type: ignore[no-untyped-def]
        return float(np.mean([of(p) for p in policies]))

    return ErrorMoments(
        between=gradient - float(g @ g),
        gradient=gradient,
        mean=float(g @ g),
        spread=over(lambda p: p.mean(p.norms * (p.rewards - p.value) ** 2)),
        product=over(lambda p: p.mean(p.norms) * p.mean((p.rewards - p.value) ** 2)),
        square=over(lambda p: p.mean(p.norms * p.rewards**2)),
        best=over(lambda p: p.mean(p.norms * p.rewards) ** 2 / p.mean(p.norms)),
        critic=over(lambda p: p.mean(p.norms * (p.rewards - p.value - SHIFT) ** 2)),
    )


def estimate(policy: Policy, scores: np.ndarray, rewards: np.ndarray, estimator: str) -> np.ndarray:
    values = {
        "oracle": policy.value,
        "critic": policy.value + SHIFT,
        "best_baseline": policy.mean(policy.norms * policy.rewards) / policy.mean(policy.norms),
    }
    if estimator in values:
        return baseline_weights(rewards, "value", values[estimator]) @ scores
    return baseline_weights(rewards, estimator) @ scores


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("prompts", [1, 2])
def test_the_formula_is_the_enumerated_error(estimator: str, count: int, prompts: int) -> None:
    policies = [Policy(seed) for seed in (1, 2)]
    g = np.mean([p.gradient for p in policies], axis=0)
    exact = 0.0
    by_prompt = [
        [(chance, estimate(p, scores, rewards, estimator)) for chance, scores, rewards in p.groups(count)]
        for p in policies
    ]
    if prompts == 1:
        for drawn in by_prompt:
            exact += sum(chance * float((e - g) @ (e - g)) for chance, e in drawn) / len(policies)
    else:  # two independent prompts: the mean of two independent estimates
        every = [(chance / len(policies), e) for drawn in by_prompt for chance, e in drawn]
        mean = sum(chance * e for chance, e in every)
        spread = sum(chance * float((e - mean) @ (e - mean)) for chance, e in every)
        exact = spread / 2 + float((mean - g) @ (mean - g))
    found = float(mean_squared_error(estimator, moments(policies), prompts, count))
    assert found == pytest.approx(exact, abs=1e-12)


def test_orders_that_must_hold() -> None:
    """The oracle is never beaten by leave-one-out, whose excess falls as 1/G²."""
    for seeds in itertools.combinations(range(6), 2):
        m = moments([Policy(s) for s in seeds])
        sizes = np.arange(2, 200)
        loo, oracle = (mean_squared_error(e, m, 4, sizes) for e in ("loo", "oracle"))
        assert (loo > oracle).all()
        assert np.allclose((loo - oracle) * sizes * (sizes - 1), m.constants[2] / 4)
        assert (mean_squared_error("best_baseline", m, 4, sizes) <= oracle + 1e-15).all()


def test_what_cannot_be_asked_is_refused() -> None:
    m = moments([Policy(0)])
    with pytest.raises(ValueError, match="needs two"):
        mean_squared_error("loo", m, 1, 1)
    with pytest.raises(ValueError, match="no estimator"):
        mean_squared_error("grpo", m, 1, 4)
