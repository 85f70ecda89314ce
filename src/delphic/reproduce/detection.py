"""How often a diagnosis names what is wrong, and how often it cries wolf: runs whose failures were caused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from delphic.reproduce.claims import Claim, Outcome, Part, Verdict
from delphic.reproduce.detection_looks import (
    CALM,
    DELAYED,
    FIRST_MODEL_SEED,
    FIRST_SEED,
    Row,
    alarms,
    delay,
    expected,
    logs,
    looked,
)
from delphic.reproduce.detection_peer import PART as PEER
from delphic.reproduce.logged_bandit import STEPS
from delphic.reproduce.scenarios import HEALTHY, SCENARIOS, bandit_runs
from delphic.reproduce.scenarios_model import MODEL_SCENARIOS, model_runs
from delphic.reproduce.scenarios_model import STEPS as MODEL_STEPS
from delphic.reproduce.study import Study
from delphic.statistics.interval import Interval, share

GRAVE = ("growing_oscillation", "concentration", "degeneracy_hard", "degeneracy_easy", "hacking")


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
    title = "What a diagnosis finds, and what it cries wolf at"
    parts = [
        Part("bandit", "caused failures in a softmax bandit, at three severities", run_bandit),
        Part("model", "caused failures of the built-in language model", run_model),
        PEER,
    ]
    return Study("detection", "softmax bandits and the built-in model", title, ABOUT, parts, {}, lambda _: [])
