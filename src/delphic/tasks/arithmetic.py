"""Integer arithmetic in five kinds, as in the synthetic study of arXiv 2603.01162, section 5.

Prompts read `12+7-3=`; the completion is the number and nothing else. A fixed tenth of all
expressions (chosen by a hash of the text) is held out: no training problem ever shows one.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence

from delphic.tasks.base import Problem

HELD_OUT_SHARE = 10  # one expression in ten


def is_held_out(expression: str) -> bool:
    """Whether the expression (without `=`) belongs to the held-out tenth. A function of its text alone."""
    return zlib.crc32(expression.encode()) % HELD_OUT_SHARE == 0


def _two_steps(rng: random.Random, low: int, high: int) -> tuple[str, int]:
    a, b, c = (rng.randint(low, high) for _ in range(3))
    s, t = rng.choice("+-"), rng.choice("+-")
    return f"{a}{s}{b}{t}{c}", _signed(a, (s, b), (t, c))


def _three_steps(rng: random.Random, low: int, high: int) -> tuple[str, int]:
    a, b, c, d = (rng.randint(low, high) for _ in range(4))
    s, t, u = (rng.choice("+-") for _ in range(3))
    return f"{a}{s}{b}{t}{c}{u}{d}", _signed(a, (s, b), (t, c), (u, d))


def _product(rng: random.Random, low: int, high: int) -> tuple[str, int]:
    a, b = rng.randint(low, high), rng.randint(low, high)
    return f"{a}*{b}", a * b


def _quotient(rng: random.Random, low: int, high: int) -> tuple[str, int]:
    divisor, quotient = rng.randint(max(low, 1), max(high, 1)), rng.randint(low, high)
    return f"{divisor * quotient}/{divisor}", quotient


def _parentheses(rng: random.Random, low: int, high: int) -> tuple[str, int]:
    a, b, c = (rng.randint(low, high) for _ in range(3))
    s, t = rng.choice("+-"), rng.choice("+-")
    return f"{a}{s}({b}{t}{c})", _signed(a, (s, _signed(b, (t, c))))


def _signed(first: int, *terms: tuple[str, int]) -> int:
    return first + sum(value if sign == "+" else -value for sign, value in terms)


KINDS: dict[str, Callable[[random.Random, int, int], tuple[str, int]]] = {
    "two_steps": _two_steps,
    "three_steps": _three_steps,
    "product": _product,
    "quotient": _quotient,
    "parentheses": _parentheses,
}


def draw(rng: random.Random, kind: str, low: int, high: int, held_out: bool | None) -> Problem:
    """One problem of a kind with operands in [low, high], from the wanted side of the split (None: from either)."""
    for _ in range(10_000):
        expression, answer = KINDS[kind](rng, low, high)
        if held_out is None or is_held_out(expression) == held_out:
            return Problem(f"{expression}=", {"answer": str(answer), "kind": kind})
    side = "held-out" if held_out else "training"
    raise ValueError(f"task.arithmetic: operands {low}..{high} leave no {side} problem of kind {kind}; widen the range")


class Arithmetic:
    """The five kinds in equal shares; reward 1 for the exact number, else 0.

    Args:
        low, high: range of the operands, both included (for ÷: of the divisor and the quotient).
        size: training problems (drawn with replacement from the expressions not held out).
        held_out_size: held-out problems, distinct where the range has enough.
        seed: decides every draw.
    """

    name = "arithmetic"

    def __init__(self, low: int = 1, high: int = 20, size: int = 5000, held_out_size: int = 200, seed: int = 0) -> None:
        if low < 0 or high < low:
            raise ValueError(f"task.arithmetic: operands must satisfy 0 <= low <= high, got low={low}, high={high}")
        self.train = self._problems(size, low, high, seed, held_out=False)
        self.held_out = self._problems(held_out_size, low, high, seed, held_out=True)

    @staticmethod
    def _problems(size: int, low: int, high: int, seed: int, held_out: bool) -> list[Problem]:
        rng = random.Random(f"arithmetic/{seed}/{'held out' if held_out else 'train'}")
        kinds = list(KINDS)
        problems: list[Problem] = []
        seen: set[object] = set()
        for index in range(size):
            problem = draw(rng, kinds[index % len(kinds)], low, high, held_out)
            for _ in range(200 if held_out else 0):
                if problem.prompt not in seen:
                    break
                problem = draw(rng, kinds[index % len(kinds)], low, high, held_out)
            seen.add(problem.prompt)
            problems.append(problem)
        return problems

    def reward(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[float | None]:
        return [float(text.strip() == p.columns["answer"]) for p, text in zip(problems, completions, strict=True)]
