"""The one exception a user's mistake raises, and the search for what they meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what the user gave us. The command line prints its text and exits with status 2."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """`; did you mean "x"?`, or the list of valid names when nothing is close."""
    options = sorted(valid)
    close = difflib.get_close_matches(name, options, n=5, cutoff=0.5)
    if close:
        swapped = [option for option in close if sorted(option) == sorted(name)]  # gpro is grpo before gspo
        return f'; did you mean "{(swapped or close)[0]}"?'
    return f"; valid: {', '.join(options)}"
