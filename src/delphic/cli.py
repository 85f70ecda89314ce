"""The command line: one function per command, no logic. Heavy imports happen inside the command that needs them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from delphic import __version__
from delphic.errors import UserError, nearest

HELP = """\
delphic: plan, train and diagnose group-relative RL for language models.

before a run
  plan        how good the gradient is, how many completions per prompt: delphic plan CONFIG.toml
  stability   which learning rate and sync interval stay stable; what-if for a run
  objective   what an objective does to given rewards; --list shows the table

during
  train       run a config: delphic train CONFIG.toml [--section.key value ...]
  watch       follow a growing log, and say what is new: delphic watch RUN-or-LOG
  export      the same config for TRL or verl, with delphic's objective inside

after
  diagnose    what is wrong with a run of any framework, and what to change: delphic diagnose RUN-or-LOG
  probe       how stiff the update is, and what a raised learning rate does: delphic probe RUN
  compare     whether two runs differ, and how many seeds would show it: delphic compare A B
  forecast    where a run's reward is heading: delphic forecast RUN-or-LOG
  eval        accuracy, pass@k and gains on held-out problems: delphic eval MODEL --tasks SPEC ...
  convert     a GGUF file, adapters or a run's checkpoint as a plain model folder

science
  backtest    how good forecasts are on the runs of a folder
  reproduce   the papers' experiments: delphic reproduce ustat (dynamics, detection); each claim, what was measured, whether it holds

