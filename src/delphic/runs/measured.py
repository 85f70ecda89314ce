"""The stiffness that `delphic probe` left in a run's folder (stability.json)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MEASURED = "stability.json"


def read_measured(run: Path) -> dict[str, Any] | None:
    """What `delphic probe` wrote into a run's folder; None where it did not, or found no positive stiffness."""
    try:
        found = json.loads((run / MEASURED).read_text(encoding="utf-8"))
        kept = {key: found[key] for key in ("step", "low", "high", "certified", "prompts_needed")}
        return kept if kept["high"] > 0 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def about(measured: Mapping[str, Any]) -> str:
    """In a sentence: what was measured, and what of it counts."""
    text = (
        f"K was measured at step {measured['step']} (delphic probe): {measured['low']:.3g} to {measured['high']:.3g}; "
        "the upper end is used, so the limits are on the safe side"
    )
    if measured["certified"]:
        return text
    return f"{text}. Not certified: the ends differ by more than a factor of 2" + needed(measured["prompts_needed"])


def needed(prompts: int | None) -> str:
    """What it would take to certify K."""
    return "; more prompts may tell" if prompts is None else f"; about {prompts} prompts would tell"
