"""What a check says of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["info", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")


@dataclass(frozen=True)
class Finding:
    """name: of the check's table in `docs/diagnosis.md`. evidence: a sentence with the figures and their intervals. steps: first and
    last that it concerns. advice: what to change, a setting where possible. source: paper, pitfall or "derived".
    mode: the failure mode that it is evidence of, if any. figures: the numbers of the evidence, by name."""

    name: str
    severity: Severity
    evidence: str
    steps: tuple[int, int]
    advice: str
    source: str
    mode: str | None = None
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Skipped:
    """A check that could not be made. needs: the columns or rows that it lacks."""

    check: str
    needs: str
