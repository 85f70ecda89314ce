"""Delphic's objectives through verl's own registries and aggregation."""

from __future__ import annotations

from typing import Any

import numpy as np
import peers
import pytest
import torch

peers.need("verl")

from delphic.errors import UserError
from delphic.objective import PRESETS, StepInputs, build, coefficients, prepare, token_weights

SERVED = [name for name in PRESETS if name not in ("a2c", "oracle", "best_baseline", "pairwise")]


@pytest.fixture(scope="module")
def core() -> Any:
    return peers.verl()


def batch() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    lengths = np.array([3, 1, 5, 2, 4, 4, 2, 5, 1, 3, 2, 6])
    mask = torch.from_numpy((np.arange(7)[None] < lengths[:, None]).astype(np.float32))
    reward = torch.zeros_like(mask)
    values = np.array([1, 0, 0, 0, 1, 1, 1, 1, 0.2, 0.5, 0.9, 0.1])
    reward[torch.arange(12), torch.from_numpy(lengths - 1)] = torch.from_numpy(values).float()
    old = torch.from_numpy(rng.normal(-1, 0.3, mask.shape)).float()
    new = old + torch.from_numpy(rng.normal(0, 0.25, mask.shape)).float()
    return {
        "mask": mask,
        "reward": reward,
        "old": old,
        "new": new,
        "uid": np.repeat(["b", "a", "c"], 4),
        "lengths": lengths,
    }


@pytest.mark.parametrize("name", SERVED)
def test_a_row_in_verl_has_the_rows_gradient(name: str, core: Any) -> None:
    from delphic.plugins.verl import register

    b, goal = batch(), build(name)
    label = register(name, seed=3)
    assert label == f"delphic_{name}"
    estimate, loss = core.get_adv_estimator_fn(label), core.get_policy_loss_fn(label)
    advantage, _ = estimate(token_level_rewards=b["reward"], response_mask=b["mask"], index=b["uid"], config=None)
    logp = b["new"].clone().requires_grad_()
    value, metrics = loss(b["old"], logp, advantage, b["mask"], config=None)
    value.backward()
    assert set(metrics) == {"actor/pg_clipfrac"}

    from delphic.randomness import Purpose, stream

    priority = np.array([stream(3, Purpose.DROP, 0, i).random() for i in range(12)])
    step = StepInputs(
        b["reward"].sum(-1).double().numpy(),
        np.repeat([1, 0, 2], 4),
        lengths=b["lengths"],
        max_length=7,
        priority=priority,
    )
    prepared = prepare(goal, step)
    column = lambda x: torch.from_numpy(x).float()[:, None]  # noqa: E731
    log_ratio = (b["new"] - b["old"]) * b["mask"]
    c = coefficients(goal, column(prepared.coefficient), column(prepared.penalised), log_ratio, b["mask"])
    totals = prepared.totals(b["lengths"])
    weight = token_weights(b["mask"], column(prepared.kept), goal.aggregation, totals, 7)
    assert logp.grad is not None
    assert torch.allclose(logp.grad, -weight * (c.policy + c.penalty), atol=1e-6)
    assert float(logp.grad.abs().max()) > 0


@pytest.mark.parametrize(
    ("objective", "piece"),
    [
        ("a2c", "critic"),
        ("pairwise", "scored log-probs"),
        ({"preset": "grpo", "kl_coefficient": 0.1}, "reference log-probs"),
        ({"preset": "opmd", "silent_groups": "mask"}, "which rows the penalty spares"),
    ],
)
def test_what_verl_cannot_serve_is_refused(objective: Any, piece: str, core: Any) -> None:
    from delphic.plugins.verl import register

    with pytest.raises(UserError, match=f"verl cannot serve .* it needs {piece}"):
        register(objective)


def test_a_batch_without_uids_is_refused(core: Any) -> None:
    from delphic.plugins.verl import register

    b = batch()
    estimate = core.get_adv_estimator_fn(register("rloo", name="delphic_no_uid"))
    with pytest.raises(UserError, match="needs group ids"):
        estimate(token_level_rewards=b["reward"], response_mask=b["mask"], config=None)
