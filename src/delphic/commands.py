"""What each command does, between the command line's words and the packages' functions."""

from __future__ import annotations

import argparse
import errno
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delphic.config import RunConfig, parse_value
from delphic.errors import UserError, nearest

if TYPE_CHECKING:
    from delphic.evaluation.specs import Exam


def run_train(config: RunConfig, path: Path, resume: bool, as_json: bool, arguments: Sequence[str]) -> int:
    """Train; `arguments` are those of the command, to say how to go on. Exit status 0 done, 1 halted, 130 interrupted."""
    _need_torch("train")
    from delphic.report.terminal import TerminalDisplay, print_summary, summarise
    from delphic.training.learner import NonFiniteError
    from delphic.training.loop import train

    output = Path(config.output)
    again = shlex.join(["delphic", "train", *arguments, *([] if resume else ["--resume"])])
    try:
        display: Any = TerminalDisplay()
        if config.trackers:
            from delphic.report.trackers import Tracked

            display = Tracked(display, config.trackers)
        outcome = train(config, output, path.resolve().parent, resume, display)
    except NonFiniteError as error:
        print(
            f"delphic: halted: {error}. The rollout is in {output}/halted; the last checkpoint is untouched.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print(f"delphic: stopped at once; go on from the last checkpoint with: {again}", file=sys.stderr)
        return 130
    except OSError as error:
        full = error.errno == errno.ENOSPC
        reason = "the disk is full. Make room, then" if full else f"{error}. Once that is put right"
        print(f"delphic: cannot write to {output}: {reason}: {again}", file=sys.stderr)
        return 1
    if os.environ.get("RANK", "0") != "0":  # of several processes, only the first speaks
        return 130 if outcome.interrupted else 0
    if as_json:
        summary = {"output": str(output), "finished": not outcome.interrupted, **summarise(outcome.rows)}
        print(json.dumps(summary, allow_nan=False))
    print_summary(outcome.rows, str(output))
    if outcome.interrupted:
        print(f"stopped after step {outcome.finished} and saved; go on with: {again}", file=sys.stderr)
        return 130
    return 0


def _need_torch(command: str) -> None:
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise UserError(f"{command} needs {error.name}: pip install 'delphic[train]'") from None


def run_eval(options: argparse.Namespace) -> int:
    """Evaluate one model or two; print tables or JSON. Exit status 0 done, 1 the result cannot be written, 130 Ctrl-C."""
    _need_torch("eval")
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


def run_objective(options: argparse.Namespace) -> int:
    """Print the table, a row's formula, or what it does to given rewards."""
    from rich.console import Console
    from rich.table import Table

    from delphic.objective import PRESETS, build
    from delphic.objective.explain import explain, formula, table

    console = Console(highlight=False)
    if options.list:
        rows = table()
        if options.json:
            print(json.dumps(rows, ensure_ascii=False))
            return 0
        grid = Table(box=None, padding=(0, 1))
        shown = [heading for heading in rows[0] if heading != "source"]  # `delphic objective NAME` gives the source
        for heading in shown:
            grid.add_column(heading, no_wrap=heading == "name")
        for row in rows:
            grid.add_row(*(str(row[heading]) for heading in shown))
        console.print(grid)
        return 0
    if options.name is None:
        raise UserError("objective: which one? delphic objective --list shows them")
    choices: dict[str, Any] = {"preset": options.name}
    for item in options.set:
        key, equals, value = item.partition("=")
        if not equals:
            raise UserError(f'objective: --set reads KEY=VALUE, got "{item}"')
        choices[key.replace("-", "_")] = parse_value(value)
    goal = build(choices)
    if options.rewards is None:
        text = formula(goal)
        preset = PRESETS[options.name]
        if options.json:
            row = {"objective": goal.name, "formula": text, "source": preset.source, "about": preset.about}
            print(json.dumps({**row, "choices": goal.model_dump(mode="json")}, ensure_ascii=False))
        else:
            print(f"{goal.name}  ({preset.source})\n{preset.about}\n\n{text}")
        return 0
    result = explain(
        goal,
        options.rewards,
        ratios=options.ratios,
        lengths=options.lengths,
        values=options.values,
        score_norms=options.score_norms,
        reference_ratios=options.reference_ratios,
        max_length=options.max_length,
        seed=options.seed,
    )
    if options.json:
        print(json.dumps(result, allow_nan=False, ensure_ascii=False))
        return 0
    grid = Table(box=None, padding=(0, 2))
    for heading in ("group", "completion", "advantage", "weight", "penalty weight", "left out because"):
        grid.add_column(heading, justify="left" if heading.startswith("left") else "right")
    for g, advantages in enumerate(result["advantages"]):
        reasons = dict(zip(result["dropped"][g], result["drop_reasons"][g], strict=True))
        for i, advantage in enumerate(advantages):
            weight, penalty = result["weights"][g][i], result["penalty_weights"][g][i]
            grid.add_row(
                str(g + 1), str(i + 1), f"{advantage:.4g}", f"{weight:.4g}", f"{penalty:.4g}", reasons.get(i, "")
            )
    console.print(grid)
    for note in result["notes"]:
        console.print(f"· {note}")
    return 0


def run_convert(options: argparse.Namespace) -> int:
    """Load any model and save it plain."""
    _need_torch("convert")
    from delphic.config import ModelConfig
    from delphic.evaluation.run import model_folder
    from delphic.policy.load import load_policy

    if options.folder.exists():
        raise UserError(f"convert: {options.folder} is already there; name a new folder")
    policy = load_policy(model_folder(options.model, options.checkpoint), ModelConfig(dtype=options.dtype))
    try:
        policy.save(options.folder)
    except OSError as error:
        raise UserError(f"convert: cannot write to {options.folder}: {error}") from None
    numbers = sum(p.numel() for p in policy.model.parameters())
    print(f"{options.folder}: {numbers / 1e6:.1f} million parameters, {options.dtype}")
    return 0


def run_plan(config: RunConfig, path: Path, options: argparse.Namespace) -> int:
    """A pilot and its advice; writes plan.json and plan.html into the output folder."""
    _need_torch("plan")
    if options.prompts < 1 or options.completions < 2:
        raise UserError(
            f"plan: --prompts must be 1 or more and --completions 2 or more, got {options.prompts} and {options.completions}"
        )
    from rich.console import Console
    from rich.progress import Progress

    from delphic.planning.advice import advise
    from delphic.planning.pilot import run_pilot
    from delphic.report.plan import draw_plan, print_plan
    from delphic.training.run_folder import write_json

    folder = Path(options.to)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"plan: --to {folder} cannot be made ({error.strerror})") from None
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("pilot", total=2 * options.prompts)
        measured = run_pilot(
            config, path.resolve().parent, options.prompts, options.completions, lambda n: progress.advance(bar, n)
        )
    plan = advise(measured, config)
    write_json(folder / "plan.json", plan)
    size = config.sampling.completions
    if plan["curve"]:
        draw_plan(plan, size, folder / "plan.html")
    if options.json:
        print(json.dumps(plan, allow_nan=False))
    else:
        print_plan(plan, size)
        written = " and plan.html" if plan["curve"] else ""
        print(f"\nwritten: {folder}/plan.json{written}")
    return 0


