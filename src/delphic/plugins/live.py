"""The diagnosis of a run while another trainer makes it: rows come in, findings come out when they are new."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from delphic.diagnosis.finding import Finding
from delphic.diagnosis.verdict import Diagnosis, diagnose
from delphic.errors import UserError
from delphic.runs.meaning import to_log
from delphic.runs.rows import raw_of_rows


class LiveDiagnosis:
    """Collects a run's rows in its framework's own keys, and judges them every so many.

    Args:
        every: rows between two looks. say: gets a sentence for each finding above info that is new.
    """

    def __init__(self, every: int = 10, say: Callable[[str], None] = print) -> None:
        if every < 1:
            raise UserError(f"diagnose: every must be 1 or more rows, got {every}")
        self.every, self.say = every, say
        self.rows: list[dict[str, Any]] = []
        self.seen: set[str] = set()
        self.last: Diagnosis | None = None

    def add(self, step: int, row: Mapping[str, Any]) -> list[Finding]:
        """A row of the log; the findings above info that are new with it."""
        self.rows.append({"step": step, **{k: v for k, v in row.items() if isinstance(v, Real)}})
        return self.look() if len(self.rows) % self.every == 0 else []

    def look(self) -> list[Finding]:
        """Judge what there is; the findings above info that are new."""
        try:
            log = to_log(Path("live"), raw_of_rows(Path("live"), self.rows, "jsonl"))
        except UserError:  # no reward has been logged yet
            return []
        self.last = diagnose(log, ahead=False)
        new = [f for f in self.last.findings if f.severity != "info" and f.name not in self.seen]
        self.seen.update(f.name for f in new)
        for finding in new:
            name = finding.name.replace("_", " ")
            self.say(
                f"delphic {finding.severity}: {name}, steps {finding.steps[0]}–{finding.steps[1]}: {finding.evidence}; {finding.advice}"
            )
        return new
