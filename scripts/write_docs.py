"""Writes the documentation pages that come from the code: `python scripts/write_docs.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from delphic.objective.explain import render_markdown
from delphic.runs import logs_page
from delphic.training import metrics_page

DOCS = Path(__file__).resolve().parent.parent / "docs"

PAGES: dict[str, Callable[[], str]] = {
    "objectives.md": render_markdown,
    "metrics.md": metrics_page.render_markdown,
    "logs.md": logs_page.render_markdown,
}


def main() -> None:
    DOCS.mkdir(exist_ok=True)
    for name, render in PAGES.items():
        (DOCS / name).write_text(render(), encoding="utf-8")
        print(f"docs/{name}")


if __name__ == "__main__":
    main()
