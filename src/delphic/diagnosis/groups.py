"""Advantage degeneracy: groups without a spread of rewards, beyond what difficulty explains, or nearly all of them."""

from __future__ import annotations

from delphic.diagnosis.finding import Finding, Skipped
from delphic.diagnosis.sequential import interval, mean, threshold
from delphic.runs.log import RunLog

FEWEST = 16
NEARLY_ALL = 0.8
EXCESS = 0.1
PAPER = "arXiv 2606.30789, advantage degeneracy"


def silent_groups(log: RunLog) -> Finding | Skipped | None:
    """Nearly all groups silent over the second half: the steps teach nothing."""
    if not log.has("silent_share"):
        return Skipped("silent_groups", "silent_share (share of groups with equal rewards)")
    steps, values = log.series("silent_share")
    if len(values) < FEWEST:
        return None
    part = values[len(values) // 2 :]
    found = mean(part)
    margin = threshold(len(values)) * found.error
    if found.value - margin < NEARLY_ALL:
        return None
    side, advice = _side(log, int(steps[len(values) // 2]))
    return Finding(
        "silent_groups",
        "error",
        f"{interval(found)} of the groups have equal rewards over the last half{side}",
        (int(steps[len(values) // 2]), int(steps[-1])),
        advice,
        PAPER,
        "advantage_degeneracy",
        {"silent_share": found.value},
    )


def _side(log: RunLog, since: int) -> tuple[str, str]:
    """Why they are silent, by the mean reward or the solved shares."""
    hard = easy = None
    if log.has("solved_none_share", "solved_all_share"):
        hard, easy = (
            float(v[s >= since].mean()) if (s >= since).any() else 0.0
            for s, v in (log.series(name) for name in ("solved_none_share", "solved_all_share"))
        )
    else:
        steps, reward = log.series("reward_mean")
        late = reward[steps >= since]
        if len(late) and reward.min() >= 0 and reward.max() <= 1:
            easy, hard = float(late.mean()), 1 - float(late.mean())
    if easy is None or hard is None:
        return "", "choose prompts of middle difficulty, or filter silent groups (sampling.dynamic = true)"
    if easy > hard:
        return (
            ": the prompts are too easy",
            "stop here, or go on with harder prompts; more steps on these teach nothing",
        )
    return (
        ": the prompts are too hard",
        "easier prompts first, a larger group (sampling.completions), or a reward that gives partial credit",
    )


def unexplained(log: RunLog) -> Finding | Skipped | None:
    """Silent groups above E_p[p^G + (1−p)^G] of the observed difficulty."""
    if not log.has("silent_share", "silent_share_expected"):
        return Skipped("unexplained_silence", "silent_share and silent_share_expected")
    table = log.table.select("step", "silent_share", "silent_share_expected").drop_nulls()
    if len(table) < FEWEST:
        return None
    excess = (table["silent_share"] - table["silent_share_expected"]).to_numpy()
    steps = table["step"].to_numpy()
    part = excess[len(excess) // 2 :]
    found = mean(part)
    if found.value - threshold(len(excess)) * found.error < EXCESS:
        return None
    return Finding(
        "unexplained_silence",
        "warning",
        f"groups with equal rewards exceed what the difficulty of the prompts explains by {interval(found)}",
        (int(steps[len(excess) // 2]), int(steps[-1])),
        "look at the completions of one group: they are likely copies of each other (temperature, seed of the sampler, a "
        "cached answer), or the verifier gives one answer to all",
        PAPER,
        "advantage_degeneracy",
        {"excess": found.value},
    )


CHECKS = (silent_groups, unexplained)
