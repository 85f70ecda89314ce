"""The error of five estimators of the gradient, by formula and by experiment, along a training run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from delphic.config import ModelConfig, RunConfig, make_config
from delphic.reproduce.claims import Outcome, Part
from delphic.reproduce.error_report import report
from delphic.reproduce.examine import Examined, examine, kept_or_made
from delphic.training.loop import Mute, train
from delphic.training.run_folder import find_checkpoint


@dataclass(frozen=True)
class Scale:
    """problems × completions that are scored, `others` for V and g; steps: where along the training run."""

    problems: int
    completions: int
    others: int
    steps: tuple[int, ...]


FULL = Scale(500, 32, 64, (0, 60, 240))
QUICK = Scale(30, 8, 16, (0, 8))
OWN = Scale(40, 16, 16, (0,))  # a user's model, as it is
OWN_QUICK = Scale(4, 4, 4, (0,))


def errors_part(own: RunConfig | None = None, folder: Path = Path()) -> Part:
    """The part on the built-in model along a run of the demo's config, or on a user's model and task as they are.

    folder: the user's config file's.
    """

    def run(place: Path, quick: bool, note: Callable[[str], None]) -> Outcome:
        def look(name: str, config: RunConfig, folder: Path, scale: Scale) -> Examined:
            measure = partial(examine, config, folder, scale.problems, scale.completions, scale.others, note)
            note(f"model {name}: {scale.problems} problems × {scale.completions} completions")
            return kept_or_made(place / f"{name.replace(' ', '_')}_{scale.problems}.npz", measure)

        if own is not None:
            return report({"as it is": look("as it is", own, folder, OWN_QUICK if quick else OWN)})
        scale = QUICK if quick else FULL
        seen = {}
        for step, model in strengths(place, scale.steps, note).items():
            config = demo_config(scale.steps[-1], "", quick)
            config = config.model_copy(update={"model": ModelConfig(path=model, threads=1)})
            seen[f"step {step}"] = look(f"step {step}", config, Path(), scale)
        return report(seen)

    return Part("errors", "the error of vanilla, critic, leave-one-out, group mean and oracle", run)


def demo_config(steps: int, output: str, quick: bool) -> RunConfig:
    """examples/demo.toml, of any length; checkpoints wherever a study may look."""
    content: dict[str, Any] = {
        "output": output or "unused",
        "objective": "grpo",
        "model": {"threads": 1},
        "sampling": {"prompts": 4 if quick else 16, "completions": 16, "max_new_tokens": 6},
        "train": {"steps": steps, "learning_rate": 1e-4, "schedule": "linear", "estimate": False, "reference_every": 0},
        "evaluation": {"every": 0, "problems": 20 if quick else 200, "samples": 4},
        "checkpoint": {"every": min(60, steps), "keep": 4},
    }
    return make_config(content, "reproduce")


def strengths(folder: Path, steps: Sequence[int], note: Callable[[str], None]) -> dict[int, str]:
    """The model folder at each of the steps of one training run, which goes on where it was."""
    last = max(steps)
    if last == 0:
        return {0: "builtin"}
    output = folder / f"run_{last}"
    if not (output / "checkpoints" / f"step_{last:06d}").exists():
        note(f"training run of {last} steps")
        train(demo_config(last, str(output), last < 60), output, Path(), (output / "config.json").exists(), Mute())
    return {step: str(find_checkpoint(output, str(step))) if step else "builtin" for step in steps}


ERRORS = errors_part()
