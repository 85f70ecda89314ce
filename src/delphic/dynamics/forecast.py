"""Where a reward curve is heading: laws averaged, an interval that has been tested, and a refusal where the data do not say.

The forecast is a set of draws: a law by its AICc weight, a shape from its posterior, R₀ and R∞ given both, and how far runs
stray from every law (INFLATE and DRIFT, chosen once so that intervals cover on simulated runs that follow none; `docs/forecast.md`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from delphic.dynamics.fitting import Curve, LawFit, Level, Noise, fit_all, fit_jump, fit_level, make_curve

DRAWS = 4000
DRIFT = 0.035  # standard deviation of what else may come over as many steps again, as a share of the rise so far
INFLATE = 0.35  # standard deviation of what a run adds to the change that the laws foresee, as a share of it
FEWEST = 12  # points below which nothing is fitted
WIDEST = 0.6  # width of an answer's interval, of the reward's own scale


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """`final`: mean of the last tenth of the steps up to the planned end. `plateau`, `steps_to_95_percent` (of the way from
    start to plateau): None where not determined. gain: what the level itself still changes by from the last point to the last
    tenth, without the noise that `final` holds. decay: see `decay_rate`. jump: the step at which two levels meet, where no law is better. band: t [b], and low, middle, high [b] of the curve itself."""

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


def refuse(reason: str, level: float, laws: list[dict[str, Any]] | None = None) -> Forecast:
    return Forecast(laws or [], None, None, None, None, level, "", True, reason)


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
        return refuse(f"{distinct} steps are too few; {FEWEST} are needed", level)
    if np.ptp(values) == 0:
        return refuse(f"the reward is {values[0]:g} at every step", level)
    curve = make_curve(steps, values, counts)
    scale = float(np.quantile(curve.y, 0.98) - np.quantile(curve.y, 0.02))
    low, high = limits if limits is not None else (-np.inf, np.inf)
    prior = (0.5 * (low + high), 0.5 * (high - low)) if limits is not None else (float(curve.y.mean()), 3 * scale)
    fits, noise = fit_all(curve, prior)
    wander = fit_level(curve)
    laws, weights = _rank(fits, wander)
    last = end - float(np.min(steps)) + 1
    draws = _draw(curve, fits, wander, weights, noise, last, inflate, (low, high), np.random.default_rng(seed))
    origin = float(np.min(steps)) - 1
    answer = replace(_answer(curve, laws, draws, level, limits, scale, origin), decay=_decay(fits, wander, level))
    jump = fit_jump(curve, noise)
    if jump is None or jump.aicc > min(f.aicc for f in fits if not _abrupt(f, curve)) - 6:
        return answer
    text = f"the reward jumped from {jump.before:.3g} to {jump.after:.3g} at step {jump.t + origin:g}, as a change of data, reward or settings does"
    return replace(answer, jump=jump.t + origin, advice=f"{text}; {answer.advice}" if answer.advice else text)


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
    now = curve.t[-1]
    ahead = np.linspace(0.9 * last, last, 8)
    line = np.linspace(curve.t[0], max(last, now), 61)
    long = np.geomspace(1, 50 * last, 240)
    t = np.concatenate([ahead, line, [now], long])
    counts = rng.multinomial(DRAWS, weights)
    paths, plateaus, starts, reaches = [], [], [], []
    for fit, count in zip(fits, counts[:-1], strict=True):
        if not count:
            continue
        which = rng.choice(len(fit.shapes), size=4 * count, p=np.exp(fit.log_weight))
        c = fit.mean[which] + np.einsum(
            "dij,dj->di", np.linalg.cholesky(fit.cov[which]), rng.standard_normal((4 * count, 2))
        )
        ends = c.sum(1)
        inside = (c[:, 0] >= limits[0]) & (ends <= limits[1]) & (ends >= limits[0]) & (c[:, 0] <= limits[1])
        chosen = np.flatnonzero(inside)[:count] if inside.sum() >= count else np.arange(count)
        c, ends = c[chosen], ends[chosen]
        distinct, back = np.unique(which[chosen], return_inverse=True)
        phi = fit.law.phi(t, fit.shapes[distinct])[back]
        phi_far = phi[:, -len(long) :]
        path = c[:, :1] + c[:, 1:] * phi
        late = np.maximum.accumulate((phi_far < 0.95)[:, ::-1], axis=1)[:, ::-1].sum(1)
        reaches.append(np.where(late < len(long), long[np.minimum(late, len(long) - 1)], np.inf))
        paths.append(path)
        plateaus.append(ends)
        starts.append(c[:, 0])
    if counts[-1]:
        which = rng.choice(len(wander.level), size=counts[-1], p=np.exp(wander.log_weight))
        usual = float(np.median(np.diff(curve.t)))
        base = wander.level[which] + np.sqrt(wander.variance[which]) * rng.standard_normal(counts[-1])
        step = np.sqrt(wander.drift[which] / usual)
        order = np.sort(t)
        walk = np.cumsum(
            rng.standard_normal((counts[-1], len(t))) * np.sqrt(np.diff(np.maximum(order, now), prepend=now)), axis=1
        )
        path = base[:, None] + step[:, None] * walk[:, np.searchsorted(order, t)]
        paths.append(path)
        plateaus.append(np.full(counts[-1], np.nan))
        reaches.append(np.full(counts[-1], np.nan))
    path, plateau, reach = np.concatenate(paths), np.concatenate(plateaus), np.concatenate(reaches)
    k = len(ahead) + len(line)
    level_now = path[:, k]
    stray = inflate * rng.standard_normal(len(path))
    points = max(0.1 * last / float(np.median(np.diff(curve.t))), 1.0)
    rho = noise.correlation
    mean_noise = np.sqrt(noise.variance / points * (1 + rho) / (1 - rho))
    final = path[:, : len(ahead)].mean(1)
    gain = (1 + stray) * (final - level_now)
    final = level_now + gain + mean_noise * rng.standard_normal(len(path))
    plateau = plateau + stray * (plateau - level_now)
    band = path[:, len(ahead) : k]
    band = band + stray[:, None] * (band - level_now[:, None]) * (line > now)
    # what no law foresees, such as hard prompts that wake late; `gain` is what the laws foresee, and is left without it
    drift = DRIFT * float(np.quantile(curve.y, 0.98) - np.quantile(curve.y, 0.02)) * rng.standard_normal(len(path))
    final = final + drift * max(0.95 * last - now, 0) / now
    plateau = plateau + drift * max(last - now, 0) / now
    band = band + drift[:, None] * np.maximum(line - now, 0) / now
    clip = lambda x: np.clip(x, *limits)  # noqa: E731
    return _Draws(clip(final), clip(plateau), reach, line, clip(band), level_now, gain)


def _interval(draws: np.ndarray, level: float) -> Interval:
    low, middle, high = np.quantile(draws, [(1 - level) / 2, 0.5, (1 + level) / 2])
    return Interval(float(middle), float(low), float(high))


def _answer(
    curve: Curve,
    laws: list[dict[str, Any]],
    draws: _Draws,
    level: float,
    limits: tuple[float, float] | None,
    scale: float,
    origin: float,
) -> Forecast:
    final = _interval(draws.final, level)
    reference = limits[1] - limits[0] if limits is not None else scale
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
        return Forecast(
            laws,
            laws[0]["name"],
            None,
            None,
            None,
            level,
            "",
            True,
            f"the curve so far allows anything from {final.low:.3g} to {final.high:.3g} at the end",
            band=band,
        )
    now = _interval(draws.now, level)
    advice, gain = _advice(now, final), _interval(draws.gain, level)
    return Forecast(laws, laws[0]["name"], plateau, final, reach, level, advice, False, None, band=band, gain=gain)


def _advice(now: Interval, final: Interval) -> str:
    if final.low > now.high:
        return f"still rising: expect {final.value:.3g} at the end, now {now.value:.3g}"
    if final.high < now.low:
        return f"falling: expect {final.value:.3g} at the end, now {now.value:.3g}"
    return f"little more to come: {final.value - now.value:+.2g} ({final.low - now.value:+.2g} to {final.high - now.value:+.2g})"


def decay_rate(steps: np.ndarray, values: np.ndarray, level: float = 0.95) -> Interval | None:
    """λ per step of a single exponential, with its interval; None where the curve shows no approach to a plateau (the
    interval spans more than a factor of ten, or a wandering level describes it as well)."""
    if len(np.unique(steps)) < FEWEST or np.ptp(values) == 0:
        return None
    curve = make_curve(steps, values)
    scale = float(np.quantile(curve.y, 0.98) - np.quantile(curve.y, 0.02))
    fits, _ = fit_all(curve, (float(curve.y.mean()), 3 * scale))
    return _decay(fits, fit_level(curve), level)


def _decay(fits: list[LawFit], wander: Level, level: float) -> Interval | None:
    fit = next(f for f in fits if f.law.name == "exponential")
    if fit.aicc > wander.aicc:
        return None
    rates, weight = np.log(fit.shapes[:, 0]), np.exp(fit.log_weight)
    edges = np.concatenate([rates[:1], 0.5 * (rates[1:] + rates[:-1]), rates[-1:]])
    low, high = np.exp(np.interp([(1 - level) / 2, (1 + level) / 2], np.concatenate([[0], np.cumsum(weight)]), edges))
    return Interval(fit.parameters["rate"], float(low), float(high)) if high < 10 * low else None
