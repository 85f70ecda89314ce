"""A study is a list of parts; a part measures, and says of each claim whether it holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from delphic.statistics.interval import Interval

Verdict = Literal["holds", "does not hold", "cannot tell"]


@dataclass(frozen=True)
class Claim:
    """What is claimed and by whom, what was measured (figures with their intervals), and the verdict."""

    claim: str
    source: str
    measured: str
    verdict: Verdict


@dataclass(frozen=True)
class Outcome:
    """What a part found. tables: rows of figures by the table's title, each row a flat dict."""

    claims: Sequence[Claim]
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One experiment. run(folder, quick, note): `folder` is its own for files, `note(text)` says how far it is."""

    name: str
    about: str
    run: Callable[[Path, bool, Callable[[str], None]], Outcome]


def run_part(part: Part, folder: Path, quick: bool, note: Callable[[str], None]) -> Outcome:
    """The outcome of a part; one that was finished before, at the same size, is read and not run again."""
    path = folder / part.name / ("quick.json" if quick else "full.json")
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        return Outcome([Claim(**claim) for claim in kept["claims"]], kept["tables"])
    path.parent.mkdir(parents=True, exist_ok=True)
    outcome = part.run(path.parent, quick, note)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(asdict(outcome), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    unfinished.replace(path)
    return outcome


def text(interval: Interval, digits: int = 1) -> str:
    """value (low to high); – where it is unknown"""
    parts = (interval.value, interval.low, interval.high)
    shown = ["–" if np.isnan(x) else f"{x:.{digits}f}".replace("inf", "∞") for x in parts]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def interval_of(shown: str) -> Interval:
    """What `text` wrote, to its digits."""
    value, low, high = (
        float(part.replace("∞", "inf")) for part in shown.rstrip(")").replace(" (", " to ").split(" to ")
    )
    return Interval(value, low, high)
