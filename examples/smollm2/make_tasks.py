"""Small arithmetic and reading tasks with worked examples in the prompt, for a model that is not yet good at them.

    python examples/smollm2/make_tasks.py FOLDER

Each becomes FOLDER/NAME.jsonl with the columns `prompt` and `answer`: four worked examples, then a question; the answer
is what the next line must be. FOLDER/NAME.toml beside it is what `delphic eval --tasks` reads. All questions of a task are distinct, and none is one of its worked examples.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

Draw = Callable[[random.Random], tuple[str, str]]


def _sum(rng: random.Random, *digits: int) -> tuple[str, str]:
    numbers = [rng.randint(10 ** (n - 1), 10**n - 1) for n in digits]
    return " + ".join(map(str, numbers)) + " =", str(sum(numbers))


def _difference(rng: random.Random, first: int, second: int) -> tuple[str, str]:
    a, b = rng.randint(10 ** (first - 1), 10**first - 1), rng.randint(10 ** (second - 1), 10**second - 1)
    return f"{max(a, b)} - {min(a, b)} =", str(abs(a - b))


def _product(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    return f"{a} * {b} =", str(a * b)


def _missing(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randint(10, 99), rng.randint(1, 9)
    return f"{a} + ? = {a + b}, so ? =", str(b)


def _larger(rng: random.Random) -> tuple[str, str]:
    a, b = rng.sample(range(100, 1000), 2)
    return f"The larger of {a} and {b} is", str(max(a, b))


NAMES, THINGS = ("Ann", "Ben", "Tom", "Mia", "Sam", "Eva"), ("pens", "cups", "eggs", "books", "coins", "apples")


def _story(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randint(10, 99), rng.randint(1, 9)
    thing = rng.choice(THINGS)
    return f"{rng.choice(NAMES)} has {a} {thing} and gets {b} more. Number of {thing} now:", str(a + b)


def _last_word(rng: random.Random) -> tuple[str, str]:
    words = rng.sample([*NAMES, *THINGS], 4)
    return f"The last of the words {', '.join(words)} is", words[-1]


TASKS: dict[str, Draw] = {
    "two_digits_plus_one": lambda rng: _sum(rng, 2, 1),
    "two_digits_plus_two": lambda rng: _sum(rng, 2, 2),
    "three_terms": lambda rng: _sum(rng, 1, 1, 1),
    "two_digits_minus_one": lambda rng: _difference(rng, 2, 1),
    "one_digit_minus_one": lambda rng: _difference(rng, 1, 1),
    "product": _product,
    "missing_number": _missing,
    "story": _story,
    "larger": _larger,
    "last_word": _last_word,
}


CONFIG = """[task]
name = "file"
path = "{name}.jsonl"
answer_column = "answer"
rewards = ["exact_match"]
held_out_share = 0.3

[sampling]
max_new_tokens = 5
temperature = 0.7
stop = "\\n"
"""


def make(name: str, count: int = 400, shots: int = 4) -> list[dict[str, str]]:
    """At most `count` distinct problems, fewer where the task has no more."""
    rng = random.Random(name)
    drawn = dict(TASKS[name](rng) for _ in range(20 * count))
    (*examples, rest) = [*list(drawn.items())[:shots], list(drawn.items())[shots : shots + count]]
    head = "".join(f"{question} {answer}\n" for question, answer in examples)
    return [{"prompt": head + question, "answer": answer} for question, answer in rest]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in TASKS:
        rows = make(name)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        (folder / f"{name}.toml").write_text(CONFIG.format(name=name), encoding="utf-8")
        print(f"{folder / name}.jsonl: {len(rows)} problems")
