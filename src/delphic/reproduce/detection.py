"""How often a diagnosis names what is wrong, and how often it cries wolf: runs whose failures were caused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from delphic.diagnosis.verdict import Diagnosis, diagnose
from delphic.reproduce.claims import Claim, Outcome, Part, Verdict
from delphic.reproduce.logged_bandit import STEPS
from delphic.reproduce.scenarios import HEALTHY, SCENARIOS, Scenario, bandit_runs
from delphic.reproduce.scenarios_model import MODEL_SCENARIOS, model_runs
from delphic.reproduce.scenarios_model import STEPS as MODEL_STEPS
from delphic.reproduce.study import Study
from delphic.runs.log import RunLog
from delphic.statistics.interval import Interval, share

LOOKS = (0.25, 0.5, 1.0)
EVERY = 4  # steps between two looks where every look counts
DELAYED = 20  # runs of a scenario whose delay is measured
FIRST_SEED, FIRST_MODEL_SEED = 2000, 100  # the checks were set on seeds below 100 of the bandit and of the model
GRAVE = ("growing_oscillation", "concentration", "degeneracy_hard", "degeneracy_easy", "hacking")
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
                "right": _percent(share(int(named.sum()), len(runs))),
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


def _percent(found: Interval) -> str:
    return f"{found.value:.0%} ({found.low:.0%} – {found.high:.0%})"


def logs(tables: Sequence[pl.DataFrame]) -> list[RunLog]:
    return [RunLog.from_table(table) for table in tables]


def run_bandit(folder: Path, quick: bool, note: Callable[[str], None]) -> Outcome:
    """About 15 minutes on one core; quick: a minute."""
    count, healthy = (4, 10) if quick else (100, 200)
    rows: list[Row] = []
    delays: list[Row] = []
    ends: Counter[tuple[str, str]] = Counter()
    cried: list[str] = []
    watched = 0
    for scenario in SCENARIOS:
        if quick and scenario.severity in (1, 2):
            continue
        seeds = range(FIRST_SEED, FIRST_SEED + (healthy if scenario.name in HEALTHY else count))
        runs = logs(bandit_runs(scenario, seeds))
        found, verdicts = looked(scenario, runs)
        rows += found
        ends += verdicts
        if scenario.name in HEALTHY:
            cried += alarms(runs)
            watched += len(runs)
        elif expected(scenario) != CALM and not quick:
            delays.append(delay(scenario, runs[:DELAYED]))
        note(f"{scenario.label}: {found[-1]['right']} right at the end")
    false = share(len(cried), watched)
    claims = [_false_alarms(false, watched, cried, quick), *_named(rows, quick), _ringing(rows, quick)]
    tables = {"the bandit, look by look": _shown(rows), f"steps until it is named, of {STEPS}": delays, "verdicts at the end": _confusion(ends)}  # fmt: skip
    return Outcome(claims, tables)


def run_model(folder: Path, quick: bool, note: Callable[[str], None]) -> Outcome:
    """About 30 minutes on one core; quick: a minute."""
    count, steps = (1, 24) if quick else (30, MODEL_STEPS)
    rows: list[Row] = []
    ends: Counter[tuple[str, str]] = Counter()
    for scenario in MODEL_SCENARIOS:
        number = count * (2 if scenario.name == "model_healthy" else 1)
        seeds = range(FIRST_MODEL_SEED, FIRST_MODEL_SEED + number)
        found, verdicts = looked(scenario, model_runs(scenario, seeds, folder / "runs.jsonl", steps, note))
        rows += found
        ends += verdicts
    last = [row for row in rows if row["look"] == "100%"]
    calm = next(row for row in last if row["scenario"] == "model_healthy")
    wrong = share(calm["runs"] - calm["right_count"], calm["runs"])
    told: Verdict = "holds" if wrong.high <= 0.02 else "does not hold" if wrong.low > 0.02 else "cannot tell"
    claims = [
        Claim(
            "built-in model: at most 2 % of the healthy runs are called anything else at the end",
            "stated here",
            f"{calm['runs'] - calm['right_count']} of {calm['runs']} ({wrong.low:.1%} – {wrong.high:.1%})",
            "cannot tell" if quick else told,
        ),
        *(_one_named(row, quick) for row in last if row["scenario"] != "model_healthy"),
    ]
    return Outcome(claims, {"the built-in model, look by look": _shown(rows), "verdicts at the end": _confusion(ends)})


def _shown(rows: list[Row]) -> list[Row]:
    return [{k: v for k, v in row.items() if k not in ("right_count", "other_modes")} for row in rows]


def _confusion(ends: Counter[tuple[str, str]]) -> list[Row]:
    names = list(dict.fromkeys(name for name, _ in ends))
    modes = sorted({mode for _, mode in ends})
    return [{"scenario": name, **{mode: ends[name, mode] for mode in modes}} for name in names]


def _false_alarms(found: Interval, watched: int, cried: list[str], quick: bool) -> Claim:
    listed = ", ".join(f"{name} {count}" for name, count in Counter(cried).most_common(4))
    return Claim(
        "bandit: false alarms over a whole healthy run, looked at all the way: upper 95 % bound at most 2 %",
        "stated here",
        f"{len(cried)} of {watched} ({found.low:.1%} – {found.high:.1%})" + (f": {listed}" if listed else ""),
        "cannot tell" if quick else "holds" if found.high <= 0.02 else "does not hold",
    )


def _named(rows: list[Row], quick: bool) -> list[Claim]:
    """At the strongest severity and the whole run."""
    strongest = [r for r in rows if r["scenario"] in GRAVE and r["severity"] == 3 and r["look"] == "100%"]
    return [_one_named(row, quick) for row in strongest]


def _one_named(row: Row, quick: bool) -> Claim:
    named, other = row["right_count"] / row["runs"], row["other_modes"] / row["runs"]
    right: Verdict = "holds" if named >= 0.9 and other <= 0.05 else "does not hold"
    return Claim(
        f"{row['scenario']}, strongest: named in at least 90 %, as another failure mode in at most 5 %",
        "stated here",
        f"named {row['right']} of {row['runs']}; as another mode {other:.0%}",
        "cannot tell" if quick else right,
    )


def _ringing(rows: list[Row], quick: bool) -> Claim:
    mine = [r for r in rows if r["scenario"] == "damped_ringing" and r["look"] == "100%"]
    called, runs = sum(r["other_modes"] for r in mine), sum(r["runs"] for r in mine)
    found = share(called, runs)
    return Claim(
        "bandit: damped ringing is called unstable in at most 2 %",
        "stated here",
        f"{called} of {runs} ({found.low:.1%} – {found.high:.1%})",
        "cannot tell" if quick else "holds" if found.value <= 0.02 else "does not hold",
    )


ABOUT = (
    "Failures that were caused, in a softmax bandit and in the built-in language model, and whether `delphic diagnose` names them from "
    "the log, at 25, 50 and 100 % of the run."
)


def detection() -> Study:
    from delphic.reproduce.detection_peer import PART as PEER

    title = "What a diagnosis finds, and what it cries wolf at"
    parts = [
        Part("bandit", "caused failures in a softmax bandit, at three severities", run_bandit),
        Part("model", "caused failures of the built-in language model", run_model),
        PEER,
    ]
    return Study("detection", "softmax bandits and the built-in model", title, ABOUT, parts, {}, lambda _: [])
