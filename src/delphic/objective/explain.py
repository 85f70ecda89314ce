"""An objective in words and numbers: its formula, what it does to given rewards, and the table of all rows.

Nothing here knows a formula twice: `explain` calls `prepare` and `coefficients`, as training does, and puts
sentences beside the numbers. The text of formula and table is in formula.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from delphic.errors import UserError
from delphic.objective import penalty
from delphic.objective.coefficients import Coefficients, coefficients
from delphic.objective.formula import formula, render_markdown, table
from delphic.objective.objective import Objective
from delphic.objective.prepare import Prepared, StepInputs, prepare

__all__ = ["explain", "formula", "render_markdown", "table"]


def _number(token: str, option: str, group: int, place: int) -> float:
    try:
        return float(token)
    except ValueError:
        where = f"group {group}, completion {place}"
        raise UserError(f'{option}: "{token.strip()}" ({where}) is not a number; write like 1,0,0.5;1,nan') from None


def _groups(text: str, option: str) -> list[list[float]]:
    """The numbers of `1,0;1,1`: `;` between groups, `,` between completions."""
    return [
        [_number(token, option, g, i) for i, token in enumerate(part.split(","), 1)]
        for g, part in enumerate(text.split(";"), 1)
    ]


def _like(text: str | None, option: str, sizes: list[int], above: float | None = None, one: bool = False) -> Any:
    """[N] numbers in the rewards' shape, or None. `above`: all must be greater; `one`: one per group will do."""
    if text is None:
        return None
    groups = _groups(text, option)
    if len(groups) != len(sizes):
        raise UserError(f"{option}: {len(groups)} group(s), expected {len(sizes)} as in --rewards")
    for g, (numbers, size) in enumerate(zip(groups, sizes, strict=True), 1):
        if len(numbers) == 1 and one:
            numbers *= size
        if len(numbers) != size:
            wanted = f"{'1 or ' if one else ''}{size} as in --rewards"
            raise UserError(f"{option}: group {g} has {len(numbers)} number(s), expected {wanted}")
        for i, x in enumerate(numbers, 1):
            if not np.isfinite(x) or (above is not None and x <= above):
                need = "finite" if above is None else f"finite and greater than {above:g}"
                raise UserError(f"{option}: {x:g} (group {g}, completion {i}) must be {need}")
    return np.array([x for group in groups for x in group])


def _needs(o: Objective) -> dict[str, tuple[bool, str]]:
    """Which inputs beside rewards the row cannot do without, and what each is."""
    limit = o.overlong_buffer > 0 or o.truncated == "mask"
    return {
        "lengths": (o.baseline == "length_mean" or limit, "tokens of each completion"),
        "values": (o.baseline in ("oracle", "critic"), "V(x), one number per group or per completion"),
        "score-norms": (o.baseline == "score_norm_mean", "‖∇ log π‖² of each completion"),
        "reference-ratios": (o.needs_reference, "π/π_ref of each completion"),
        "max-length": (limit, "the length limit in tokens"),
    }


def _check_needs(o: Objective, given: dict[str, Any]) -> None:
    for option, (needed, what) in _needs(o).items():
        if needed and given[option] is None:
            raise UserError(f'--{option}: objective "{o.name}" needs it ({what})')
    limit, least = given["max-length"], max(o.overlong_buffer, 1)
    if limit is not None and limit < least:
        raise UserError(f"--max-length: {limit} is too short, expected at least {least}")


