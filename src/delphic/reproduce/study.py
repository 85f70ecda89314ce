"""Running a study: its parts in turn, then the report as JSON, Markdown and one page of pictures."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from delphic.errors import UserError
from delphic.reproduce.claims import Outcome, Part, run_part
from delphic.training.run_folder import read_json, write_json, write_text

Tables = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Study:
    """title, about: of the report. setting: what the results depend on besides the code; a folder holds one setting's.
    stated: tables of what the papers themselves measured. draw(outcomes): plotly figures of the outcomes by part."""

    name: str
    setting: str
    title: str
    about: str
    parts: Sequence[Part]
    stated: Tables
    draw: Callable[[dict[str, Outcome]], list[Any]]


def run_study(study: Study, folder: Path, quick: bool, note: Callable[[str, str], None]) -> dict[str, Any]:
    """Run or read every part, write report.json, report.md and report.html, and return the report.

    note(part, text) says how far it is. A part that was finished in this folder is not run again, so a study that was
    stopped goes on where it was.

    Raises:
        UserError: the folder holds something else, or cannot be made.
    """
    _claim_folder(study, folder)
    outcomes, seconds = {}, {}
    for part in study.parts:
        began = time.perf_counter()
        outcomes[part.name] = run_part(part, folder, quick, partial(note, part.name))
        seconds[part.name] = time.perf_counter() - began
        note(part.name, f"done in {seconds[part.name]:.0f} s")
        report = compose(study, outcomes, quick)
        write_json(folder / "report.json", report)  # what there is so far, should it be stopped
        write_text(folder / "report.md", markdown(report))
    write_page(study, outcomes, folder / "report.html")
    return report


def _claim_folder(study: Study, folder: Path) -> None:
    own, path = {"study": study.name, "setting": study.setting}, folder / "study.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"reproduce: --to {folder} cannot be made ({error.strerror})") from None
    if path.exists():
        there = read_json(path)
        if there != own:
            raise UserError(
                f"reproduce: {folder} holds {there.get('study')} of {there.get('setting')}; name another --to"
            )
    elif any(folder.iterdir()):
        raise UserError(f"reproduce: {folder} is not empty and holds no study; name another --to")
    write_json(path, own)


def compose(study: Study, outcomes: dict[str, Outcome], quick: bool) -> dict[str, Any]:
    """The report, ready for JSON."""
    about = {part.name: part.about for part in study.parts}
    return {
        "study": study.name,
        "title": study.title,
        "about": study.about,
        "quick": quick,
        "claims": [{"part": name, **asdict(claim)} for name, outcome in outcomes.items() for claim in outcome.claims],
        "parts": {name: {"about": about[name], "tables": outcome.tables} for name, outcome in outcomes.items()},
        "stated": study.stated,
    }


def markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    small = "\n*A quick form: sizes too small for conclusions.*\n" if report["quick"] else ""
    lines = [f"# {report['title']}", "", report["about"], small, "## Claims", ""]
    columns = ("claim", "source", "measured", "verdict")
    lines += table([{key: claim[key] for key in columns} for claim in report["claims"]])
    lines += ["", *(["## What the papers measured", ""] if report["stated"] else [])]
    for title, rows in report["stated"].items():
        lines += [f"**{title}**", "", *table(rows), ""]
    for name, part in report["parts"].items():
        lines += [f"## {name}: {part['about']}", ""]
        for title, rows in part["tables"].items():
            lines += [f"**{title}**", "", *table(rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of a Markdown table; columns in the order in which they first come."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[cell(row.get(key, "")).replace("|", "\\|") for key in columns] for row in rows]
    return [f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *cells)]


def cell(value: Any) -> str:
    """Figures to four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write_page(study: Study, outcomes: dict[str, Outcome], path: Path) -> None:
    """One self-contained page: the claims, then the pictures."""
    rows = [
        "".join(f"<td>{html.escape(text)}</td>" for text in (c.claim, c.source, c.measured, c.verdict))
        for outcome in outcomes.values()
        for c in outcome.claims
    ]
    head = "".join(f"<th>{name}</th>" for name in ("claim", "source", "measured", "verdict"))
    figures = [
        figure.to_html(full_html=False, include_plotlyjs=number == 0)
        for number, figure in enumerate(study.draw(outcomes))
    ]
    style = "body{font-family:sans-serif;margin:2em;max-width:75em}td,th{text-align:left;padding:.3em .8em;vertical-align:top}"
    write_text(
        path,
        f"<!doctype html><meta charset='utf-8'><title>{html.escape(study.title)}</title><style>{style}</style>"
        f"<h1>{html.escape(study.title)}</h1><table><tr>{head}</tr>"
        + "".join(f"<tr>{row}</tr>" for row in rows)
        + f"</table>{''.join(figures)}",
    )