def run_rewards(path: Path, as_json: bool) -> int:
    """What recorded rewards alone tell."""
    from delphic.planning.rewards import read_rewards, rewards_report

    report = rewards_report(*read_rewards(path))
    if as_json:
        print(json.dumps(report, allow_nan=False))
        return 0
    for name, value in report["rewards"].items():
        print(f"{name.replace('_', ' '):24}{'–' if value is None else format(value, '.4g')}")
    for row in report["informative_share"]:
        print(f"informative at G = {row['G']:<7}{row['share']:.4g}")
    for item in report["refused"]:
        print(f"not estimated: {item['what']}; needs {item['needs']}")
    return 0


STUDIES = ("ustat", "dynamics")


def run_reproduce(options: argparse.Namespace) -> int:
    """Run a study, or what of it is left; print its claims or report.json. Exit status 0 done, 130 Ctrl-C."""
    _need_torch("reproduce")
    if options.study not in STUDIES:
        raise UserError(f'reproduce: there is no study "{options.study}"{nearest(options.study, STUDIES)}')
    from delphic.report.study import StudyProgress, print_claims
    from delphic.reproduce.study import run_study

    if options.study == "dynamics":
        if options.model is not None or options.task is not None:
            raise UserError("reproduce: dynamics is about bandits; leave out --model and --task")
        from delphic.reproduce.dynamics import dynamics

        study = dynamics()
    else:
        from delphic.reproduce.ustat import ustat

        study = ustat(options.model, options.task)
    own = "" if options.model is None and options.task is None else "-own"
    folder = options.to or Path("runs/reproduce") / f"{study.name}{own}"
    progress = StudyProgress([part.name for part in study.parts])
    try:
        report = run_study(study, folder, options.quick, progress.note)
    except KeyboardInterrupt:
        progress.close()
        print("delphic: stopped; the same command goes on from the last finished part", file=sys.stderr)
        return 130
    finally:
        progress.close()
    if options.json:
        print(json.dumps(report, allow_nan=False, ensure_ascii=False))
    else:
        print_claims(report["claims"])
        print(f"\nwritten: {folder}/report.md, report.html and report.json")
    return 0
