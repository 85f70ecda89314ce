"""The table of rows, written out a second time from the papers, and how a config names and changes a row."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from delphic.errors import UserError
from delphic.objective import PRESETS, Objective, build

# columns: baseline, scale, mask, importance, aggregation; and what else differs from the defaults
T, S, SUM, C = "token_mean", "sequence_mean", "sequence_sum", "constant"
ON_S = {"ratio_level": "sequence", "clip_low": 3e-4, "clip_high": 4e-4}
TABLE: dict[str, tuple[str, str, str, str, str, dict[str, Any]]] = {
    "reinforce": ("none", "none", "none", "none", SUM, {}),
    "rloo": ("leave_one_out", "none", "none", "none", SUM, {}),
    "grpo": ("mean", "std", "one_side", "ratio", S, {"kl": "k3"}),
    "dr_grpo": ("mean", "none", "one_side", "ratio", C, {}),
    "dapo": ("mean", "std", "one_side", "ratio", T, {"clip_high": 0.28}),
    "gspo": ("mean", "std", "one_side", "ratio", S, ON_S),
    "cispo": ("mean", "std", "none", "capped", T, {"importance_cap": 5.0}),
    "topr": ("none", "none", "none", "truncated_negative", T, {}),
    "rec_oneside_is": ("mean", "none", "one_side", "ratio", T, {}),
    "rec_oneside_nois": ("mean", "none", "one_side", "none", T, {}),
    "rec_twoside_is": ("mean", "none", "two_side", "ratio", T, {}),
    "rec_twoside_nois": ("mean", "none", "two_side", "none", T, {}),
    "rec_ring_nois": ("mean", "none", "ring", "none", T, {"ring_low": 0.6, "ring_high": 2.0}),
    "rec_gspo_is": ("mean", "none", "one_side", "ratio", S, ON_S),
    "rec_gspo_nois": ("mean", "none", "one_side", "none", S, ON_S),
    "red_drop": ("mean", "none", "none", "none", T, {"selection": "balance"}),
    "red_weight": ("mean", "none", "none", "none", T, {"data_weight": "exponential", "data_weight_temperature": 1.0}),
    "opmd": ("mean", "none", "none", "none", T, {"quadratic": 0.1, "quadratic_level": "sequence"}),
    "opmd_logavgexp": ("log_mean_exp", "none", "none", "none", T, {"baseline_temperature": 1.0, "multiplier": 0.5}),
    "asymre": ("mean", "none", "none", "none", T, {"baseline_shift": 0.1}),
    "pairwise": ("mean", "none", "none", "none", SUM, {"pairwise": 0.1}),
    "sppo": ("mean", "std", "two_side", "none", T, {"clip_low": 1 - 1 / 1.3, "clip_high": 0.3}),
    "sapo": ("mean", "std", "none", "soft_gate", S, {"gate_positive": 1.0, "gate_negative": 1.05}),
    "opo": ("length_mean", "none", "none", "none", T, {}),
    "maxrl": ("mean", "mean", "none", "none", T, {}),
    "reinforce_pp": ("none", "batch_whiten", "one_side", "ratio", T, {}),
    "reinforce_pp_baseline": ("mean", "batch_whiten", "one_side", "ratio", T, {}),
    "a2c": ("critic", "none", "none", "none", SUM, {}),
    "oracle": ("oracle", "none", "none", "none", SUM, {}),
    "best_baseline": ("score_norm_mean", "none", "none", "none", SUM, {}),
}
# what a row has unless the table says otherwise
DEFAULTS = {
    "clip_low": 0.2,
    "clip_high": 0.2,
    "ring_low": 0.6,
    "ring_high": 2.0,
    "ratio_level": "token",
    "kl_coefficient": 0.0,
    "quadratic": 0.0,
    "pairwise": 0.0,
    "baseline_shift": 0.0,
    "multiplier": 1.0,
    "data_weight": "none",
    "selection": "all",
    "overlong_buffer": 0,
    "entropy_bonus": 0.0,
    "scale_epsilon": 1e-6,
    "silent_groups": "penalise",
    "truncated": "keep",
}


def test_the_table_has_every_row_and_no_other() -> None:
    assert set(TABLE) == set(PRESETS)


@pytest.mark.parametrize("name", TABLE)
def test_row(name: str) -> None:
    *columns, others = TABLE[name]
    wanted = {**DEFAULTS, **dict(zip(["baseline", "scale", "mask", "importance", "aggregation"], columns, strict=True))}
    wanted.update(others)
    row = build(name).model_dump()
    assert {key: row[key] for key in wanted} == wanted
    assert row["name"] == name
    assert PRESETS[name].source
    assert PRESETS[name].about


def test_a_row_can_be_changed_and_says_so() -> None:
    row = build({"preset": "grpo", "mask": "ring"})
    assert (row.mask, row.scale, row.name) == ("ring", "std", "grpo (modified)")
    assert build({"preset": "grpo", "mask": "ring", "name": "mine"}).name == "mine"


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("grop", 'no objective "grop".*did you mean "grpo"'),
        ({"preset": "grpo", "clip_hihg": 0.3}, 'clip_hihg: no such choice.*"clip_high"'),
        ({"scale": "standard"}, "objective.scale"),
        ({"clip_low": -0.1}, "objective.clip_low"),
        ({"kl": "k1", "kl_coefficient": 0.1}, "zero expected gradient"),
        ({"kl_coefficient": 0.1}, 'kl = "none"'),
        ({"mask": "ring", "clip_high": 3.0}, "ring_low and ring_high"),
        ({"baseline": "leave_one_out", "pairwise": 0.1}, "pairwise"),
    ],
)
def test_mistakes_are_refused_with_the_place_and_the_nearest_valid_thing(spec: Any, text: str) -> None:
    with pytest.raises(UserError, match=text):
        build(spec)


def test_a_row_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValidationError):
        Objective().mask = "ring"  # type: ignore[misc]


def test_which_rows_compare_within_the_group() -> None:
    alone = {"reinforce", "topr", "reinforce_pp", "a2c", "oracle"}
    assert {name for name in PRESETS if not build(name).group_relative} == alone


def test_which_rows_need_the_behaviour_policy() -> None:
    free = {"reinforce", "rloo", "red_drop", "red_weight", "opmd_logavgexp", "asymre", "opo", "maxrl"}
    free |= {"a2c", "oracle", "best_baseline"}
    assert {name for name in PRESETS if not build(name).needs_behaviour} == free
