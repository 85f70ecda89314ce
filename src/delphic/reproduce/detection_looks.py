"""Runs looked at as they grow: what is named, when, and what cries wolf."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from delphic.diagnosis.verdict import Diagnosis, diagnose
from delphic.reproduce.scenarios import Scenario
from delphic.runs.log import RunLog
from delphic.statistics.interval import Interval, share

LOOKS = (0.25, 0.5, 1.0)
EVERY = 4  # steps between two looks where every look counts
DELAYED = 20  # runs of a scenario whose delay is measured
FIRST_SEED, FIRST_MODEL_SEED = 2000, 100  # the checks were set on seeds below 100 of the bandit and of the model
MODES = ("dynamic_instability", "policy_concentration", "advantage_degeneracy", "reward_hacking")
FAILURES = frozenset({*MODES, "all_truncated", "sampler_mismatch", "collapse"})
CALM = frozenset({"healthy", "cannot_tell"})
Row = dict[str, Any]


def judge(log: RunLog, steps: int) -> Diagnosis:
    """What is said after so many rows."""
    return diagnose(replace(log, table=log.table.head(steps)), ahead=False)


def expected(scenario: Scenario) -> frozenset[str]:
    """Runs without a failure may be called healthy, or (a flat curve) not be told."""
    return scenario.expected if scenario.expected & FAILURES else CALM


def looked(scenario: Scenario, runs: Sequence[RunLog]) -> tuple[list[Row], Counter[tuple[str, str]]]:
    """(a row a look: how many were named right; (scenario, verdict) at the end)."""
    right, rows = expected(scenario), []
    ends: Counter[tuple[str, str]] = Counter()
    for look in LOOKS:
        verdicts = [judge(log, round(look * len(log.table))).verdict for log in runs]
        named = np.array([bool(right & set(v)) for v in verdicts])
        other = Counter(m for v in verdicts for m in v if m not in right and m not in CALM)
        rows.append(
            {
                "scenario": scenario.name,
                "severity": scenario.severity or "",
                "look": f"{look:.0%}",
                "runs": len(runs),
                "right": percent(share(int(named.sum()), len(runs))),
                "named instead": ", ".join(f"{name} {count}" for name, count in other.most_common(3)),
                "right_count": int(named.sum()),
                "other_modes": sum(any(m in MODES and m not in right for m in v) for v in verdicts),
            }
        )
    for verdict in verdicts:
        ends.update((scenario.name, mode) for mode in verdict)
    return rows, ends


def delay(scenario: Scenario, runs: Sequence[RunLog]) -> Row:
    """Steps until the failure was named, with a look every EVERY steps; the cause is there from the first step."""
    right, first = expected(scenario), []
    for log in runs:
        looks = range(EVERY, len(log.table) + 1, EVERY)
        first.append(next((steps for steps in looks if right & set(judge(log, steps).verdict)), math.inf))
    low, middle, high = (
        "never" if math.isinf(x) else f"{x:.0f}" for x in np.quantile(first, (0.1, 0.5, 0.9), method="inverted_cdf")
    )
    named = sum(map(math.isfinite, first))
    return {"scenario": scenario.label, "runs": len(runs), "median": middle, "tenth": low, "nine tenths": high, "named at some look": named}  # fmt: skip


def alarms(runs: Sequence[RunLog]) -> list[str]:
    """The runs in which a warning or an error came up at any of the looks, every EVERY steps: its name."""
    out = []
    for log in runs:
        for steps in range(EVERY, len(log.table) + 1, EVERY):
            grave = [f.name for f in judge(log, steps).findings if f.severity != "info"]
            if grave:
                out.append(grave[0])
                break
    return out


def percent(found: Interval) -> str:
    return f"{found.value:.0%} ({found.low:.0%} – {found.high:.0%})"


def logs(tables: Sequence[pl.DataFrame]) -> list[RunLog]:
    return [RunLog.from_table(table) for table in tables]
