"""Result files: an earlier evaluation to compare with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from delphic.errors import UserError, nearest
from delphic.evaluation.measure import prompts_hash
from delphic.evaluation.specs import Exam
from delphic.training.run_folder import read_json

FORMAT = 1


@dataclass(frozen=True)
class Earlier:
    """What an earlier result says of one task."""

    correct: np.ndarray
    counted: np.ndarray
    samples: int
    settings: Mapping[str, Any]


def read_earlier(path: Path, exams: Sequence[Exam]) -> tuple[str, dict[str, Earlier]]:
    """The model of a result file, and its result for each exam.

    Raises:
        UserError: no result file, one of another format, a task that it lacks, or other problems than the exam's.
    """
    content = read_json(path)
    if content.get("format") != FORMAT or not isinstance(content.get("tasks"), dict):
        raise UserError(f"{path}: not a result of delphic eval (format {FORMAT})")
    tasks, out = content["tasks"], {}
    for exam in exams:
        if exam.label not in tasks:
            raise UserError(f'{path}: has no task "{exam.label}"{nearest(exam.label, tasks)}')
        try:
            saved = tasks[exam.label]
            same = saved["prompts_hash"] == prompts_hash(exam.prompts)
            earlier = Earlier(
                np.array(saved["correct"], dtype=np.int64),
                np.array(saved["counted"], dtype=np.int64),
                int(saved["samples"]),
                dict(saved["settings"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f'{path}: task "{exam.label}" cannot be read ({error!r})') from None
        if not same or not len(earlier.correct) == len(earlier.counted) == len(exam.problems):
            raise UserError(
                f'{path}: task "{exam.label}" has other problems ({len(earlier.correct)}) than those asked for now '
                f"({len(exam.problems)}); only the same ones can be paired"
            )
        out[exam.label] = earlier
    return str(content.get("model")), out