def explain(
    objective: Objective,
    rewards: str,
    ratios: str | None = None,
    lengths: str | None = None,
    values: str | None = None,
    score_norms: str | None = None,
    reference_ratios: str | None = None,
    max_length: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """What the objective makes of given rewards: advantages and the factors in front of ∇ log π.

    Args:
        rewards: "1,0,0;1,1" (`;` between groups, `,` between completions; nan allowed).
        ratios: π/π_behaviour, one per completion (read as a completion of one token); default 1.
        lengths: tokens. values: V(x), one per group or per completion. score_norms: ‖∇ log π‖².
        reference_ratios: π/π_ref. max_length: the length limit, tokens. seed: of what is dropped at random.

    Returns: lists that JSON can hold, `weights` = A·w·u·M and `penalty_weights` as the step ascends them.

    Raises:
        UserError: an input that cannot be read, has another shape than the rewards, or is missing.
    """
    groups = _groups(rewards, "--rewards")
    sizes = [len(group) for group in groups]
    reward = np.array([x for group in groups for x in group])
    if (np.abs(reward[np.isfinite(reward)]) > 1e100).any():
        raise UserError("--rewards: numbers beyond 1e100 cannot be squared; use smaller ones")
    starts = np.cumsum(sizes) - sizes
    ids = np.repeat(np.arange(len(sizes)), sizes)
    rho = _like(ratios, "--ratios", sizes, above=0)
    reference = _like(reference_ratios, "--reference-ratios", sizes, above=0)
    given = {
        "ratios": rho,
        "lengths": _like(lengths, "--lengths", sizes, above=0),
        "values": _like(values, "--values", sizes, one=True),
        "score-norms": _like(score_norms, "--score-norms", sizes, above=0),
        "reference-ratios": reference,
        "max-length": max_length,
    }
    _check_needs(objective, given)
    log_ratio = np.zeros(len(reward)) if rho is None else np.log(rho)
    delta = None if reference is None else np.log(reference)
    with np.errstate(over="ignore", invalid="ignore"):  # judged below, where the user can be told
        prepared = prepare(
            objective,
            StepInputs(
                reward,
                ids,
                lengths=given["lengths"],
                truncated=given["lengths"] >= max_length if objective.truncated == "mask" else None,
                max_length=max_length,
                values=given["values"],
                score_norms=given["score-norms"],
                priority=np.random.default_rng(seed).random(len(reward)),
                components=reward[None] if objective.reward_normalization == "per_reward" else None,
                sequence_log_ratio=log_ratio,
                sequence_kl=penalty.kl_value(delta, objective.kl) if objective.uses_kl_reward else None,
            ),
        )
        factors = coefficients(
            objective,
            prepared.coefficient[:, None],
            prepared.penalised[:, None].astype(np.float64),
            log_ratio[:, None],
            np.ones((len(reward), 1)),
            None if delta is None else delta[:, None],
        )
    policy, penalties = factors.policy[:, 0], factors.penalty[:, 0]
    for x in (prepared.advantage, policy, penalties):
        if not np.isfinite(x).all():
            bad = int(np.flatnonzero(~np.isfinite(x))[0])
            where = f"group {ids[bad] + 1}, completion {bad - int(starts[ids[bad]]) + 1}"
            raise UserError(
                f"--rewards: {reward[bad]:g} ({where}) makes a weight that is not finite; use smaller numbers"
            )

    def split(x: np.ndarray) -> list[list[float]]:
        return [[float(v) + 0.0 for v in x[ids == g]] for g in range(len(sizes))]  # + 0.0 turns −0.0 into 0.0

    dropped = [np.flatnonzero(~prepared.kept[ids == g]).tolist() for g in range(len(sizes))]
    return {
        "objective": objective.name,
        "advantages": split(prepared.advantage),
        "weights": split(policy),
        "penalty_weights": split(penalties),
        "dropped": dropped,
        "drop_reasons": [[prepared.reasons[int(s) + i] for i in rows] for s, rows in zip(starts, dropped, strict=True)],
        "notes": _notes(objective, reward, ids, prepared, factors, given, seed),
    }


def _notes(
    o: Objective,
    reward: np.ndarray,
    ids: np.ndarray,
    prepared: Prepared,
    factors: Coefficients,
    given: dict[str, Any],
    seed: int,
) -> list[str]:
    """What a reader would otherwise wonder about, in short sentences."""
    penalties, kept = factors.penalty[:, 0], prepared.kept
    notes = []
    for g in range(int(ids[-1]) + 1):
        mine = ids == g
        reasons = [prepared.reasons[int(i)] for i in np.flatnonzero(mine & ~kept)]
        for reason, count in ((r, reasons.count(r)) for r in dict.fromkeys(reasons)):
            text = {
                "alone in its group": "nothing to compare it with",
                "surplus negative": f"drawn at random (seed {seed}); the mean is that of the kept",
            }.get(reason, "it does not count in the mean either")
            notes.append(f"Group {g + 1}: {count} of {mine.sum()} left out, {reason}: {text}.")
        mine &= kept
        if mine.any() and prepared.silent[mine].all() and not prepared.coefficient[mine].any():
            rest = "only the penalty acts" if penalties[mine].any() else "no gradient"
            notes.append(f"Group {g + 1} is silent (equal rewards): {rest}.")
        elif mine.any() and prepared.silent[mine].all() and o.group_relative and o.baseline_shift:
            notes.append(f"Group {g + 1} has equal rewards, but the shift {o.baseline_shift:g} still moves it.")
    live = kept & (prepared.coefficient != 0)
    masked = int((live & ~factors.learns[:, 0]).sum())
    if masked:
        notes.append(f"The mask removed {masked} of {live.sum()} completions with a weight.")
    failures = kept & (reward == 0)
    if (
        o.importance == "truncated_negative"
        and o.baseline == "none"
        and failures.any()
        and not (reward[kept] < 0).any()
    ):
        notes.append('No reward is negative, so failures weigh nothing; use signed rewards, or baseline = "mean".')
    if o.scale == "mean" and (reward[kept] < 0).any():
        notes.append("Division by the mean reward is meant for rewards ≥ 0; where the mean is not positive, all is 0.")
    if o.entropy_bonus > 0:
        notes.append("The entropy bonus is not shown: it needs the whole distribution.")
    used = {"ratios": o.needs_behaviour, **{option: needed for option, (needed, _) in _needs(o).items()}}
    used["lengths"] = used["lengths"] or o.scale == "batch_whiten"
    notes += [f"This objective ignores --{name}." for name, x in given.items() if x is not None and not used[name]]
    return notes
