"""A language model driven into oscillation and divergence, at the learning rate that its measured curvature foretells.

arXiv 2606.30789 leaves a neural test to later work. K and its direction are measured where the runs start (`neural_world.py`),
`dynamics.stability` gives the limit of η, and η is raised until swings along that direction grow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from delphic.dynamics.schedule import source_step
from delphic.dynamics.stability import Lag, exact_limit, oscillation_onset
from delphic.reproduce.claims import Claim, Outcome, Part
from delphic.reproduce.neural_world import Measured, Row, World, followed, measured, warm
from delphic.reproduce.runs import kept_or_run

YARDSTICK = 0.25  # of the limit: the run that shows how large the steps' own noise is
STEP = math.sqrt(2)  # between the learning rates that are tried
LOWEST, HIGHEST = STEP**-4, STEP**5
GROWN = 5.0  # swings over noise
WITHIN = 1.5
MEASURED, QUICK = (512, 4), (32, 4)  # prompts and completions for K


def swing(path: Sequence[float] | np.ndarray, beat: int) -> np.ndarray:
    """What happens from one sync to the next (`beat` steps); infinite from where numbers stopped being finite."""
    at_syncs = np.array([0.0, *path[beat - 1 :: beat]])
    out = np.abs(np.diff(np.where(np.isfinite(at_syncs), at_syncs, np.nan)))
    return np.where(np.isfinite(out), out, np.inf)


def amplification(path: list[float], yardstick: list[float], multiple: float, beat: int) -> float:
    """How much larger the swings of the last half are than the steps' noise alone makes them, which grows with the rate."""
    moves, quiet = swing(path, beat), swing(yardstick, beat)
    return float(np.sqrt((moves[len(moves) // 2 :] ** 2).mean() / (quiet**2).mean()) * YARDSTICK / multiple)


def first_growth(amplified: Callable[[float], float]) -> tuple[float, float]:
    """(the largest rate tried at which swings do not grow, the smallest at which they do) in limits, one step apart; 0 and ∞
    beyond the range."""
    multiple = 1.0
    if amplified(multiple) >= GROWN:
        while multiple > LOWEST * 1.01:
            multiple /= STEP
            if amplified(multiple) < GROWN:
                return multiple, multiple * STEP
        return 0.0, multiple
    while multiple < HIGHEST * 0.99:
        multiple *= STEP
        if amplified(multiple) >= GROWN:
            return multiple / STEP, multiple
    return multiple, math.inf


def recurrence_paths(lag: Lag, multiple: float, steps: int, replicas: int = 300) -> np.ndarray:
    """[replicas, steps] the recurrence itself from 0 at a multiple of its limit, under noise of the same size in every step."""
    rate = multiple * exact_limit(lag) * (1 - lag.momentum if lag.averaged else 1.0)
    noise = np.random.default_rng(0).normal(size=(steps, replicas))
    e = np.zeros((steps + 1, replicas))
    for t in range(1, steps + 1):
        before = e[t - 2] if t > 1 else e[0]
        behaviour = e[source_step(t, lag.interval, lag.offset)]
        e[t] = e[t - 1] + lag.momentum * (e[t - 1] - before) + rate * (noise[t - 1] - lag.stiffness * behaviour)
    return e[1:].T


def seen_from(lag: Lag, steps: int, beat: int) -> float:
    """The multiple of its limit at which the recurrence itself passes the same test in the same number of steps."""

    def squares(multiple: float) -> np.ndarray:
        return np.mean([swing(path, beat) ** 2 for path in recurrence_paths(lag, multiple, steps)], 0)

    quiet = squares(YARDSTICK).mean()
    for multiple in np.geomspace(0.7, 4, 60).tolist():
        late = squares(multiple)
        if math.sqrt(late[len(late) // 2 :].mean() / quiet) * YARDSTICK / multiple >= GROWN:
            return multiple
    return math.inf


def search(
    world: World, found: Measured, interval: int, seed: int, steps: int, kept: Path, note: Callable[[str], None]
) -> tuple[Row, list[Row]]:
    """(the learning rate at which swings begin to grow, beside the limit; what each run did)."""
    lag = world.lag(interval, found.stiffness.confirmed)
    limit, onset = exact_limit(lag), oscillation_onset(lag)
    beat = 1 if world.weighted else interval
    runs: dict[float, Row] = {}

    def run(multiple: float) -> Row:
        config = world.config(limit * multiple, interval, seed, steps)
        key = f"neural {world.start is not None} {config.fingerprint()} {found.stiffness.confirmed:.6g}"
        runs[multiple] = kept_or_run(
            kept, key, lambda: followed(world, found.along, limit * multiple, interval, seed, steps)
        )
        return runs[multiple]

    quiet = run(YARDSTICK)

    def amplified(multiple: float) -> float:
        return amplification(run(multiple)["path"], quiet["path"], multiple, beat)

    low, high = first_growth(amplified)
    middle = math.sqrt(low * high) if low > 0 and math.isfinite(high) else math.nan
    K, foretold = found.stiffness, seen_from(lag, steps, beat)
    named = {"optimiser": world.optimiser, "importance weights": world.weighted, "m": interval}
    row = {
        **named,
        "seed": seed,
        "K": f"{K.confirmed:.4g} ({K.low:.4g} to {K.high:.4g})",
        "certified": bool(K.certified),
        "limit of η": limit,
        "oscillates from, limits": onset / limit,
        "recurrence seen to grow from, limits": foretold,
        "grows between": f"{low:.2f} and {high:.2f} limits".replace("inf", "∞"),
        "found / limit": None if math.isnan(middle) else middle,
        "found / recurrence": None if math.isnan(middle) else middle / foretold,
    }
    note(f"{world.optimiser}, m = {interval}, seed {seed}{', weighted' * world.weighted}: grows {row['grows between']}")
    behaviour = [
        {
            **named,
            "seed": seed,
            "η in limits": multiple,
            "swings over noise": amplification(got["path"], quiet["path"], multiple, beat),
            "one swing on the next": turn(got["path"], beat),
            "reward, first steps": float(np.mean(got["reward"][:8])),
            "reward, last steps": float(np.mean(got["reward"][-8:])),
            "at syncs": [0.0, *got["path"][beat - 1 :: beat]],
        }
        for multiple, got in sorted(runs.items())
    ]
    return row, behaviour


def turn(path: list[float], beat: int) -> float | None:
    """Correlation of a move between syncs with the next one: −1 where every move is taken back, about 0 on a straight way with
    noise."""
    at_syncs = np.array([0.0, *path[beat - 1 :: beat]])
    if len(at_syncs) < 4 or not np.isfinite(at_syncs).all() or not at_syncs.any():
        return None
    moves = np.diff(at_syncs)
    return float(moves[1:] @ moves[:-1] / np.sqrt((moves[1:] ** 2).sum() * (moves[:-1] ** 2).sum()))


def settings(quick: bool) -> Iterator[tuple[str, bool, int, int, int]]:
    """(optimiser, weighted, m, seed, steps)"""
    if quick:
        yield "sgd", False, 4, 0, 24
        return
    for optimiser, weighted, (interval, steps), seed in product(
        ("sgd", "adamw"), (False, True), ((1, 48), (8, 96), (32, 192)), range(3)
    ):
        yield optimiser, weighted, interval, seed, steps


def onset_claim(rows: list[Row], weighted: bool, quick: bool) -> Claim:
    """Over the runs whose K is certified, against the rate at which the recurrence passes the same test in as many steps."""
    mine = [row for row in rows if row["importance weights"] == weighted]
    sure = [row for row in mine if row["certified"]]

    def close(column: str) -> int:
        return sum(1 / WITHIN <= row[column] <= WITHIN for row in sure if row[column])

    ratios = [row["found / recurrence"] for row in sure if row["found / recurrence"]]
    text = f"{close('found / recurrence')} of {len(sure)} runs whose K is certified"
    if ratios:
        text += f", found / recurrence {min(ratios):.2f} to {max(ratios):.2f}"
    text += f"; {close('found / limit')} within as much of the limit itself"
    if len(ratios) < len(sure):
        text += f"; {len(sure) - len(ratios)} not found between {LOWEST:.2g} and {HIGHEST:.2g} limits"
    if len(sure) < len(mine):
        text += f"; cannot certify K in {len(mine) - len(sure)} more"
    told = not quick and bool(sure)
    return Claim(
        f"built-in model, {'with full' if weighted else 'without'} importance weights: swings along the stiffest direction begin "
        f"to grow within {WITHIN} × of the learning rate at which the recurrence with the measured K does",
        "derived",
        text,
        "cannot tell" if not told else "holds" if close("found / recurrence") == len(sure) else "does not hold",
    )


def run(folder: Path, quick: bool, note: Callable[[str], None]) -> Outcome:
    """About an hour on one core; quick: a minute."""
    rows, behaviour = [], []
    for optimiser, weighted, interval, seed, steps in settings(quick):
        world = warm(optimiser, weighted, folder)
        found = measured(world, world.share(interval), folder, QUICK if quick else MEASURED)
        row, paths = search(world, found, interval, seed, steps, folder / "runs.jsonl", note)
        rows.append(row)
        behaviour += paths
    claims = [onset_claim(rows, weighted, quick) for weighted in (False, True) if not (quick and weighted)]
    table = [{k: v for k, v in row.items() if k != "at syncs"} for row in behaviour]
    return Outcome(claims, {ONSETS: rows, "what the runs did": table, WAY: way_rows(behaviour)})


def way_rows(behaviour: list[Row]) -> list[Row]:
    """The runs of the first setting with a lag and without weights, sync by sync."""
    lagged = [row for row in behaviour if row["m"] > 1 and not row["importance weights"]]
    first = {key: lagged[0][key] for key in ("optimiser", "m", "seed")}
    return [
        {"η in limits": row["η in limits"], "sync": sync, "position": position if math.isfinite(position) else None}
        for row in lagged
        if all(row[key] == value for key, value in first.items())
        for sync, position in enumerate(row["at syncs"])
    ]


ONSETS = "where swings begin to grow, beside the limit from the measured K"
WAY = "the way along the stiffest direction from sync to sync (sgd, no weights, the shortest hold, seed 0)"
PART = Part("neural", "a language model made to oscillate and diverge, beside what its curvature foretells", run)