delphic COMMAND --help tells more of each."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status (0 fine, 1 the run failed, 2 a mistake in what was given, 130 Ctrl-C)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP)
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"delphic {__version__}")
        return 0
    command = COMMANDS.get(arguments[0])
    try:
        if command is None:
            raise UserError(f'there is no command "{arguments[0]}"{nearest(arguments[0], COMMANDS)}')
        return command(arguments[1:])
    except UserError as error:
        print(f"delphic: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 0


class Parser(argparse.ArgumentParser):
    """argparse, with its complaints in our form."""

    def error(self, message: str) -> Any:
        raise UserError(f"{self.prog.removeprefix('delphic ')}: {message}")


def take_config(arguments: Sequence[str], flags: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The config's path, wherever it stands among the options, and the rest. Every option but `flags` has a value."""
    config, rest, waiting = None, [], False
    for argument in arguments:
        if waiting or argument.startswith("-"):
            rest.append(argument)
            waiting = not waiting and argument not in flags and "=" not in argument
        elif config is None:
            config = Path(argument)
        else:
            rest.append(argument)
    return config, rest


def train(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="delphic train",
        usage="delphic train CONFIG.toml [--resume] [--json] [--section.key value ...]",
        description="Train a model as a config file says; every key of the config is an option, too.",
        add_help=False,
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in the output folder, if there is one"
    )
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")
    parser.add_argument("-h", "--help", action="store_true", help="show this and every key")
    config_path, others = take_config(arguments, ("--resume", "--json", "--help", "-h"))
    known, rest = parser.parse_known_args(others)
    if known.help:
        from delphic.config_help import describe_fields

        parser.print_help()
        print("\n" + describe_fields())
        return 0
    if config_path is None:
        raise UserError("train: which config? Try: delphic train examples/demo.toml")
    from delphic.commands.train import run_train
    from delphic.config import load_config
    from delphic.config_help import parse_overrides

    config = load_config(config_path, parse_overrides(rest))
    return run_train(config, config_path, known.resume, known.json, arguments)


def log_parser(name: str, description: str) -> Parser:
    """Options of the commands that read anybody's log."""
    parser = Parser(prog=f"delphic {name}", description=description)
    parser.add_argument("path", type=Path, metavar="RUN-or-LOG", help="a run's folder or a log of any framework")
    parser.add_argument(
        "--map", action="append", default=[], metavar="NAME=COLUMN", help="what a column is, such as reward=my_score"
    )
    parser.add_argument("--end", type=float, metavar="STEP", help="last step planned")
    parser.add_argument("--learning-rate", type=float, metavar="η", help="where the log does not say it")
    parser.add_argument("--sync-interval", type=int, metavar="M", help="steps between two syncs of the sampler")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def diagnose(arguments: Sequence[str]) -> int:
    parser = log_parser(
        "diagnose",
        "What is wrong with a run, where it is going, what to change. Exit status: 0 nothing above info, 1 a warning or error, "
        "2 a mistake in what was given, 3 cannot tell, 70 an error of delphic's own.",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="one self-contained page with every curve")
    parser.add_argument("--columns", action="store_true", help="only show what each column was taken for")
    parser.add_argument(
        "--group-size", type=int, metavar="G", help="completions per prompt, for dumps without group ids"
    )
    parser.add_argument("--group-key", metavar="COLUMN", help="column of group ids in a dump of completions")
    known = parser.parse_args(arguments)
    from delphic.commands.diagnose import run_diagnose

    return guarded(lambda: run_diagnose(known))


def watch(arguments: Sequence[str]) -> int:
    parser = log_parser("watch", "Follow a growing log: the verdict after every change, findings when they are new.")
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="between two looks (5)")
    parser.add_argument("--seconds", type=float, metavar="N", help="stop after so long (never)")
    parser.add_argument("--until-finding", action="store_true", help="stop with status 1 at the first warning or error")
    known = parser.parse_args(arguments)
    from delphic.commands.diagnose import run_watch

    return guarded(lambda: run_watch(known))


def compare(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="delphic compare",
        description="Whether two runs differ in level, rate and noise. Seeds differ, too: give several runs a side, or --seed-spread.",
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN-or-LOG", help="two runs, or those of side A")
    parser.add_argument("--against", type=Path, nargs="+", metavar="RUN-or-LOG", help="the runs of side B")
    parser.add_argument("--seed-spread", type=float, metavar="SD", help="standard deviation of the level over seeds")
    parser.add_argument("--group-sizes", type=int, nargs=2, metavar=("A", "B"), help="completions per prompt of each")
    parser.add_argument("--json", action="store_true", help="print JSON")
    known = parser.parse_args(arguments)
    from delphic.commands.compare import run_compare

    return guarded(lambda: run_compare(known))


def guarded(work: Callable[[], int]) -> int:
    """70 where delphic itself fails, with what to report: a log is never answered with a trace."""
    try:
        return work()
    except (UserError, BrokenPipeError):
        raise
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else "?"
        print(
            f"delphic: an error of its own ({type(error).__name__} at {where}: {error}); please report it",
            file=sys.stderr,
        )
        return 70


def objective(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="delphic objective",
        description='What an objective does to rewards. Groups are separated by ";", completions by ",".',
    )
    parser.add_argument("name", nargs="?", help="a preset, such as grpo")
    parser.add_argument("--list", action="store_true", help="show the table of presets")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change one choice of the row")
    parser.add_argument("--rewards", help='such as "1,0,0,0;1,nan,3"')
    parser.add_argument("--ratios", help="π/π_behaviour of each completion, read as one token; default 1")
    parser.add_argument("--reference-ratios", help="π/π_reference of each completion, for a KL term")
    parser.add_argument("--lengths", help="tokens of each completion")
    parser.add_argument("--values", help="V(x): one a group, or one a completion")
    parser.add_argument("--score-norms", help="‖∇ log π‖² of each completion")
    parser.add_argument("--max-length", type=int, help="length limit, for overlong shaping")
    parser.add_argument("--seed", type=int, default=0, help="decides what is dropped at random")
    parser.add_argument("--json", action="store_true", help="print JSON")
    known = parser.parse_args(arguments)
    from delphic.commands.objective import run_objective

    return run_objective(known)


def export(arguments: Sequence[str]) -> int:
    parser = Parser(prog="delphic export", description="Write a delphic config as TRL's or verl's, objective included.")
    parser.add_argument("config", type=Path, help="TOML file")
    parser.add_argument("--to", required=True, metavar="HOST", help="trl or verl")
    known, rest = parser.parse_known_args(arguments)
    from delphic.config import load_config
    from delphic.config_help import parse_overrides
    from delphic.plugins.export import export as write

    print(write(load_config(known.config, parse_overrides(rest)), known.to), end="")
    return 0


def evaluate(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="delphic eval",
        description="Measure a model on the held-out problems of tasks, and what changed since another one.",
    )
    parser.add_argument("model", metavar="MODEL", help='a model (folder, .gguf, hub name, "builtin") or a run folder')
    parser.add_argument(
        "--tasks",
        nargs="+",
        required=True,
        metavar="SPEC",
        help="arithmetic, benchmark=PATH, config.toml or label=config.toml",
    )
    parser.add_argument("--checkpoint", help="of a run folder: best (the default), last, or a step")
    parser.add_argument("--before", metavar="MODEL", help="compare with this model, or an earlier result (.json)")
    parser.add_argument("--trained-on", metavar="SPEC", help="show the gains by the tasks' distance from this one")
    parser.add_argument("--problems", type=int, default=200, metavar="N", help="held-out problems; 0 = all (200)")
    parser.add_argument("--samples", type=int, metavar="K", help="completions of each (4; 1 if greedy)")
    parser.add_argument("--pass-at", metavar="K,K", help="pass@k for these k (1 and the samples)")
    parser.add_argument(
        "--greedy", action="store_true", help="the likeliest token each time; temperature 0 is the same"
    )
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--max-new-tokens", type=int)
    parser.add_argument("--stop", help="a token whose text contains this ends the completion")
    parser.add_argument(
        "--chat", action="store_true", help="put prompts into the model's chat template (a run: as trained)"
    )
    parser.add_argument("--seed", type=int, help="decides the samples (0, or the config's)")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--batch-rows", type=int, help="completions decoded at once (64)")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="keep the result, for a later --before")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    known = parser.parse_args(arguments)
    from delphic.commands.evaluate import run_eval

    return run_eval(known)


def convert(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="delphic convert",
        description="Write a model as a plain folder that transformers loads: a GGUF file unpacked, adapters merged.",
    )
    parser.add_argument("model", metavar="MODEL", help="a .gguf file, a folder of adapters, a run folder, a hub name")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where to; must not be there yet")
    parser.add_argument("--checkpoint", help="of a run folder: best (the default), last, or a step")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    known = parser.parse_args(arguments)
    from delphic.commands.convert import run_convert

    return run_convert(known)


def plan(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="delphic plan",
        usage="delphic plan CONFIG.toml [options] [--section.key value ...] | delphic plan --rewards-only FILE",
        description="Before a run: how good its gradient will be, and how many completions per prompt it should use.",
    )
    parser.add_argument("--prompts", type=int, default=64, metavar="B", help="prompts of the pilot (64)")
    parser.add_argument("--completions", type=int, default=32, metavar="G", help="completions of each (32)")
    parser.add_argument("--to", default="runs/plan", metavar="FOLDER", help="for plan.json and plan.html (runs/plan)")
    parser.add_argument("--rewards-only", type=Path, metavar="FILE", help="what recorded rewards alone allow; no model")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    config_path, others = take_config(arguments, ("--json", "--help", "-h"))
    known, rest = parser.parse_known_args(others)
    from delphic.commands.plan import run_plan, run_rewards

    if known.rewards_only is not None:
        if config_path is not None or rest:
            raise UserError("plan: --rewards-only takes a file and nothing else")
        return run_rewards(known.rewards_only, known.json)
    if config_path is None:
        raise UserError("plan: which config? Try: delphic plan examples/demo.toml")
    from delphic.config import load_config
    from delphic.config_help import parse_overrides

    return run_plan(load_config(config_path, parse_overrides(rest)), config_path, known)


def stability(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="delphic stability",
        description="Which learning rate and sync interval stay stable, from the settings, or from a run.",
    )
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="a run's folder or log, to fit its decay rate")
    parser.add_argument("--learning-rate", type=float, metavar="η")
    parser.add_argument("--stiffness", type=float, metavar="K", help="of the delayed force, per unit of learning rate")
    parser.add_argument("--momentum", type=float, metavar="μ", help="sgd's momentum (0), or adam's β₁ (0.9)")
    parser.add_argument("--sync-interval", type=int, metavar="m", help="steps between syncs of the sampler (1)")
    parser.add_argument("--sync-offset", type=int, metavar="n", help="steps that rollouts wait (0)")
    parser.add_argument(
        "--fresh-stiffness", type=float, metavar="k", help="of forces without lag, such as a KL term (0)"
    )
    parser.add_argument("--fresh-anchor", choices=["behaviour", "reference"], help="what they pull to (reference)")
    parser.add_argument("--optimizer", choices=["sgd", "adam"], help="adam: K in preconditioned units")
    parser.add_argument("--objective", metavar="NAME", help="whether its importance weights cancel the lag")
    parser.add_argument("--margin", type=float, default=1.0, help="safety factor of the largest settings (1)")
    parser.add_argument("--metric", help="column of a run's log (the mean reward)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    known = parser.parse_args(arguments)
    from delphic.commands.stability import run_stability

    return run_stability(known)


def probe(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="delphic probe",
        description="Measure the stiffness K of a checkpoint's update on fresh rollouts, and how it answers to a raised "
        "learning rate; writes stability.json into the run's folder and leaves the rest as it is.",
    )
    parser.add_argument(
        "path", type=Path, metavar="RUN-or-CHECKPOINT", help="a run's folder, or one of its checkpoints"
    )
    parser.add_argument("--checkpoint", help="of a run folder: last (the default), best, or a step")
    parser.add_argument("--prompts", type=int, default=64, metavar="P", help="prompts of the measurement (64)")
    parser.add_argument("--completions", type=int, metavar="G", help="completions of each (the run's own number)")
    parser.add_argument("--steps", type=int, default=8, metavar="N", help="of the step response; 0 = leave it out (8)")
    parser.add_argument("--factor", type=float, default=4.0, metavar="F", help="of the raised learning rate (4)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    known = parser.parse_args(arguments)
    from delphic.commands.probe import run_probe

    return run_probe(known)


def forecast(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="delphic forecast",
        description="Where a run's reward is heading: the mean of its last tenth, its plateau, and when it gets there.",
    )
    parser.add_argument(
        "path", type=Path, metavar="RUN-or-LOG", help="a run's folder, a JSONL or a CSV file with steps"
    )
    parser.add_argument("--metric", help="column to forecast (the mean reward)")
    parser.add_argument(
        "--at", type=float, metavar="SHARE", help="forecast from this share of the log, beside what came"
    )
    parser.add_argument(
        "--end", type=float, metavar="STEP", help="last step planned (the run's own; else twice the steps)"
    )
    parser.add_argument("--level", type=float, default=0.95, help="of the intervals (0.95)")
    parser.add_argument("--range", metavar="LOW,HIGH", help="lowest and highest value possible")
    parser.add_argument("--html", type=Path, metavar="FILE", help="a picture with bands, one self-contained page")
    parser.add_argument("--json", action="store_true", help="print JSON")
    known = parser.parse_args(arguments)
    from delphic.commands.forecast import run_forecast

    return run_forecast(known)


def backtest(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="delphic backtest",
        description="Forecast every run of a folder from 25, 50 and 75 % of its steps, and compare with what came.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="looked through for JSONL and CSV logs")
    parser.add_argument("--metric", help="column to forecast (the mean reward)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    known = parser.parse_args(arguments)
    from delphic.commands.forecast import run_backtest

    return run_backtest(known)


def reproduce(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="delphic reproduce",
        description="Run a paper's experiments and say of each claim what was measured and whether it holds. "
        "A study that was stopped goes on where it was.",
    )
    parser.add_argument(
        "study",
        metavar="STUDY",
        help="ustat: the gradient is a U-statistic (arXiv 2603.01162); dynamics: training is a damped oscillator (2606.30789); "
        "detection: what `delphic diagnose` finds",
    )
    parser.add_argument("--model", metavar="M", help="the errors of this model instead of the built-in one's")
    parser.add_argument(
        "--task", metavar="T", help="arithmetic, or a config.toml whose model, task and sampling are used"
    )
    parser.add_argument("--quick", action="store_true", help="minutes instead of an hour; too small for conclusions")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="for the report (runs/reproduce/STUDY)")
    parser.add_argument("--json", action="store_true", help="print report.json")
    known = parser.parse_args(arguments)
    from delphic.commands.reproduce import run_reproduce

    return run_reproduce(known)


COMMANDS = {
    "diagnose": diagnose,
    "watch": watch,
    "compare": compare,
    "stability": stability,
    "probe": probe,
    "forecast": forecast,
    "backtest": backtest,
    "plan": plan,
    "train": train,
    "convert": convert,
    "reproduce": reproduce,
    "objective": objective,
    "export": export,
    "eval": evaluate,
}


if __name__ == "__main__":
    sys.exit(main())
