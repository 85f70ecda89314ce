"""Evaluating a model, or two."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from delphic.commands import need_torch
from delphic.errors import UserError

if TYPE_CHECKING:
    from delphic.evaluation.specs import Exam


def run_eval(options: argparse.Namespace) -> int:
    """Evaluate one model or two; print tables or JSON. Exit status 0 done, 1 the result cannot be written, 130 Ctrl-C."""
    need_torch("eval")
    from delphic.evaluation.run import Request, run_evaluation
    from delphic.report.evaluation import EvaluationProgress, print_evaluation
    from delphic.training.run_folder import write_json

    _check_eval(options)
    greedy = options.greedy or options.temperature == 0
    changes = {k: getattr(options, k) for k in ("temperature", "top_p", "max_new_tokens", "stop", "batch_rows")}
    sampling = {k: v for k, v in changes.items() if v is not None and not (greedy and k == "temperature")}
    samples = options.samples or (1 if greedy else 4)
    pass_at = _pass_at(options.pass_at, samples)
    exams, trained_on = _exams(options, sampling, greedy)
    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
    progress = EvaluationProgress()
    request = Request(
        options.model, exams, samples, pass_at, options.checkpoint, options.before, trained_on, options.chat
    )
    try:
        result = run_evaluation(request, progress)
    except KeyboardInterrupt:
        progress.close()
        print("delphic: stopped; an evaluation is kept only when it is complete", file=sys.stderr)
        return 130
    finally:
        progress.close()
    status = 0
    if options.output is not None:
        try:
            write_json(options.output, result)
        except OSError as error:
            print(f"delphic: cannot write to {options.output}: {error}", file=sys.stderr)
            status = 1
    if options.json:
        print(json.dumps(result, allow_nan=False, ensure_ascii=False))
    else:
        print_evaluation(result)
    return status


def _check_eval(options: argparse.Namespace) -> None:
    """Refuse options that are wrong whatever the tasks and models."""
    if options.greedy and (options.temperature or options.top_p):
        raise UserError("--greedy takes the likeliest token each time; leave out --temperature and --top-p")
    if (options.greedy or options.temperature == 0) and (options.samples or 1) > 1:
        raise UserError("--greedy gives the same completion every time; leave out --samples")
    for name, value, lowest in (("samples", options.samples, 1), ("threads", options.threads, 1)):
        if value is not None and value < lowest:
            raise UserError(f"--{name} must be {lowest} or more, got {value}")
    if options.seed is not None and not 0 <= options.seed < 2**48:
        raise UserError(f"--seed must be at least 0 and below 2^48, got {options.seed}")
    if options.trained_on is not None and options.before is None:
        raise UserError("--trained-on shows gains, which need --before: the model before training, or its result")
    if options.output is not None:
        if options.output.exists():
            raise UserError(f"--output: {options.output} is there already; nothing was overwritten")
        if not options.output.parent.is_dir():
            raise UserError(f"--output: there is no folder {options.output.parent}")


def _pass_at(text: str | None, samples: int) -> list[int]:
    """The k of `--pass-at`, in order; without it 1 and the number of samples."""
    try:
        ks = [1, samples] if text is None else [int(item) for item in text.split(",")]
    except ValueError:
        raise UserError(f'--pass-at reads whole numbers such as 1,4, got "{text}"') from None
    for k in ks:
        if not 1 <= k <= samples:
            raise UserError(f"--pass-at {k}: k must be from 1 to the number of samples, {samples}")
    return sorted(set(ks))


def _exams(options: argparse.Namespace, sampling: dict[str, Any], greedy: bool) -> tuple[list[Exam], Exam | None]:
    """The tasks to evaluate, and the one that the model was trained on (one of them, or another)."""
    from delphic.evaluation.specs import read_exam, read_exams

    exams = read_exams(options.tasks, options.problems, sampling, greedy, options.seed)
    spec = options.trained_on
    if spec is None:
        return exams, None
    among = [exam for exam in exams if spec in (exam.label, exam.spec)]
    trained_on = among[0] if among else read_exam(spec, options.problems, sampling, greedy, options.seed)
    if not among and trained_on.label in [exam.label for exam in exams]:
        raise UserError(
            f'--trained-on: "{trained_on.label}" is also the name of another task; name it label=config.toml'
        )
    if all(exam is trained_on for exam in exams):
        raise UserError(f'--trained-on: "{spec}" needs another task in --tasks to compare with')
    return exams, trained_on
