"""A reward function with TRL's signature, as a user would write it."""

import re

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def right_number(completions: list[str], answer: list[float], **kwargs: object) -> list[float]:
    """1 where the first number of the completion is the answer."""
    found = [NUMBER.search(text.replace(",", "")) for text in completions]
    return [float(m is not None and float(m.group()) == float(a)) for m, a in zip(found, answer, strict=True)]
