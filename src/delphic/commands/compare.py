"""Whether two runs, or two sets of runs, differ."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from delphic.errors import UserError
from delphic.runs.read import read_run
from delphic.statistics.compare import (
    Level,
    difference,
    late_level,
    noise_bound,
    noise_ratio,
    power,
    seed_bound,
    seeds_needed,
)
from delphic.statistics.interval import Interval

SEEDS = (2, 3, 5, 8)


def run_compare(options: argparse.Namespace) -> int:
    """Levels of the last tenth, the difference with what is known of seeds, rates and noise."""
    one, two = _sides(options)
    if options.seed_spread is not None and not options.seed_spread >= 0:
        raise UserError(f"compare: --seed-spread must not be negative, got {options.seed_spread:g}")
    if options.group_sizes is not None and min(options.group_sizes) < 1:
        raise UserError(
            f"compare: --group-sizes must be at least 1, got {options.group_sizes[0]} and {options.group_sizes[1]}"
        )
    sides = [[_curve(path) for path in side] for side in (one, two)]
    levels = [[late_level(values) for values, _, _ in side] for side in sides]
    means = [np.array([level.value for level in side]) for side in levels]
    delta = float(means[1].mean() - means[0].mean())
    spread, source, free = _spread(means, options.seed_spread)
    result: dict[str, Any] = {
        "sides": [
            [_side(path, level) for path, level in zip(paths, ls, strict=True)]
            for paths, ls in zip((one, two), levels, strict=True)
        ],
        "difference": delta,
        "interval": _interval(difference(means[0], means[1])) if min(map(len, means)) > 1 else None,
        "seed_spread": spread,
        "seed_spread_from": source,
        "seed_bound": None if spread is None else seed_bound(spread, free, (len(means[0]), len(means[1]))),
        "seeds_needed": None if spread is None or delta == 0 else seeds_needed(delta, spread),
        "power": None if spread in (None, 0) else power(delta, float(spread or 0), max(2, min(map(len, means)))),
        "spread_that_would_show": None if delta == 0 else {str(n): _largest_spread(delta, n) for n in SEEDS},
        "noise": _noise(sides, options.group_sizes),
        "rates": [_rate(values, steps) for side in sides for values, steps, _ in side[:1]],
    }
    result["verdict"] = _verdict(result, levels)
    if options.json:
        print(json.dumps(result, allow_nan=False))
    else:
        from delphic.report.compare import print_compare

        print_compare(result)
    return 0


def _sides(options: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    if options.against:
        return options.runs, options.against
    if len(options.runs) != 2:
        raise UserError(f"compare: two runs, or several on both sides of --against; got {len(options.runs)}")
    return options.runs[:1], options.runs[1:]


def _curve(path: Path) -> tuple[np.ndarray, np.ndarray, int | None]:
    """(rewards, steps, completions per prompt where the log says so)"""
    log = read_run(path)
    steps, values = log.series("reward_mean")
    if len(values) < 20:
        raise UserError(f"{path}: {len(values)} steps are too few to compare; 20 are needed")
    size = log.settings.get("group_size")
    return values, steps, None if size is None else int(size)


def _side(path: Path, level: Level) -> dict[str, Any]:
    return {"run": str(path), "level": level.value, "error": level.error, "steps": level.steps}


def _interval(found: Interval) -> dict[str, float]:
    return {"value": found.value, "low": found.low, "high": found.high}


def _spread(means: list[np.ndarray], given: float | None) -> tuple[float | None, str | None, float]:
    """Standard deviation over seeds, where it comes from, and its degrees of freedom."""
    if given is not None:
        return given, "--seed-spread", float("inf")
    several = [m for m in means if len(m) > 1]
    if not several:
        return None, None, 0.0
    free = sum(len(m) - 1 for m in several)
    squares = sum(float(((m - m.mean()) ** 2).sum()) for m in several)
    return float(np.sqrt(squares / free)), f"{free + len(several)} runs", float(free)


def _largest_spread(delta: float, seeds: int) -> float:
    """The spread over seeds up to which so many a side see this difference with 80 % power."""
    low, high = 1e-6 * abs(delta), 10 * abs(delta)
    for _ in range(60):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if power(delta, middle, seeds) >= 0.8 else (low, middle)
    return low


def _noise(
    sides: list[list[tuple[np.ndarray, np.ndarray, int | None]]], sizes: tuple[int, int] | None
) -> dict[str, Any]:
    """The ratio of step noise, beside the ratio of group sizes that would explain it."""
    found = noise_ratio(sides[0][0][0], sides[1][0][0])
    known = sizes or (sides[0][0][2], sides[1][0][2])
    expected = None if not all(known) else float(known[0]) / float(known[1])  # type: ignore[arg-type]
    ends = [x if np.isfinite(x) else None for x in (found.value, found.low, found.high)]
    return {"ratio": ends[0], "low": ends[1], "high": ends[2], "expected_from_group_size": expected}


def _rate(values: np.ndarray, steps: np.ndarray) -> dict[str, Any] | None:
    """Steps to 95 % of the way to the plateau, where the curve tells."""
    from delphic.diagnosis.sequential import thin
    from delphic.dynamics.forecast import forecast, likely_limits

    t, y, counts = thin(steps, values, 300)
    found = forecast(t, y, float(2 * steps[-1] - steps[0]), limits=likely_limits(values), counts=counts)
    return None if found.steps_to_95_percent is None else _interval(found.steps_to_95_percent)


def _verdict(result: dict[str, Any], levels: list[list[Level]]) -> str:
    """One sentence that says what can be said."""
    delta, interval = result["difference"], result["interval"]
    if interval is not None:
        sure = interval["low"] > 0 or interval["high"] < 0
        if sure:
            return f"they differ by {delta:+.3g} ({interval['low']:+.3g} to {interval['high']:+.3g})"
        needed = result["seeds_needed"]
        more = f"{needed} seeds a side would show it" if needed else "no number of seeds that anyone runs would show it"
        return f"{delta:+.3g} is within the noise of seeds ({interval['low']:+.3g} to {interval['high']:+.3g}); {more} (80 % power)"
    spread, needed = result["seed_spread"], result["seeds_needed"]
    if spread is not None:
        bound = result["seed_bound"]
        word = "more than seeds differ" if abs(delta) > bound else "within what seeds differ"
        more = f"; {needed} seeds a side would show it (80 % power)" if needed else ""
        return f"{delta:+.3g} is {word} (± {bound:.3g}, from {result['seed_spread_from']}){more}"
    steps = noise_bound(levels[0][0], levels[1][0])
    inside = "no more than the steps' own noise" if abs(delta) < steps else "more than the steps' own noise"
    return (
        f"{delta:+.3g} is {inside} (± {steps:.2g}); one seed a side says nothing of how much seeds differ: give --seed-spread, or "
        "several runs a side (--against)"
    )
