"""What `delphic probe` does: a measured stiffness in the run's folder, and a few steps at a raised learning rate."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from delphic.commands import need_torch
from delphic.commands.stability import stability_report
from delphic.config import RunConfig, make_config
from delphic.dynamics.stability import Lag
from delphic.errors import UserError
from delphic.runs.measured import MEASURED
from delphic.training.lag import recurrence


def run_probe(options: argparse.Namespace) -> int:
    """Measures K and writes stability.json; then the response to a raised rate."""
    for name, least in (("prompts", 4), ("steps", 0)):
        if getattr(options, name) < least:
            raise UserError(f"probe: --{name} must be {least} or more, got {getattr(options, name)}")
    if options.completions is not None and options.completions < 2:
        raise UserError(f"probe: --completions must be 2 or more, got {options.completions}")
    if not options.factor > 1:
        raise UserError(f"probe: --factor must be above 1, got {options.factor:g}")
    need_torch("probe")
    from rich.console import Console

    from delphic.report.dynamics import print_probe
    from delphic.training.run_folder import write_json

    run, checkpoint, config = _locate(options.path, options.checkpoint)
    if not config.train.learning_rate > 0:
        raise UserError(f"probe: {run} has a learning rate of 0, so there is nothing to be unstable")
    console = Console(stderr=True)
    with console.status("loading") as status:
        result = probe(run, checkpoint, config, options, lambda text: status.update(text))
    write_json(run / MEASURED, result)
    if options.json:
        print(json.dumps(result, allow_nan=False))
    else:
        print_probe(result)
        print(f"\nwritten: {run}/{MEASURED}")
    return 0


def probe(run: Path, checkpoint: Path, config: RunConfig, options: argparse.Namespace, say: Any) -> dict[str, Any]:
    """The content of stability.json."""
    from delphic.training.probe import clip_factor, measure, step_response
    from delphic.training.run_folder import read_json

    lag = recurrence(config)
    lagged = lag.largest > 0
    size = options.completions or config.sampling.completions
    step = int(read_json(checkpoint / "state.json")["step"])
    look = measure(config, Path(), checkpoint, options.prompts, size, "delayed" if lagged else "total", say)
    clip = clip_factor([row for row in _rows(run) if row.get("step", 0) <= step], config)
    notes = []
    if clip is None:
        notes.append("no gradient norms were logged, so clipping is not counted")
    elif clip < 0.95:
        notes.append(f"gradient clipping leaves {clip:.2g} of an update, on average; K is that of the clipped update")
    if size != config.sampling.completions:
        notes.append(f"{size} completions a prompt, the run has {config.sampling.completions}: K depends on it")
    if not lagged:
        notes.append(
            "K is that of an update without lag; what-ifs with a lag take all of it as delayed, on the safe side"
        )
    factor = 1.0 if clip is None else clip
    found = look.stiffness
    result = {
        "step": step,
        "stiffness": found.value * factor,
        "low": found.low * factor,
        "high": found.high * factor,
        "confirmed": found.confirmed * factor,
        "certified": bool(found.certified),
        "part": "delayed" if lagged else "total",
        "units": "adam" if lag.averaged else "sgd",
        "prompts": found.prompts,
        "completions": size,
        "prompts_needed": found.prompts_needed,
        "reward": look.reward,
        "clip": clip,
        "products": found.products,
        "seconds": look.seconds,
        "learning_rate": config.train.learning_rate,
        "lag": {"interval": lag.interval, "offset": lag.offset, "momentum": lag.momentum, "averaged": lag.averaged},
        "limits": None,
        "response": None,
        "notes": notes,
    }
    result |= judge(result, lag)
    if options.steps >= 2:
        response, reward = step_response(config, Path(), checkpoint, look.direction, options.steps, options.factor, say)
        about = {"factor": options.factor, "steps": options.steps, "reward_change": asdict(reward)}
        result["response"] = {**about, **asdict(response)}
    return result


def judge(result: dict[str, Any], lag: Lag) -> dict[str, Any]:
    """Limits at both ends of the interval. A K that is too large gives limits that are too low: so the upper end certifies
    that the expected update is stable at a rate, even where K itself is not certified. Noise is another matter."""
    rate, ends = result["learning_rate"], {}
    for name in ("low", "high"):
        if result[name] > 0:
            ends[name] = stability_report(rate, replace(lag, stiffness=result[name]))
    limit = {name: None if name not in ends else ends[name]["exact_limit"] for name in ("low", "high")}
    margin = {name: None if x is None or not rate else x / rate for name, x in limit.items()}
    if not result["high"] > 0 or (margin["high"] is not None and margin["high"] > 1):
        verdict = "stable"
    elif margin["low"] is not None and margin["low"] < 1:
        verdict = "unstable"
    else:
        verdict = "cannot tell"
    return {"limits": ends.get("high"), "margin": margin["high"], "margin_at_low": margin["low"], "verdict": verdict}


def _locate(path: Path, which: str | None) -> tuple[Path, Path, RunConfig]:
    """(run folder, checkpoint folder, config) of a run or of one of its checkpoints."""
    from delphic.training.run_folder import find_checkpoint, is_run, read_json

    if is_run(path):
        run, checkpoint = path, find_checkpoint(path, which or "last")
    elif (path / "state.json").is_file() and is_run(path.resolve().parents[1]):
        if which is not None:
            raise UserError(f"probe: {path} is one checkpoint; --checkpoint chooses one of a run's")
        run, checkpoint = path.resolve().parents[1], path
    else:
        raise UserError(f"probe: {path} is neither a run's folder nor one of its checkpoints")
    saved = run / "config.json"
    return run, checkpoint, make_config(read_json(saved).get("config", {}), str(saved))


def _rows(run: Path) -> list[dict[str, float]]:
    try:
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]
    except (OSError, ValueError):
        return []
