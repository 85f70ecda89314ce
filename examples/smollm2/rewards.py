"""A reward function with TRL's signature, as a user would write it."""

import re

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def right_number(completions: list[str], answer: list[float], **kwargs: object) -> list[float]:
    """1 where the last number of the completion is the answer."""
    found = [NUMBER.findall(text.replace(",", "")) for text in completions]
    return [float(bool(n) and float(n[-1]) == float(a)) for n, a in zip(found, answer, strict=True)]
