"""`explain`: what an objective makes of rewards written on a command line; the table; the page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from delphic.errors import UserError
from delphic.objective import PRESETS, Objective, build
from delphic.objective.explain import explain, formula, render_markdown, table

KEYS = ["objective", "advantages", "weights", "penalty_weights", "dropped", "drop_reasons", "notes"]
# every input, so that any row finds what it needs
ALL: dict[str, Any] = {
    "ratios": "1,1.1,2;0.5,1",
    "lengths": "3,4,5;1,2",
    "values": "0.5;0.2",
    "score_norms": "1,2,3;1,1",
    "reference_ratios": "1,1.5,0.7;1,2",
    "max_length": 8,
}


def told(result: dict[str, Any]) -> str:
    return " ".join(result["notes"])


@pytest.mark.parametrize("name", PRESETS)
def test_every_row_explains_itself_as_plain_json(name: str) -> None:
    result = explain(build(name), "1,0,nan;0.5,0.5", **ALL)
    assert list(result) == KEYS
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert not any(str(x) == "-0.0" for key in KEYS[1:4] for group in result[key] for x in group)
    for key in KEYS[1:4]:
        assert [len(group) for group in result[key]] == [3, 2]
        assert result[key][0][2] == 0
    assert 2 in result["dropped"][0]
    assert [len(reasons) for reasons in result["drop_reasons"]] == [len(rows) for rows in result["dropped"]]


def test_the_numbers_of_grpo() -> None:
    result = explain(build({"preset": "grpo", "scale_epsilon": 0.0}), "1,0,0,0;1,1", ratios="1.1,1,0.5,1;1,1")
    np.testing.assert_allclose(result["advantages"][0], [1.5, -0.5, -0.5, -0.5])
    np.testing.assert_allclose(result["weights"][0], [1.65, -0.5, 0, -0.5])  # 0.5 < 1 − ε and A < 0: masked
    assert result["advantages"][1] == result["weights"][1] == [0, 0]
    assert "The mask removed 1 of 4" in told(result)
    assert "Group 2 is silent (equal rewards): no gradient." in result["notes"]


def test_minus_zero_is_zero() -> None:
    result = explain(build("rloo"), "-0.0,0;0,-0.0")
    assert "-0.0" not in json.dumps(result)


def test_a_reward_that_is_not_a_number_is_dropped_and_counted() -> None:
    result = explain(build("dr_grpo"), "1,nan,3")
    assert result["advantages"] == [[-1, 0, 1]]
    assert result["dropped"] == [[1]]
    assert result["drop_reasons"] == [["reward is not a number"]]
    assert "Group 1: 1 of 3 left out" in told(result)


def test_a_completion_alone_in_its_group_is_dropped() -> None:
    result = explain(build("grpo"), "1;1,0")
    assert result["weights"][0] == [0]
    assert result["drop_reasons"] == [["alone in its group"], []]
    assert "nothing to compare it with" in told(result)
    assert explain(build("reinforce"), "1;1,0")["weights"] == [[1], [1, 0]]


def test_values_are_one_a_group_or_one_a_completion() -> None:
    for values in ("0.25;0.5", "0.25,0.25;0.5"):
        assert explain(build("a2c"), "1,0;1", values=values)["advantages"] == [[0.75, -0.25], [0.5]]


def test_penalties_have_the_sign_of_what_the_step_ascends() -> None:
    result = explain(build({"preset": "opmd", "quadratic": 0.5}), "1,0", ratios="2,1")
    np.testing.assert_allclose(result["penalty_weights"], [[-0.5 * np.log(2), 0]])
    kl = build({"preset": "grpo", "kl": "k2", "kl_coefficient": 0.1})
    result = explain(kl, "1,1", reference_ratios="2,0.5")
    np.testing.assert_allclose(result["penalty_weights"], [[-0.1 * np.log(2), 0.1 * np.log(2)]])
    assert "only the penalty acts" in told(result)
    masked = explain(build({"preset": "opmd", "silent_groups": "mask"}), "1,1", ratios="2,3")
    assert masked["penalty_weights"] == [[0, 0]]


def test_kl_in_the_reward_comes_from_the_reference_ratio() -> None:
    row = build({"preset": "dr_grpo", "kl": "k1", "kl_place": "reward", "kl_coefficient": 1.0})
    result = explain(row, "0,0", reference_ratios=f"{np.e},1")
    np.testing.assert_allclose(result["advantages"], [[-0.5, 0.5]])


def test_pairwise_uses_the_ratios() -> None:
    result = explain(build({"preset": "pairwise", "pairwise": 1.0}), "1,0", ratios=f"{np.e},1")
    np.testing.assert_allclose(result["weights"], [[0, 0]], atol=1e-15)  # a = 1 − 1 = 0: nothing left to do


def test_red_drop_draws_by_the_seed() -> None:
    rewards = "1" + ",0" * 9
    one, again = explain(build("red_drop"), rewards, seed=3), explain(build("red_drop"), rewards, seed=3)
    assert one == again
    assert len(one["dropped"][0]) == 8
    assert set(one["drop_reasons"][0]) == {"surplus negative"}
    drawn = {tuple(explain(build("red_drop"), rewards, seed=s)["dropped"][0]) for s in range(10)}
    assert len(drawn) > 1
    assert "seed 3" in told(one)


def test_truncated_completions_are_told_by_their_lengths() -> None:
    row = build({"preset": "dr_grpo", "truncated": "mask"})
    result = explain(row, "1,0,4", lengths="2,3,8", max_length=8)
    assert result["drop_reasons"] == [["truncated"]]


@pytest.mark.parametrize(
    ("preset", "rewards", "more", "text"),
    [
        ("topr", "1,0", {}, "No reward is negative, so failures weigh nothing"),
        ("maxrl", "-1,2", {}, "meant for rewards ≥ 0"),
        ("rloo", "1,0", {"ratios": "1,2"}, "ignores --ratios"),
        ("rloo", "1,0", {"lengths": "1,2", "max_length": 9}, "ignores --lengths"),
        ("asymre", "1,1", {}, "the shift 0.1 still moves it"),
        ("dr_grpo", "nan,nan", {}, "2 of 2 left out"),
    ],
)
def test_notes_say_what_a_reader_would_wonder_about(preset: str, rewards: str, more: dict[str, Any], text: str) -> None:
    assert text in told(explain(build(preset), rewards, **more))


def test_nothing_to_say_is_no_notes() -> None:
    assert explain(build("grpo"), "1,0;0,1", ratios="1,1;1,1.1")["notes"] == []
    assert explain(build("topr"), "1,-1")["notes"] == []


@pytest.mark.parametrize(
    ("preset", "rewards", "more", "text"),
    [
        ("grpo", "1,x", {}, r'--rewards: "x" \(group 1, completion 2\) is not a number'),
        ("grpo", "1,0;", {}, r'--rewards: "" \(group 2, completion 1\) is not a number'),
        ("grpo", "1,0;1,1", {"ratios": "1,1"}, r"--ratios: 1 group\(s\), expected 2"),
        ("grpo", "1,0;1,1", {"ratios": "1,1;1"}, r"--ratios: group 2 has 1 number\(s\), expected 2"),
        ("grpo", "1,0", {"ratios": "1,0"}, r"--ratios: 0 \(group 1, completion 2\) must be finite and greater than 0"),
        ("grpo", "1,0", {"ratios": "inf,1"}, "--ratios: inf"),
        ("grpo", "1,0", {"ratios": "nan,1"}, "--ratios: nan"),
        ("a2c", "1,0", {}, "--values: objective"),
        ("oracle", "1,0,1", {"values": "1,0"}, "--values: group 1 .* expected 1 or 3"),
        ("opo", "1,0", {}, "--lengths: objective"),
        ("best_baseline", "1,0", {}, "--score-norms: objective"),
        ({"preset": "grpo", "kl_coefficient": 0.1}, "1,0", {}, "--reference-ratios: objective"),
        ({"kl": "k1", "kl_place": "reward", "kl_coefficient": 0.1}, "1,0", {}, "--reference-ratios: objective"),
        ({"overlong_buffer": 4}, "1,0", {"lengths": "1,1"}, "--max-length: objective"),
        ({"overlong_buffer": 4}, "1,0", {"lengths": "1,1", "max_length": 3}, "--max-length: 3 is too short"),
        ("grpo", "1e300,0", {}, "--rewards: numbers beyond 1e100"),
        ("red_weight", "5000,0", {}, r"--rewards: 5000 \(group 1, completion 1\)"),
    ],
)
def test_mistakes_name_the_option_the_place_and_what_was_expected(
    preset: Any, rewards: str, more: dict[str, Any], text: str
) -> None:
    with pytest.raises(UserError, match=text):
        explain(build(preset), rewards, **more)


# -- formula, table, page


def test_a_formula_shows_only_what_does_something() -> None:
    assert formula(build("reinforce")).splitlines() == [
        "L = −agg( sg(A) · log π )",
        "  A = r",
        "  agg = mean over completions of token sums",
    ]
    text = formula(build({"preset": "grpo", "kl_coefficient": 0.05, "silent_groups": "mask"}))
    for part in (
        "L = −agg( sg(A · u · M) · log π ) + 0.05 · agg(KL)",
        "A = (r − mean(r)) / (std(r) + 1e-06)",
        "M = A ≥ 0 and ρ ≤ 1.2, or A < 0 and ρ ≥ 0.8",
        "KL = exp(−δ) − 1 + δ, δ = log π − log π_ref",
        "groups of equal rewards feel nothing",
    ):
        assert part in text


def test_every_choice_changes_the_formula() -> None:
    """Whatever a field says, the text says it too (a field's neighbours are set so that it has an effect)."""
    base: dict[str, Any] = {
        "baseline": "log_mean_exp",
        "scale": "std",
        "overlong_buffer": 4,
        "data_weight": "exponential",
        "importance": "soft_gate",
        "mask": "ring",
        "clip_low": 0.2,
        "kl": "k3",
        "kl_coefficient": 0.1,
        "quadratic": 0.1,
    }
    other: dict[str, Any] = {
        "reward_normalization": "per_reward",
        "overlong_buffer": 5,
        "overlong_penalty": 0.5,
        "selection": "balance",
        "baseline": "leave_one_out",
        "baseline_shift": 0.1,
        "baseline_temperature": 2.0,
        "scale": "batch_whiten",
        "scale_epsilon": 1e-4,
        "truncated": "mask",
        "silent_groups": "mask",
        "data_weight": "none",
        "data_weight_temperature": 2.0,
        "multiplier": 0.5,
        "importance": "ratio",
        "gate_positive": 2.0,
        "gate_negative": 2.0,
        "mask": "two_side",
        "clip_low": 0.1,
        "clip_high": 0.1,
        "ring_low": 0.7,
        "ring_high": 3.0,
        "ratio_level": "sequence",
        "kl": "k2",
        "kl_coefficient": 0.2,
        "kl_place": "reward",
        "kl_corrected": True,
        "quadratic": 0.2,
        "quadratic_level": "token",
        "entropy_bonus": 0.1,
        "aggregation": "constant",
    }
    assert set(other) | {"name", "importance_cap", "pairwise"} == set(Objective.model_fields)
    for key, value in other.items():
        assert formula(build({**base, key: value})) != formula(build(base)), key
    assert "min(ρ, 3)" in formula(build({"importance": "capped", "importance_cap": 3.0}))
    assert "− 0.3 · Δ" in formula(build({"baseline": "mean", "pairwise": 0.3}))


def test_the_table_has_a_row_a_preset() -> None:
    rows = {row["name"]: row for row in table()}
    assert list(rows) == list(PRESETS)
    assert rows["asymre"]["baseline"] == "mean − 0.1"
    assert rows["gspo"]["importance"] == "s"
    assert rows["gspo"]["mask"] == "one side 0.0003/0.0004 on s"
    assert rows["rec_ring_nois"]["mask"] == "ring 0.2/0.2, 0.6/2"
    assert rows["reinforce"]["mask"] == rows["reinforce"]["scale"] == "–"
    assert all(isinstance(cell, str) and cell for row in rows.values() for cell in row.values())


def test_the_page_on_disk_is_the_one_the_code_gives() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "objectives.md"
    assert page.read_text(encoding="utf-8") == render_markdown(), "run scripts/write_docs.py"


def test_the_page_names_every_row_and_every_choice() -> None:
    page = render_markdown()
    assert all(f"\n## {name}\n" in page for name in PRESETS)
    assert all(f"| `{field}` |" in page for field in Objective.model_fields)


def test_explaining_needs_no_torch() -> None:
    code = "import sys, delphic.objective.explain; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
