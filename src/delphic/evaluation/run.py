"""A whole evaluation: one model or two, on every exam."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from delphic import __version__
from delphic.config import ModelConfig
from delphic.errors import UserError
from delphic.evaluation.measure import Measured, difference, interval_json, measure
from delphic.evaluation.results import FORMAT, Earlier, read_earlier
from delphic.evaluation.specs import Exam
from delphic.evaluation.transfer import token_counts, transfer_table
from delphic.policy.load import is_somewhere, load_policy
from delphic.policy.model import Policy
from delphic.policy.sampling import encode_prompts
from delphic.statistics.evaluation import Difference
from delphic.training.run_folder import find_checkpoint, is_run, read_json

MODEL_FILES = ("config.json", "adapter_config.json")  # one of them is in every folder that can be loaded


class Progress(Protocol):
    """Whoever is watching."""

    def start(self, model: str, exam: Exam, samples: int) -> None: ...
    def advance(self, problems: int) -> None: ...
    def finish(self, result: Measured) -> None: ...


@dataclass(frozen=True)
class Request:
    """What to evaluate.

    model: a model folder, `builtin`, or a run's folder (`checkpoint` of it). before: a second one (of a run the best
    checkpoint), or a result file (.json). trained_on: the exam, of `exams` or not, whose distance counts.
    """

    model: str
    exams: Sequence[Exam]
    samples: int
    pass_at: Sequence[int]
    checkpoint: str | None = None
    before: str | None = None
    trained_on: Exam | None = None
    chat: bool = False  # plain prompts go into the chat template (a run's: as it was trained)


def model_folder(model: str, checkpoint: str | None) -> str:
    """What `load_policy` takes for MODEL.

    Raises:
        UserError: a run without that checkpoint, or `checkpoint` for something that is no run.
    """
    if model != "builtin" and is_run(Path(model)):
        return str(find_checkpoint(Path(model), checkpoint))
    if checkpoint is not None:
        raise UserError(f'--checkpoint chooses one of a run\'s; "{model}" is no run folder')
    return model


def model_settings(model: str, chat: bool) -> ModelConfig:
    """How to load MODEL: a run's as it was trained, its adapters merged."""
    if model != "builtin" and is_run(Path(model)):
        saved = read_json(Path(model) / "config.json").get("config", {}).get("model", {})
        kept = {key: saved[key] for key in ("chat", "system", "dtype") if key in saved}
        return ModelConfig(**kept)
    return ModelConfig(chat=chat)


def run_evaluation(request: Request, progress: Progress) -> dict[str, Any]:
    """The result as `docs/eval.md` describes it, ready for JSON.

    All that can be refused without sampling is refused before any model samples; one model is in memory at a time.

    Raises:
        UserError: a model, checkpoint or result file that will not do, or a prompt too long for the model.
    """
    folder = model_folder(request.model, request.checkpoint)
    result: dict[str, Any] = {
        "format": FORMAT,
        "delphic": __version__,
        "model": request.model,
        "weights": folder,
        "tasks": {},
        "before": None,
        "comparison": None,
        "transfer": None,
    }
    earlier: dict[str, Earlier] | None = None
    second: str | None = None
    if request.before is not None and request.before.endswith(".json"):
        model, earlier = read_earlier(Path(request.before), request.exams)
        result["before"] = {"model": model, "file": request.before}
    elif request.before is not None:
        second = model_folder(request.before, None)
        if not is_somewhere(second):
            raise UserError(f'--before: there is nothing at "{second}"; give a model, a run folder or a result (.json)')
        if Path(second).is_dir() and not any((Path(second) / file).is_file() for file in MODEL_FILES):
            raise UserError(f'--before: the folder "{second}" holds no model: neither {" nor ".join(MODEL_FILES)}')
    policy = load_policy(folder, model_settings(request.model, request.chat))
    counts = {exam.label: token_counts(_encode(policy, exam)) for exam in request.exams}
    trained_counts = None if request.trained_on is None else token_counts(_encode(policy, request.trained_on))
    after = _measure_all(policy, request.model, request, progress)
    del policy
    result["tasks"] = {label: measured.to_json(request.pass_at) for label, measured in after.items()}
    if second is not None:
        policy = load_policy(second, model_settings(str(request.before), request.chat))
        for exam in request.exams:
            _encode(policy, exam)
        before = _measure_all(policy, str(request.before), request, progress)
        tasks = {label: measured.to_json(request.pass_at) for label, measured in before.items()}
        result["before"] = {"model": request.before, "weights": second, "tasks": tasks}
        earlier = {x: Earlier(m.correct, m.counted, m.samples, m.settings) for x, m in before.items()}
    if earlier is None:
        return result
    gains = {label: difference(m, earlier[label].correct, earlier[label].counted) for label, m in after.items()}
    result["comparison"] = {label: _comparison(after[label], earlier[label], gains[label]) for label in after}
    if request.trained_on is not None and trained_counts is not None:
        result["transfer"] = transfer_table(request.trained_on.label, trained_counts, counts, gains)
    return result


def _encode(policy: Policy, exam: Exam) -> list[np.ndarray]:
    try:
        ids = [policy.encode(problem.prompt, problem.tools) for problem in exam.problems]
        return encode_prompts(policy, ids, exam.settings.max_new_tokens)
    except UserError as error:
        raise UserError(f"{exam.label}: {error}") from None


def _measure_all(policy: Policy, model: str, request: Request, progress: Progress) -> dict[str, Measured]:
    out = {}
    for exam in request.exams:
        progress.start(model, exam, request.samples)
        out[exam.label] = measure(policy, exam, request.samples, progress.advance)
        progress.finish(out[exam.label])
    return out


def _comparison(after: Measured, before: Earlier, gain: Difference) -> dict[str, Any]:
    """The gain, and which settings differ: then it is not the weights' alone."""
    now, then = {**after.settings, "samples": after.samples}, {**before.settings, "samples": before.samples}
    changed = {key: [then.get(key), now[key]] for key in now if then.get(key) != now[key]}
    return {"gain": interval_json(gain), "settings_changed": changed}
