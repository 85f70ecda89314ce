"""How good forecasts are: each curve cut at a share of its steps, and its end compared with what was foretold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from delphic.dynamics.fitting import make_curve
from delphic.dynamics.forecast import Forecast, forecast
from delphic.dynamics.laws import LAWS
from delphic.statistics.interval import share


@dataclass(frozen=True)
class Trial:
    """One curve cut at one share. Errors are distances to the mean of the curve's last tenth; NaN where refused."""

    name: str
    pool: str
    at: float
    actual: float
    forecast: Forecast
    error: float
    last_value_error: float
    exponential_error: float
    covered: bool | None


def last_value(steps: np.ndarray, values: np.ndarray) -> float:
    """Mean over the last tenth of what was seen: the plainest forecast."""
    return float(values[steps > steps[-1] - 0.1 * (steps[-1] - steps[0] + 1)].mean())


def exponential(steps: np.ndarray, values: np.ndarray, end: float) -> float:
    """A single exponential with offset, least squares, read off at the middle of the last tenth."""
    curve = make_curve(steps, values)
    law = next(law for law in LAWS if law.name == "exponential")
    shapes = law.grid(curve.span)
    phi = law.phi(curve.t, shapes)
    best, least = float(values.mean()), np.inf
    at = law.phi(np.array([0.95 * (end - steps[0] + 1)]), shapes)[:, 0]
    for row, late in zip(phi, at, strict=True):
        x = np.stack([np.ones_like(row), row], 1)
        c, _, _, _ = np.linalg.lstsq(x, curve.y, rcond=None)
        sse = float(((curve.y - x @ c) ** 2).sum())
        if sse < least:
            best, least = float(c[0] + c[1] * late), sse
    return best


def trial(
    name: str, pool: str, steps: np.ndarray, values: np.ndarray, at: float, limits: tuple[float, float] | None = None
) -> Trial:
    """Cut a whole curve (steps ascending) at a share of its steps."""
    end = float(steps[-1])
    seen = steps <= steps[0] + at * (end - steps[0])
    actual = last_value(steps, values)
    found = forecast(steps[seen], values[seen], end, limits=limits)
    final = found.final
    return Trial(
        name,
        pool,
        at,
        actual,
        found,
        float("nan") if final is None else abs(final.value - actual),
        abs(last_value(steps[seen], values[seen]) - actual),
        abs(exponential(steps[seen], values[seen], end) - actual),
        None if final is None else bool(final.low <= actual <= final.high),
    )


def summarise(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """A row a share: medians over pools (a pool counts once: the median of its own), baselines on the answered curves alone,
    and the coverage with its Clopper-Pearson 95 % interval over curves."""
    out = []
    for at in sorted({t.at for t in trials}):
        part = [t for t in trials if t.at == at]
        answered = [t for t in part if t.covered is not None]
        row: dict[str, Any] = {"at": at, "runs": len(part), "answered": len(answered)}
        for key, name in (
            ("median_error", "error"),
            ("median_error_last_value", "last_value_error"),
            ("median_error_exponential", "exponential_error"),
        ):
            pools = defaultdict(list)
            for t in answered:
                pools[t.pool].append(getattr(t, name))
            row[key] = float(np.median([np.median(v) for v in pools.values()])) if pools else None
        hits, n = sum(bool(t.covered) for t in answered), len(answered)
        row |= {"coverage": None, "coverage_low": None, "coverage_high": None}
        if n:
            covered = share(hits, n)
            row |= {"coverage": covered.value, "coverage_low": covered.low, "coverage_high": covered.high}
        out.append(row)
    return out
