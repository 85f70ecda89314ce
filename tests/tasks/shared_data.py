"""Where the real benchmark files are: $DELPHIC_SHARED, or `shared/data` in the repository or beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def shared(*parts: str) -> Path:
    """A real data file or folder; the test is skipped where it is absent."""
    repository = Path(__file__).resolve().parents[2]
    roots = [repository / "shared" / "data", repository.parent / "shared" / "data"]
    if os.environ.get("DELPHIC_SHARED"):
        roots.insert(0, Path(os.environ["DELPHIC_SHARED"]))
    for root in roots:
        if root.joinpath(*parts).exists():
            return root.joinpath(*parts)
    pytest.skip(f"the real data file {'/'.join(parts)} is not here (set DELPHIC_SHARED)")
