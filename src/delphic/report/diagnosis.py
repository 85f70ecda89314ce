"""A diagnosis in the terminal and as JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from delphic.diagnosis.finding import Finding
from delphic.diagnosis.verdict import Diagnosis
from delphic.report.terminal import sparkline
from delphic.runs.columns import CANONICAL
from delphic.runs.log import RunLog

COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}
VERDICTS = {
    "healthy": "healthy: nothing found",
    "cannot_tell": "cannot tell",
    "reward_hacking": "reward hacking",
    "advantage_degeneracy": "advantage degeneracy (groups without a spread)",
    "policy_concentration": "policy concentration",
    "dynamic_instability": "dynamic instability",
    "no_signal": "no signal",
}


def words(verdict: str) -> str:
    return VERDICTS.get(verdict, verdict.replace("_", " "))


def print_diagnosis(log: RunLog, found: Diagnosis) -> None:
    """One screen: verdict, curve, findings with what to change, outlook, what could not be checked, how the log was read."""
    console = Console(highlight=False, markup=False)
    graded = {f.mode: f.severity for f in reversed(found.findings) if f.mode}
    for verdict in found.verdict:
        style = COLOURS[graded[verdict]] if verdict in graded else "green" if verdict == "healthy" else "yellow"
        console.print(words(verdict), style=f"bold {style}")
    if log.has("reward_mean"):
        steps, values = log.series("reward_mean")
        if len(values):
            console.print(
                f"reward {values[0]:.3g} {sparkline(values.tolist())} {values[-1]:.3g}   steps {steps[0]}–{steps[-1]}"
            )
    for finding in found.findings:
        print_finding(finding, console)
    for line in outlook(log, found):
        console.print(line)
    for line in reading(log):
        console.print(f"· {line}")
    if found.skipped:
        listed = "; ".join(f"{s.check.replace('_', ' ')} (needs {s.needs})" for s in found.skipped)
        console.print(f"· not checked: {listed}")


def print_finding(finding: Finding, console: Console | None = None) -> None:
    console = console or Console(highlight=False, markup=False)
    console.print(f"{finding.severity}: {finding.name.replace('_', ' ')}", style=COLOURS[finding.severity], end="")
    console.print(f"  steps {finding.steps[0]}–{finding.steps[1]}")
    console.print(Padding(finding.evidence, (0, 0, 0, 2)))
    console.print(Padding(f"→ {finding.advice}  [{finding.source}]", (0, 0, 0, 2)))


def outlook(log: RunLog, found: Diagnosis) -> list[str]:
    """Forecast, stability and groups, a sentence each."""
    out = []
    seen = found.forecast
    if seen is not None:
        if seen["refused"]:
            out.append(f"no forecast: {seen['reason']}")
        elif seen["final"]:
            final = seen["final"]
            out.append(
                f"forecast: {final['value']:.3g} ({final['low']:.3g} – {final['high']:.3g}) as the mean of the last tenth up to step "
                f"{seen['end']:g}; {seen['advice']}"
            )
            if log.has("reward_mean") and final["high"] < np.median(log.series("reward_mean")[1][-20:]):
                out[-1] += "; it is below where the reward is now, so the laws miss this curve: do not rely on it"
    if found.stability is not None and found.stability["margin"] < 100:
        s = found.stability
        out.append(
            f"stability: {s['regime']}, at most {s['margin']:.3g} × this learning rate (not certified: the reward shows the slow "
            "directions, the stiffest decides; `delphic probe` measures it)"
        )
    if found.groups is not None:
        out.append(groups_line(found.groups))
    return out


def groups_line(groups: dict[str, Any]) -> str:
    """What the recorded groups tell, a sentence."""
    size, figures = groups["group_size"], groups["rewards"]
    each = str(size["median"]) if size["smallest"] == size["largest"] else f"{size['smallest']}–{size['largest']}"
    parts = [f"groups: {groups['groups']} of {each} completions"]
    if figures["silent_share"] is not None and size["largest"] > 1:
        expected = figures["silent_share_expected"]
        why = "" if expected is None else f" ({expected:.0%} explained by difficulty)"
        parts.append(f"{figures['silent_share']:.0%} with equal rewards{why}")
    if figures["variance_within"] is not None:
        between = "" if figures["variance_between"] is None else f", between prompts {figures['variance_between']:.3g}"
        parts.append(f"variance within groups {figures['variance_within']:.3g}{between}")
    return "; ".join(parts)


def reading(log: RunLog) -> list[str]:
    """How the log was read."""
    version = f" ({log.version})" if log.version else ""
    rows = f"{log.framework}{version}: {log.rows} rows, {len(log.table)} step{'s' if len(log.table) != 1 else ''}, {len(log.columns)} columns known"
    return [rows, *log.problems]


def print_columns(log: RunLog) -> None:
    """Which key was taken for what."""
    console = Console(highlight=False, markup=False)
    console.print(reading(log)[0])
    table = Table(box=None, padding=(0, 2))
    for heading in ("column", "key in the log", "kind", "meaning"):
        table.add_column(heading)
    for column in log.columns:
        meaning = CANONICAL[column.canonical].meaning if column.canonical in CANONICAL else "one reward function"
        table.add_row(column.canonical, column.source_key, column.kind, meaning)
    console.print(table)
    if log.unread:
        shown = ", ".join(log.unread[:40]) + (f" and {len(log.unread) - 40} more" if len(log.unread) > 40 else "")
        console.print(f"not used: {shown}")


def to_json(log: RunLog, found: Diagnosis) -> dict[str, Any]:
    """The schema of `delphic diagnose --json` (docs/diagnosis.md); numbers that are not finite are null."""
    content = {
        "verdict": list(found.verdict),
        "findings": [
            {
                "name": f.name,
                "severity": f.severity,
                "evidence": f.evidence,
                "steps": list(f.steps),
                "advice": f.advice,
                "source": f.source,
            }
            for f in found.findings
        ],
        "columns": [{"canonical": c.canonical, "source_key": c.source_key, "kind": c.kind} for c in log.columns],
        "skipped": [{"check": s.check, "needs": s.needs} for s in found.skipped],
        "reader": {
            "framework": log.framework,
            "version": log.version,
            "rows": log.rows,
            "problems": list(log.problems),
        },
        "forecast": found.forecast,
        "stability": found.stability,
        "groups": found.groups,
    }
    plain: dict[str, Any] = _plain(content)
    return plain


def _plain(value: Any) -> Any:
    """Only what JSON knows."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
