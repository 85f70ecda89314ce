"""Where a reward curve is heading: laws averaged, an interval that has been tested, and a refusal where the data do not say.

The forecast is a set of draws: a law by its AICc weight, a shape from its posterior, R₀ and R∞ given both, and how far runs
stray from every law (INFLATE and DRIFT, chosen once so that intervals cover on simulated runs that follow none; `docs/forecast.md`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from delphic.dynamics.fitting import (
    Curve,
    LawFit,
    Level,
    Noise,
    draw_levels,
    fit_all,
    fit_jump,
    fit_level,
    make_curve,
    shape_interval,
)
from delphic.statistics.interval import Interval

DRAWS = 4000
DRIFT = 0.035  # standard deviation of what else may come over as many steps again, as a share of the rise so far
INFLATE = 0.35  # standard deviation of what a run adds to the change that the laws foresee, as a share of it
FEWEST = 12  # points below which nothing is fitted
WIDEST = 0.6  # width of an answer's interval, of the reward's own scale


@dataclass(frozen=True)
class Forecast:
    """`final`: mean of the last tenth of the steps up to the planned end. `plateau`, `steps_to_95_percent` (of the way from
    start to plateau): None where not determined.

    gain: what the laws still foresee between the last point and the last tenth, without the noise and the drift in `final`.
    decay: λ per step of a single exponential; None where the curve shows no approach to a plateau (the interval spans more
    than a factor of ten, or a wandering level describes it as well). jump: the step at which two levels meet, where no
    gradual law is as good. band: t [b], and low, middle, high [b] of the curve itself.
    """

    laws: list[dict[str, Any]]
    chosen: str | None
    plateau: Interval | None
    final: Interval | None
    steps_to_95_percent: Interval | None
    level: float
    advice: str
    refused: bool
    reason: str | None
    jump: float | None = None
    band: dict[str, np.ndarray] | None = None
    gain: Interval | None = None
    decay: Interval | None = None


def likely_limits(values: np.ndarray) -> tuple[float, float] | None:
    """0 and 1 where all rewards lie between them; None where nothing is known."""
    return (0.0, 1.0) if values.min() >= 0 and values.max() <= 1 else None


def forecast(
    steps: np.ndarray,
    values: np.ndarray,
    end: float,
    *,
    level: float = 0.95,
    limits: tuple[float, float] | None = None,
    counts: np.ndarray | None = None,
    inflate: float = INFLATE,
    seed: int = 0,
) -> Forecast:
    """Forecast a curve.

    Args:
        steps, values: [n]; values finite. end: the last step planned. limits: lowest and highest reward possible.
        counts: [n] completions behind each value.
    """
    distinct = len(np.unique(steps))
    if distinct < FEWEST:
        return _refuse(f"{distinct} steps are too few; {FEWEST} are needed", level)
    if np.ptp(values) == 0:
        return _refuse(f"the reward is {values[0]:g} at every step", level)
    curve = make_curve(steps, values, counts)
    low, high = limits if limits is not None else (-np.inf, np.inf)
    prior = (0.5 * (low + high), 0.5 * (high - low)) if limits else (float(curve.y.mean()), 3 * curve.scale)
    fits, noise = fit_all(curve, prior)
    wander = fit_level(curve)
    laws, weights = _rank(fits, wander)
    last = end - float(np.min(steps)) + 1
    draws = _draw(curve, fits, wander, weights, noise, last, inflate, (low, high), np.random.default_rng(seed))
    origin = float(np.min(steps)) - 1
    answer = replace(_answer(curve, laws, draws, level, limits, origin), decay=_decay(fits, wander, level))
    jump = fit_jump(curve, noise)
    if jump is None or jump.aicc > min(f.aicc for f in fits if not _abrupt(f, curve)) - 6:
        return answer
    text = f"the reward jumped from {jump.before:.3g} to {jump.after:.3g} at step {jump.t + origin:g}, as a change of data, reward or settings does"
    return replace(answer, jump=jump.t + origin, advice=f"{text}; {answer.advice}" if answer.advice else text)


def _refuse(
    reason: str, level: float, laws: Sequence[dict[str, Any]] = (), band: dict[str, np.ndarray] | None = None
) -> Forecast:
    chosen = laws[0]["name"] if laws else None
    return Forecast(list(laws), chosen, None, None, None, level, "", True, reason, band=band)


def _abrupt(fit: LawFit, curve: Curve) -> bool:
    """A logistic that goes from a tenth to nine tenths (4.4 widths) within three points: a jump by another name."""
    return fit.law.name == "logistic" and 4.4 * fit.parameters["width"] < 3 * float(np.median(np.diff(curve.t)))


def _rank(fits: list[LawFit], wander: Level) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Rows of the report, best AICc first, and [laws + 1] weights exp(−ΔAICc/2) in the order of `fits`, then the level."""
    aicc = np.array([f.aicc for f in fits] + [wander.aicc])
    rows = [(f.law.name, f.parameters, f.r2, f.aicc) for f in fits] + [
        ("last_value", wander.parameters, wander.r2, wander.aicc)
    ]
    weights = np.exp(-0.5 * (aicc - aicc.min()))
    weights /= weights.sum()
    table = [
        {"name": name, "parameters": parameters, "r2": r2, "aicc": value, "weight": float(w)}
        for (name, parameters, r2, value), w in zip(rows, weights, strict=True)
    ]
    return sorted(table, key=lambda row: row["aicc"]), weights


