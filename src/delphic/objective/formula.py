"""The text of an objective: its formula, the table of all rows, and the page docs/objectives.md.

One phrase a choice; whatever is composed of them gets its formula here, named row or not.
"""

from __future__ import annotations

from typing import Any, get_args

from delphic.objective.objective import Objective
from delphic.objective.presets import PRESETS, build

BASELINE = {
    "none": "r",
    "mean": "r − mean(r)",
    "leave_one_out": "r − mean(r of the others)",
    "length_mean": "r − Σ length·r / Σ length",
    "score_norm_mean": "r − Σ ‖S‖²·r / Σ ‖S‖²",
    "log_mean_exp": "r − {o.baseline_temperature:g} · log mean(exp(r/{o.baseline_temperature:g}))",
    "oracle": "r − V(x)",
    "critic": "r − V(x)",
}
SCALE = {"std": "({}) / (std(r) + {o.scale_epsilon:g})", "mean": "({}) / mean(r), 0 where mean(r) ≤ 0"}
IMPORTANCE = {
    "ratio": "ρ",
    "capped": "min(ρ, {o.importance_cap:g})",
    "truncated_negative": "1 if A > 0, else min(ρ, 1)",
    "soft_gate": "4ρ·σ(1 − σ), σ = sigmoid(τ(ρ − 1)), τ = {o.gate_positive:g} if A > 0, else {o.gate_negative:g}",
}
MASK = {
    "one_side": "A ≥ 0 and ρ ≤ {high:g}, or A < 0 and ρ ≥ {low:g}",
    "two_side": "{low:g} ≤ ρ ≤ {high:g}",
    "ring": "{low:g} ≤ ρ ≤ {high:g}, or A ≥ 0 and ρ ≤ {inner:g}, or A < 0 and ρ ≥ {outer:g}",
}
LEVEL = {
    "token": "π/π_behaviour per token",
    "sequence": "exp(mean over the completion's tokens of log π − log π_behaviour)",
    "completion": "exp(sum over the completion's tokens of log π − log π_behaviour)",
}
KL = {"k1": "δ", "k2": "δ²/2", "k3": "exp(−δ) − 1 + δ"}
QUADRATIC = {
    "sequence": "Σ over the completion's tokens of log π − log π_behaviour; Δ² counts once a completion",
    "token": "log π − log π_behaviour",
}
AGGREGATION = {
    "token_mean": "sum over tokens / tokens of the step",
    "sequence_mean": "mean over completions of token means",
    "sequence_sum": "mean over completions of token sums",
    "constant": "sum over tokens / (completions × max_length)",
}


def formula(objective: Objective) -> str:
    """The objective as a few lines of plain text; a line is there only where the choice does something."""
    o = objective
    factors = ["A"]
    factors += ["w"] if o.data_weight != "none" else []
    factors += ["u"] if o.importance != "none" else []
    factors += ["M"] if o.mask != "none" else []
    constant = o.multiplier * (2 * o.pairwise if o.pairwise > 0 else 1)
    head = f"L = −{'' if constant == 1 else f'{constant:g} · '}agg( sg({' · '.join(factors)}) · log π )"
    head += f" + {o.kl_coefficient:g} · agg(KL)" if o.uses_kl_loss else ""
    head += f" + {o.quadratic:g}/2 · agg(Δ²)" if o.quadratic > 0 else ""
    head += f" − {o.entropy_bonus:g} · agg(entropy)" if o.entropy_bonus > 0 else ""

    reward, lines = [], []
    if o.reward_normalization == "per_reward":
        reward.append(f"Σ_k weight_k · (r_k − mean(r_k)) / (std(r_k) + {o.scale_epsilon:g})")
    if o.overlong_buffer > 0:
        lines.append(f"overlong = 0 up to max_length − {o.overlong_buffer}, then linearly to −1 at max_length")
        reward.append(f"{o.overlong_penalty:g} · overlong")
    if o.uses_kl_reward:
        reward.append(f"−{o.kl_coefficient:g} · Σ over tokens of KL")
    if o.pairwise > 0:
        lines.append("Δ = Σ over the completion's tokens of log π − log π_behaviour")
        reward.append(f"−{o.pairwise:g} · Δ")
    if reward:
        start = [] if o.reward_normalization == "per_reward" else ["reward"]
        lines.insert(0, f"r = {' + '.join([*start, *reward])}".replace("+ −", "− "))

    a = BASELINE[o.baseline].format(o=o)
    if o.baseline_shift:
        a += f" {'+' if o.baseline_shift > 0 else '−'} {abs(o.baseline_shift):g}"
    if o.scale == "batch_whiten":
        a = f"(a − mean(a)) / (std(a) + {o.scale_epsilon:g}) over all tokens of the step, a = {a}"
    lines.append("A = " + SCALE.get(o.scale, "{}").format(a, o=o))
    if o.baseline in ("oracle", "critic"):
        lines.append("V(x) = " + ("the true value" if o.baseline == "oracle" else "a learned value"))
    if o.selection == "balance":
        lines.append(
            "where completions below mean(r) outnumber the rest, the surplus is dropped at random; A uses the kept"
        )
    if o.data_weight == "exponential":
        lines.append(f"w = exp(A/{o.data_weight_temperature:g})")
    if o.importance != "none":
        lines.append("u = " + IMPORTANCE[o.importance].format(o=o))
    if o.mask != "none":
        lines.append("M = " + _mask(o))
    if o.importance != "none" or o.mask != "none":
        lines.append("ρ = " + LEVEL[o.ratio_level])
    if o.needs_reference:
        corrected = o.uses_kl_loss and o.kl_corrected
        lines.append(f"KL = {'ρ · (' if corrected else ''}{KL[o.kl]}{')' if corrected else ''}, δ = log π − log π_ref")
        if corrected:
            lines.append("in KL, ρ = π/π_behaviour per token" + (", differentiated too" if o.kl == "k3" else ", fixed"))
    if o.quadratic > 0:
        lines.append("Δ = " + QUADRATIC[o.quadratic_level])
    lines.append("agg = " + AGGREGATION[o.aggregation])
    if o.truncated == "mask":
        lines.append("completions cut at the length limit do not count")
    if o.silent_groups == "mask":
        lines.append("groups of equal rewards feel nothing, penalties included")
    return "\n".join([head, *("  " + line for line in lines)])


