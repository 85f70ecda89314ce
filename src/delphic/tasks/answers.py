"""Finding an answer in text: numbers as people write them, and LaTeX boxes.

The numeric rewards compare exactly, as fractions: 0.5 = 1/2 = 50/100, and 33.33 is not 100/3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from delphic.errors import UserError
from delphic.tasks.base import Problem

MARK = "####"  # GSM8K's mark before the final answer
LONGEST_NUMBER = 100  # characters; beyond it, integers of thousands of digits would only cost time

_UNSIGNED = r"(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,2}(?![\d.]))?"
# a minus sign after a digit, a letter or a bracket is an operator (10-3=7) or a hyphen (a 3-4 split)
_IN_TEXT = re.compile(rf"(?:(?<![\w)\].])[+-]\s?)?(?:\$\s?-?)?{_UNSIGNED}(?:/\d+(?!\d))?")
_WHOLE = re.compile(rf"(?P<sign>[+-]?)\s*(?P<first>{_UNSIGNED})(?:\s*/\s*(?P<below>{_UNSIGNED}))?")
_MIXED = re.compile(r"(?P<sign>[+-]?)(?P<whole>\d+)\s+(?P<above>\d+)/(?P<below>\d+)")
_LATEX_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}")
_UNIT = re.compile(r"\s*\([^()]*\)\s*$")


@lru_cache(maxsize=65536)
def parse_number(text: str) -> Fraction | None:
    """The number that is all of `text`, or None. Commas between thousands, currency signs, %, a trailing period,
    decimals, fractions (1/2, 1 1/2, \\frac{1}{2}) and a typographic minus are read; the % sign does not scale."""
    text = text.replace("−", "-").replace("\\$", "$").replace("\\%", "%").replace("\\!", "").strip()
    text = _LATEX_FRACTION.sub(r"\1/\2", text)
    text = re.sub(r"[$€£]", "", text).strip().rstrip(".%").rstrip()
    if not text or len(text) > LONGEST_NUMBER:
        return None
    mixed = _MIXED.fullmatch(text)
    try:
        if mixed:
            size = int(mixed["whole"]) + Fraction(int(mixed["above"]), int(mixed["below"]))
        else:
            match = _WHOLE.fullmatch(text)
            if not match:
                return None
            size = Fraction(match["first"].replace(",", ""))
            if match["below"]:
                size /= Fraction(match["below"].replace(",", ""))
    except ZeroDivisionError:
        return None
    return -size if text.startswith("-") else size


def numbers_in(text: str) -> list[Fraction]:
    """Every number written in `text`, in order."""
    found = (parse_number(match[0]) for match in _IN_TEXT.finditer(text.replace("−", "-").replace("\\!", "")))
    return [number for number in found if number is not None]


def gold_number(answer: Any) -> Fraction | None:
    """The number of a gold answer: a number, a text that is one, GSM8K's `… #### 72`, or `9 (apples)`; else None."""
    if isinstance(answer, bool) or answer is None:
        return None
    text = str(answer)
    text = text.rpartition(MARK)[2] if MARK in text else text
    return parse_number(_UNIT.sub("", text).strip())


def answer_number(completion: str, strict: bool) -> Fraction | None:
    """The number a completion answers with: the first after the last `####`, else (unless `strict`) the last of all."""
    if MARK in completion:
        return next(iter(numbers_in(completion.rpartition(MARK)[2])), None)
    return None if strict else next(reversed(numbers_in(completion)), None)


def boxed(text: str) -> str | None:
    r"""What the last `\boxed{…}` (or `\fbox`, or `\boxed 5`) of a text holds; None where there is none or it is cut off."""
    starts = list(re.finditer(r"\\(?:boxed|fbox)\s*", text))
    if not starts:
        return None
    inside = text[starts[-1].end() :]
    if not inside.startswith("{"):
        word = re.match(r"[^\s$]+", inside)
        return word[0] if word else None
    depth = 0
    for position, character in enumerate(inside):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return inside[1:position].strip()
    return None


def exact_match(problems: Sequence[Problem], completions: Sequence[str]) -> list[float | None]:
    """1 where the completion, stripped, is the answer column's text."""
    return [
        float(text.strip() == str(p.columns["answer"]).strip()) for p, text in zip(problems, completions, strict=True)
    ]


def _by_number(problems: Sequence[Problem], completions: Sequence[str], strict: bool) -> list[float | None]:
    out: list[float | None] = []
    for problem, text in zip(problems, completions, strict=True):
        gold = gold_number(problem.columns["answer"])
        if gold is None:  # refused when the data are read; a task made by hand comes here
            raise UserError(f"the gold answer {problem.columns['answer']!r:.60} is not a number")
        out.append(float(answer_number(text, strict) == gold))
    return out


def last_number(problems: Sequence[Problem], completions: Sequence[str]) -> list[float | None]:
    """1 where the number after `####`, or else the last number of the completion, equals the gold one."""
    return _by_number(problems, completions, strict=False)


def strict_number(problems: Sequence[Problem], completions: Sequence[str]) -> list[float | None]:
    """1 where the number after `####` equals the gold one; a completion without the mark has 0."""
    return _by_number(problems, completions, strict=True)


OwnReward = Callable[[Sequence[Problem], Sequence[str]], list[float | None]]