@dataclass(frozen=True)
class _Draws:
    """final, plateau, reach [d] (NaN: never, or no plateau); band [d, b] at t [b]; now [d] level at the last point, and
    gain [d] from there to the last tenth."""

    final: np.ndarray
    plateau: np.ndarray
    reach: np.ndarray
    t: np.ndarray
    band: np.ndarray
    now: np.ndarray
    gain: np.ndarray


@dataclass(frozen=True)
class _Times:
    """Where every draw is looked at: over the last tenth, along the band, at the last point, and far out."""

    ahead: np.ndarray
    line: np.ndarray
    now: float
    far: np.ndarray

    @property
    def all(self) -> np.ndarray:
        return np.concatenate([self.ahead, self.line, [self.now], self.far])


def _law_draws(
    fit: LawFit, count: int, times: _Times, limits: tuple[float, float], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(path [count, t], plateau [count], t at 95 % of the way [count], infinite beyond what is looked at): a shape by its
    weight, R₀ and R∞ given it, kept where both are possible rewards."""
    which, starts, ends = draw_levels(fit, 4 * count, rng)
    inside = (starts >= limits[0]) & (ends <= limits[1]) & (ends >= limits[0]) & (starts <= limits[1])
    chosen = np.flatnonzero(inside)[:count] if inside.sum() >= count else np.arange(count)
    starts, ends = starts[chosen], ends[chosen]
    distinct, back = np.unique(which[chosen], return_inverse=True)
    phi = fit.law.phi(times.all, fit.shapes[distinct])[back]
    below = phi[:, -len(times.far) :] < 0.95
    late = np.maximum.accumulate(below[:, ::-1], axis=1)[:, ::-1].sum(1)  # from there on never below
    reach = np.where(late < len(times.far), times.far[np.minimum(late, len(times.far) - 1)], np.inf)
    return starts[:, None] + (ends - starts)[:, None] * phi, ends, reach


def _wander_draws(wander: Level, count: int, times: _Times, usual: float, rng: np.random.Generator) -> np.ndarray:
    """[count, t] paths of a level that goes on wandering from the last point."""
    which = rng.choice(len(wander.level), size=count, p=np.exp(wander.log_weight))
    base = wander.level[which] + np.sqrt(wander.variance[which]) * rng.standard_normal(count)
    step = np.sqrt(wander.drift[which] / usual)
    t = times.all
    order = np.sort(t)
    apart = np.diff(np.maximum(order, times.now), prepend=times.now)
    walk = np.cumsum(rng.standard_normal((count, len(t))) * np.sqrt(apart), axis=1)
    return base[:, None] + step[:, None] * walk[:, np.searchsorted(order, t)]


def _draw(
    curve: Curve,
    fits: list[LawFit],
    wander: Level,
    weights: np.ndarray,
    noise: Noise,
    last: float,
    inflate: float,
    limits: tuple[float, float],
    rng: np.random.Generator,
) -> _Draws:
    now, usual = float(curve.t[-1]), float(np.median(np.diff(curve.t)))
    line = np.linspace(curve.t[0], max(last, now), 61)
    times = _Times(np.linspace(0.9 * last, last, 8), line, now, np.geomspace(1, 50 * last, 240))
    counts = rng.multinomial(DRAWS, weights)
    drawn = [_law_draws(fit, count, times, limits, rng) for fit, count in zip(fits, counts[:-1], strict=True) if count]
    if counts[-1]:
        nothing = np.full(counts[-1], np.nan)
        drawn.append((_wander_draws(wander, counts[-1], times, usual, rng), nothing, nothing))
    path, plateau, reach = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    k = len(times.ahead) + len(line)
    level_now = path[:, k]
    stray = inflate * rng.standard_normal(len(path))
    points = max(0.1 * last / usual, 1.0)
    rho = noise.correlation
    mean_noise = np.sqrt(noise.variance / points * (1 + rho) / (1 - rho))
    final = path[:, : len(times.ahead)].mean(1)
    gain = (1 + stray) * (final - level_now)
    final = level_now + gain + mean_noise * rng.standard_normal(len(path))
    plateau = plateau + stray * (plateau - level_now)
    band = path[:, len(times.ahead) : k]
    band = band + stray[:, None] * (band - level_now[:, None]) * (line > now)
    # what no law foresees, such as hard prompts that wake late; `gain` is what the laws foresee, and is left without it
    drift = DRIFT * curve.scale * rng.standard_normal(len(path))
    final = final + drift * max(0.95 * last - now, 0) / now
    plateau = plateau + drift * max(last - now, 0) / now
    band = band + drift[:, None] * np.maximum(line - now, 0) / now
    final, plateau, band = (np.clip(x, *limits) for x in (final, plateau, band))
    return _Draws(final, plateau, reach, line, band, level_now, gain)


def _interval(draws: np.ndarray, level: float) -> Interval:
    low, middle, high = np.quantile(draws, [(1 - level) / 2, 0.5, (1 + level) / 2])
    return Interval(float(middle), float(low), float(high))


def _answer(
    curve: Curve,
    laws: list[dict[str, Any]],
    draws: _Draws,
    level: float,
    limits: tuple[float, float] | None,
    origin: float,
) -> Forecast:
    final = _interval(draws.final, level)
    reference = limits[1] - limits[0] if limits is not None else curve.scale
    low, middle, high = np.quantile(draws.band, [(1 - level) / 2, 0.5, (1 + level) / 2], axis=0)
    band = {"t": draws.t + origin, "low": low, "middle": middle, "high": high}
    known = np.isfinite(draws.plateau)
    plateau = reach = None
    if known.mean() > 0.5:
        plateau = _interval(draws.plateau[known], level)
        if plateau.high - plateau.low > WIDEST * reference:
            plateau = None
        finite = draws.reach[known]
        if plateau is not None and np.isfinite(finite).mean() > (1 + level) / 2:
            found = _interval(finite, level)
            reach = Interval(found.value + origin, found.low + origin, found.high + origin)
    if final.high - final.low > WIDEST * reference:
        reason = f"the curve so far allows anything from {final.low:.3g} to {final.high:.3g} at the end"
        return _refuse(reason, level, laws, band)
    now = _interval(draws.now, level)
    advice, gain = _advice(now, final), _interval(draws.gain, level)
    return Forecast(laws, laws[0]["name"], plateau, final, reach, level, advice, False, None, band=band, gain=gain)


def _advice(now: Interval, final: Interval) -> str:
    if final.low > now.high:
        return f"still rising: expect {final.value:.3g} at the end, now {now.value:.3g}"
    if final.high < now.low:
        return f"falling: expect {final.value:.3g} at the end, now {now.value:.3g}"
    return f"little more to come: {final.value - now.value:+.2g} ({final.low - now.value:+.2g} to {final.high - now.value:+.2g})"


def _decay(fits: list[LawFit], wander: Level, level: float) -> Interval | None:
    fit = next(f for f in fits if f.law.name == "exponential")
    if fit.aicc > wander.aicc:
        return None
    rate = shape_interval(fit, "rate", level)
    return rate if rate.high < 10 * rate.low else None