def _mask(o: Objective) -> str:
    edges = {"low": 1 - o.clip_low, "high": 1 + o.clip_high, "inner": 1 - o.ring_low, "outer": 1 + o.ring_high}
    return MASK[o.mask].format(**edges)


def table() -> list[dict[str, str]]:
    """One row of text a preset, for `objective --list` and the documentation."""
    return [_row(build(name), preset.source) for name, preset in PRESETS.items()]


def _row(o: Objective, source: str) -> dict[str, str]:
    level = "s" if o.ratio_level == "sequence" else "ρ"
    baseline = o.baseline.replace("_", " ").replace("none", "–")
    if o.baseline_shift:
        baseline += f" {'−' if o.baseline_shift > 0 else '+'} {abs(o.baseline_shift):g}"
    mask = f"{o.mask.replace('_', ' ')} {o.clip_low:.3g}/{o.clip_high:.3g}"
    mask += f", {o.ring_low:g}/{o.ring_high:g}" if o.mask == "ring" else ""
    mask += " on s" if level == "s" else ""
    importance = {
        "none": "–",
        "ratio": level,
        "capped": f"min({level}, {o.importance_cap:g})",
        "truncated_negative": f"1 or min({level}, 1)",
        "soft_gate": "soft gate",
    }
    shape = [
        ("drop surplus negatives", o.selection == "balance"),
        (f"weight exp(A/{o.data_weight_temperature:g})", o.data_weight == "exponential"),
        (f"factor {o.multiplier:g}", o.multiplier != 1),
        (f"{o.quadratic:g}/2 · (log π − log π_behaviour)²", o.quadratic > 0),
        (f"pairwise surrogate, τ = {o.pairwise:g}", o.pairwise > 0),
        (f"optional {o.kl}", o.kl != "none" and o.kl_coefficient == 0),
        (f"{o.kl_coefficient:g} · {o.kl}", o.needs_reference),
    ]
    return {
        "name": o.name,
        "baseline": baseline,
        "scale": o.scale.replace("_", " ").replace("none", "–"),
        "mask": "–" if o.mask == "none" else mask,
        "importance": importance[o.importance],
        "shape": ", ".join(text for text, there in shape if there) or "–",
        "aggregation": o.aggregation.replace("_", " "),
        "source": source,
    }


INTRO = """# Objectives

*Written by `scripts/write_docs.py` from the code; edit the code, not this page.*

An objective is a row of choices: a baseline and a scale make the advantage; a data weight, an importance weight
and a mask multiply it; penalties are added; an aggregation turns tokens into one number. Every row has this loss:

```
L = −agg( sg(A · w · u · M) · log π ) + penalty
```

`sg` means stop-gradient: the factor is a plain number, so it is the weight with which a step raises the log-probability
of a token. `A` is the advantage, `w` the data weight, `u` the importance weight, `M` the mask (0 or 1), `r` the reward,
`ρ` the ratio of the policy's probability to that of the policy that sampled, `s` the same ratio for a whole completion
(the geometric mean over its tokens), `S` a completion's score ∇ log π. `mean` and `std` are over the completions of one
prompt (its group); `std` is the sample form, with n − 1.

A group whose rewards are all equal has advantages of exactly 0 (before a shift of the baseline). A reward that is not
a number takes its completion out. Group-relative rows leave out a completion that is alone in its group.

## In a config

Name a row, or start from one and change choices. A table without `preset` starts from the defaults at the end of this
page. An unknown name and choices that contradict each other are refused.

```toml
[objective]
preset = "grpo"
mask = "ring"
```

## All rows
"""


def render_markdown() -> str:
    """The whole page docs/objectives.md."""
    rows = table()
    titles = {"name": "row", "shape": "shape, penalty"}
    parts = [INTRO, _markdown_table([titles.get(key, key) for key in rows[0]], [list(row.values()) for row in rows])]
    for name, preset in PRESETS.items():
        choices = ", ".join(f"`{key} = {_toml(value)}`" for key, value in preset.choices.items())
        parts.append(f"## {name}\n\n{preset.about}\n\n```\n{formula(build(name))}\n```")
        parts.append(f"Source: {preset.source}. Choices: {choices}.")
    parts.append("## All choices")
    fields = [
        [f"`{key}`", field.description or "", _allowed(field), f"`{_toml(field.default)}`"]
        for key, field in Objective.model_fields.items()
    ]
    parts.append(_markdown_table(["choice", "what it does", "values", "default"], fields))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _markdown_table(titles: list[str], rows: list[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:.6g}"


def _allowed(field: Any) -> str:
    """The values a choice takes, from its type and bounds."""
    options = get_args(field.annotation)
    if options:
        return ", ".join(f"`{option}`" for option in options)
    bounds = [
        f" {sign} {getattr(x, key)}"
        for x in field.metadata
        for key, sign in (("ge", "≥"), ("gt", ">"))
        if hasattr(x, key)
    ]
    kind = {bool: "`true`, `false`", int: "whole number", float: "number", str: "text"}[field.annotation]
    return kind + "".join(bounds)
