"""How far a study is, and its claims, in the terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

COLOURS = {"holds": "green", "does not hold": "red", "cannot tell": "yellow"}


class StudyProgress:
    """A bar over the parts with what is going on; plain lines where there is no terminal. On stderr."""

    def __init__(self, parts: Sequence[str]) -> None:
        self.console, self.parts, self.began = Console(stderr=True), list(parts), time.monotonic()
        self.progress: Progress | None = None
        if self.console.is_terminal:
            columns = (TextColumn("part"), MofNCompleteColumn(), BarColumn(bar_width=24), TimeElapsedColumn())
            self.progress = Progress(*columns, TextColumn("{task.description}"), console=self.console, transient=True)
            self.bar: TaskID = self.progress.add_task("", total=len(self.parts))
            self.progress.start()

    def note(self, part: str, text: str) -> None:
        if self.progress is not None:
            done = self.parts.index(part) + text.startswith("done in")
            self.progress.update(self.bar, completed=done, description=f"{part}: {text}")
        else:
            line = f"{time.monotonic() - self.began:6.0f} s  {part}: {text}"
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self.progress is not None:
            self.progress.stop()


def print_claims(claims: Sequence[dict[str, Any]]) -> None:
    """Claim, source, what was measured, verdict."""
    grid = Table(box=None, padding=(0, 2, 1, 0))
    for heading in ("claim", "source", "measured", "verdict"):
        grid.add_column(heading, no_wrap=heading == "verdict")
    for claim in claims:
        plain = (Text(claim[key]) for key in ("claim", "source", "measured"))
        grid.add_row(*plain, Text(claim["verdict"], style=COLOURS[claim["verdict"]]))
    Console(highlight=False).print(grid)
