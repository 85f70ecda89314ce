"""The same caused failures given to rldoctor 0.2, the doctor that people have: what it names, beside what delphic names."""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from delphic.reproduce.claims import Outcome, Part
from delphic.reproduce.detection_looks import CALM, FIRST_SEED, expected, judge, logs, percent
from delphic.reproduce.scenarios import SCENARIOS, bandit_runs
from delphic.runs.log import RunLog
from delphic.statistics.interval import share

KEYS = {
    "reward_mean": "reward",
    "eval_reward": "eval_score",
    "silent_share": "frac_reward_zero_std",
    "reward_std": "reward_std",
    "entropy": "entropy",
    "kl_reference": "kl",
    "gradient_norm": "grad_norm",
    "length_mean": "completions/mean_length",
    "length_max": "completions/max_length",
    "truncated_share": "completions/clipped_ratio",
}
STILL = CALM | {"plateau"}  # no failure: a warning of it is none of a failure
# its detectors, and the failure that each is about; a warning of any counts
NAMES = {
    "advantage_collapse": "advantage_degeneracy",
    "entropy_collapse": "policy_concentration",
    "reward_hacking": "reward_hacking",
    "gradient_pathology": "dynamic_instability",
    "kl_drift": "dynamic_instability",
    "length_pathology": "all_truncated",
}


def peer_names(log: RunLog) -> set[str]:
    """Failures that rldoctor warns of, in our words; detectors without a counterpart by their own name."""
    doctor: Any = importlib.import_module("rl_doctor")
    rows = []
    for row in log.table.iter_rows(named=True):
        known = {KEYS[name]: value for name, value in row.items() if name in KEYS and value is not None}
        rows.append({"step": row["step"], **known})
    found = doctor.diagnose(doctor.run_from_records(rows))
    return {
        NAMES.get(f.detector, f.detector) for f in found.findings if int(f.severity) >= int(doctor.Severity.WARNING)
    }


def run(folder: Path, quick: bool, note: Callable[[str], None]) -> Outcome:
    """Whole runs, 30 seeds each; nothing where rldoctor is not installed."""
    if importlib.util.find_spec("rl_doctor") is None:
        note("rldoctor is not installed (pip install rldoctor); left out")
        return Outcome([], {})
    rows = []
    for scenario in SCENARIOS:
        if scenario.severity in (1, 2):
            continue
        runs = logs(bandit_runs(scenario, range(FIRST_SEED, FIRST_SEED + (2 if quick else 30))))
        right = expected(scenario)
        row: dict[str, Any] = {"scenario": scenario.name, "runs": len(runs)}
        theirs = [peer_names(log) for log in runs]
        ours = [set(judge(log, len(log.table)).verdict) for log in runs]
        for name, said in (("delphic", ours), ("rldoctor", theirs)):
            calm = right == CALM
            hits = sum(bool(s & right) if not calm else not (s - STILL) for s in said)
            found = share(hits, len(runs))
            row[f"{name} right"] = percent(found)
            other = Counter(x for s in said for x in s if x not in right and x not in STILL)
            row[f"{name} named instead"] = ", ".join(f"{x} {n}" for x, n in other.most_common(3))
        rows.append(row)
        note(f"{scenario.label}: {row['delphic right']} and {row['rldoctor right']}")
    return Outcome([], {"strongest severity, whole run": rows})


PART = Part("peer", "the same bandit runs given to rldoctor", run)
