"""Known benchmarks: the columns, template and reward that read their files as published. All problems are held out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from delphic.config import TaskConfig
from delphic.errors import UserError, nearest

_BOXED = "{prompt}\n\nPlease reason step by step, and put your final answer within \\boxed{{}}."
_NUMBER = "{prompt}\n\nReason step by step, and end with the answer as a number after ####."

_WORDS: dict[str, Any] = {"name": "file", "rewards": ("last_number",)}
_MATH: dict[str, Any] = {"name": "math", "prompt_column": "problem", "answer_column": "answer", "template": _BOXED}

BENCHMARKS: dict[str, dict[str, Any]] = {
    "gsm8k": {"name": "gsm8k", "template": _NUMBER},
    # an eighth of the problems ("critical thinking") have no answer, written None
    "gsm_plus": {
        **_WORDS,
        "prompt_column": "question",
        "answer_column": "answer",
        "template": _NUMBER,
        "unparsable": "skip",
    },
    "svamp": {
        **_WORDS,
        "prompt_column": "Question",
        "answer_column": "Answer",
        "template": _NUMBER.replace("{prompt}", "{Body} {Question}"),
    },
    # 9 (apples) is a number; Mrs. Hilt, 5:45 and 2:3 are not
    "asdiv": {
        **_WORDS,
        "prompt_column": "question",
        "answer_column": "answer",
        "template": _NUMBER.replace("{prompt}", "{body} {question}"),
        "unparsable": "skip",
    },
    "mawps": {**_WORDS, "prompt_column": "input", "answer_column": "target", "template": _NUMBER},
    "math500": _MATH,
    "amc23": _MATH,
    "olympiadbench": {**_MATH, "prompt_column": "question", "answer_column": "final_answer.0", "unparsable": "skip"},
    "minerva_math": {**_MATH, "answer_column": "solution", "unparsable": "skip"},
    "college_math": {**_MATH, "prompt_column": "question", "unparsable": "skip"},
    "aime24": _MATH,
    "aime25": _MATH,
    "aime26": {**_MATH, "prompt_column": "prompt", "template": "{prompt}"},  # its prompts ask for a box themselves
}
"""Fields of a TaskConfig by benchmark: all but `path` and `held_out_share`."""

_FILES = {"gsm_plus": "gsmplus_testmini.jsonl"}  # where a folder is given; else test.jsonl


def benchmark(name: str, path: str) -> TaskConfig:
    """The task that reads a benchmark's file, or the one in a folder; every problem is held out.

    Raises:
        UserError: no such benchmark (with the nearest one).
    """
    if name not in BENCHMARKS:
        raise UserError(f'there is no benchmark "{name}"{nearest(name, BENCHMARKS)}')
    file = Path(path)
    if file.is_dir():
        file = file / _FILES.get(name, "test.jsonl")
    return TaskConfig(**BENCHMARKS[name], path=str(file), held_out_share=1.0)
