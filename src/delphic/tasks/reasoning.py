"""Problems that reasoning-gym generates, judged by each generator's own scorer.

Several scorers give partial credit for text around the answer, one accepts any text, one raises on text: the answer is
extracted first, only a full score counts, and a scorer that accepts nonsense is replaced by equality.
"""

from __future__ import annotations

import importlib.util
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from delphic.errors import UserError, nearest
from delphic.tasks.answers import parse_number
from delphic.tasks.base import Problem
from delphic.tasks.file import fill_template
from delphic.tasks.workers import shared_pool

HELD_OUT_SHARE = 10  # one question in ten
DRAWS = 30  # questions drawn at most, per held-out problem wanted: rare sides of small generators end somewhere
NONSENSE = "\u2042 no answer \u2042"

_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_LEAD = re.compile(r"^.*\banswer(?: is:?|:)\s*", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")


def is_held_out(question: str) -> bool:
    """Whether a question belongs to the held-out tenth. A function of its text alone, so that no seed mixes the sides."""
    return zlib.crc32(question.encode()) % HELD_OUT_SHARE == 0


Form = Literal["number", "line", "text"]


def form_of(golds: Sequence[str]) -> Form:
    """What all answers of a generator look like. One gold answer alone must not decide: 139 is a factorisation, too."""
    if all(re.fullmatch(r"-?[\d,]+(\.\d+)?", gold.strip()) for gold in golds):
        return "number"
    return "text" if any("\n" in gold.strip() for gold in golds) else "line"


def extract(completion: str, form: Form, strict: bool) -> str | None:
    """The answer in a completion: the last <answer> tag; else, unless `strict`, the last number, the whole text (grids),
    or the last line (after "answer is" or "answer:"), as the form of the generator's answers has it."""
    tags = _TAG.findall(completion)
    if tags or strict:
        return tags[-1].strip() if tags else None
    text = completion.strip()
    if not text:
        return None
    if form == "number":
        numbers = _NUMBER.findall(text.replace("−", "-"))
        return numbers[-1].replace(",", "") if numbers else None
    if form == "text":
        return text
    return _LEAD.sub("", text.splitlines()[-1].strip()).rstrip(".").strip()


class ReasoningGym:
    """Generated problems; train and held-out never share a question.

    Args:
        generator, parameters: of reasoning-gym (`chain_sum`, {"min_terms": 2}).
        size, held_out_size: problems; held-out ones are distinct, and fewer where the generator has not as many.
        template: {prompt} is the question; solved examples (`shots`) go through it too, each followed by its answer.
        strict: only an <answer> tag counts.
        limit: seconds that the scorer may take for one completion.

    Raises:
        UserError: reasoning-gym is not installed, no such generator (with the nearest), or parameters it refuses.
    """

    name = "reasoning_gym"
    reward_name = "reasoning_gym"

    def __init__(
        self,
        generator: str,
        parameters: Mapping[str, Any],
        size: int,
        held_out_size: int,
        seed: int,
        template: str = "{prompt}",
        shots: int = 0,
        strict: bool = False,
        limit: float = 10.0,
    ) -> None:
        if importlib.util.find_spec("reasoning_gym") is None:
            raise UserError('task.name = "reasoning_gym" needs reasoning-gym: pip install "delphic[tasks]"')
        from reasoning_gym import create_dataset
        from reasoning_gym.factory import DATASETS

        if generator not in DATASETS:
            raise UserError(f'task.generator: reasoning-gym has no "{generator}"{nearest(generator, DATASETS)}')
        for key in ("size", "seed"):
            if key in parameters:
                raise UserError(f"task.parameters: {key} is decided by task.size and seed; leave it out")
        draws = 2 * (size + shots) + DRAWS * held_out_size + 100
        options = {**parameters, "seed": seed, "size": draws}
        try:
            dataset = create_dataset(generator, **options)
        except Exception as error:  # each generator checks its parameters in its own way
            raise UserError(f'task.parameters: "{generator}" refuses them: {type(error).__name__}: {error}') from None
        self.strict = strict
        self.pool = shared_pool("reasoning_gym", limit, size=2)  # scorers are quick, importing them is not
        self._dataset = (generator, options)
        examples: list[Mapping[str, Any]] = []
        sides: tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]] = ([], [])
        seen: set[str] = set()  # held-out questions and those of the examples
        for index in range(draws):
            if len(sides[0]) >= size and len(sides[1]) >= held_out_size:
                break
            try:
                entry = dataset[index]
            except Exception as error:
                raise UserError(f'task.generator: "{generator}" failed: {type(error).__name__}: {error}') from None
            question = str(entry["question"])
            if question in seen:
                continue
            side = int(is_held_out(question))
            if side == 0 and len(examples) < shots:
                examples.append(entry)
                seen.add(question)
            elif len(sides[side]) < (size, held_out_size)[side]:
                sides[side].append(entry)
                if side:
                    seen.add(question)
        where = f"task.generator {generator}"
        solved = "".join(
            f"{fill_template(template, {'prompt': e['question']}, where)}{_gap(template)}{e['answer']}\n\n"
            for e in examples
        )

        def problem(entry: Mapping[str, Any]) -> Problem:
            text = solved + fill_template(template, {"prompt": entry["question"]}, where)
            columns = {"answer": str(entry["answer"]), "entry": dict(entry), "question": entry["question"]}
            return Problem(text + ("\n" if solved and _gap(template) == "\n" else ""), columns)

        self.train, self.held_out = ([problem(entry) for entry in side] for side in sides)
        if not self.train:
            raise UserError(f'task.generator: "{generator}" has too few distinct questions to train on')
        self.form = form_of([problem.columns["answer"] for problem in [*self.train, *self.held_out]])
        # game_of_life_halting gives any text a full score
        self._accepts_anything = bool(self._scores([(NONSENSE, self.train[0].columns["entry"])])[0] >= 1)

    def _scores(self, requests: Sequence[tuple[str, Any]]) -> list[float]:
        return [score or 0.0 for score in self.pool.map([(*self._dataset, *request) for request in requests])]

    def reward(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[float | None]:
        """1 where the extracted answer has the generator's full score, else 0."""
        out: list[float | None] = [0.0] * len(problems)
        asked: list[tuple[int, str]] = []
        for index, (problem, text) in enumerate(zip(problems, completions, strict=True)):
            gold = problem.columns["answer"]
            answer = extract(text, self.form, self.strict)
            if not answer:
                continue
            if answer == gold or (_plain(answer) is not None and _plain(answer) == _plain(gold)):
                out[index] = 1.0
            elif not self._accepts_anything:
                asked.append((index, answer))
        scores = self._scores([(answer, problems[index].columns["entry"]) for index, answer in asked])
        for (index, _), score in zip(asked, scores, strict=True):
            out[index] = float(score >= 1)
        return out


def _plain(text: str) -> Any:
    return parse_number(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else None


def _gap(template: str) -> str:
    """Between a question and its answer in a solved example: what the template ends with, or a line feed."""
    return "" if template[-1:] in (" ", "\n", "=") else "\n"
