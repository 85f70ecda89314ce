"""Does the best group size grow with the model and with the difficulty? Two sizes × two halves of the problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from delphic.config import ModelConfig
from delphic.reproduce.claims import Claim, Outcome, Part, Verdict, text
from delphic.reproduce.examine import Examined, examine, kept_or_made
from delphic.reproduce.runs import plain_config
from delphic.statistics.group_size import Pilot, estimate_constants
from delphic.statistics.interval import Interval

WIDTH, LAYERS = 64, 3
SHARE = 0.38  # of the built-in model's steps
SEED = 1000
UNKNOWN = Interval(float("nan"), float("nan"), float("nan"))  # of problems whose groups are all silent


def small_model(folder: Path, share: float, note: Callable[[str], None]) -> str:
    """A third of the built-in model's parameters, trained like it for a share of its steps; made once."""
    from delphic.reproduce.pretrain import STAGES, fit, make_model, write

    target = folder / f"model_{WIDTH}_{LAYERS}_{share:g}"
    if not target.exists():
        model = make_model(WIDTH, LAYERS, seed=0)
        for number, stage in enumerate(STAGES):
            fit(model, replace(stage, steps=max(1, round(share * stage.steps))), 192, number, note)
        write(model, target)
    return str(target)


def run_scaling(folder: Path, quick: bool, note: Callable[[str], None]) -> Outcome:
    problems, completions, others = (24, 8, 8) if quick else (240, 32, 32)
    models = {"small": small_model(folder, 0.04 if quick else SHARE, note), "built-in": "builtin"}
    rows: list[dict[str, Any]] = []
    stars: dict[tuple[str, str], Interval] = {}
    for name, path in models.items():
        note(f"{name} model")
        config = plain_config(8, 8, 1, SEED).model_copy(update={"model": ModelConfig(path=path, threads=1)})
        measure = partial(examine, config, Path(), problems, completions, others, note)
        seen = kept_or_made(folder / f"{name}_{problems}.npz", measure)
        for half, chosen in halves(seen).items():
            constants = estimate_constants(part_of(seen.pilot, chosen))
            stars[name, half] = constants.g_star
            rows.append(
                {
                    "model": name,
                    "half": half,
                    "problems": len(chosen),
                    "mean reward": float(seen.rewards[chosen].mean()),
                }
                | {"G*": text(constants.g_star), "c1": text(constants.c1, 0), "c3": text(constants.c3, 0)}
            )
    return Outcome(_claims(stars), {"G* by model size and difficulty": rows})


def halves(seen: Examined) -> dict[str, np.ndarray]:
    """Problem numbers of the easier and the harder half, by V from completions that the constants do not use."""
    order = np.argsort(-seen.value, kind="stable")
    middle = (len(order) + 1) // 2
    return {"easy": order[:middle], "hard": order[middle:]}


def part_of(pilot: Pilot, rows: np.ndarray) -> Pilot:
    """The pilot of some of its prompts."""
    return Pilot([pilot.prompts[i] for i in rows], pilot.cross[np.ix_(rows, rows)])


def grows(pairs: list[tuple[Interval, Interval]]) -> Verdict:
    """Whether G* is larger in the second of each pair: by intervals that do not overlap."""
    if any(second.high < first.low for first, second in pairs):
        return "does not hold"
    return "holds" if all(second.low > first.high for first, second in pairs) else "cannot tell"


def _claims(stars: dict[tuple[str, str], Interval]) -> list[Claim]:
    sizes, levels = ("small", "built-in"), ("easy", "hard")
    by_level = [(stars[size, "easy"], stars[size, "hard"]) for size in sizes]
    by_size = [(stars["small", level], stars["built-in", level]) for level in levels]

    def say(names: tuple[str, str], pairs: list[tuple[Interval, Interval]]) -> str:
        return "; ".join(f"{n}: {text(a)} → {text(b)}" for n, (a, b) in zip(names, pairs, strict=True))

    source = "arXiv 2603.01162"
    return [
        Claim("G* grows with difficulty", source, f"easy → hard half: {say(sizes, by_level)}", grows(by_level)),
        Claim(
            "G* grows with the model",
            source,
            f"161,472 → 482,016 parameters: {say(levels, by_size)}",
            grows(by_size),
        ),
    ]


SCALING = Part("scaling", "does G* grow with the model and the difficulty", run_scaling)
