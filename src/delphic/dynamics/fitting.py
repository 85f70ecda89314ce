"""What a reward curve says of each law: a posterior over a grid of shapes, with R₀, R∞ and the noise worked out exactly.

The grid takes the place of many starts: no local optimum is missed, and a plateau that the data do not determine shows as a
wide posterior. Noise is AR(1); steps may be missing, repeated or hold unequal numbers of completions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import least_squares

from delphic.dynamics.laws import LAWS, Law
from delphic.statistics.interval import Interval

NOISELESS = 1e-10  # least variance of the noise, of the curve's: below, sums of squares lose their digits
BINS = 120  # points a fit looks at; a longer curve is averaged into as many
COARSE, POINTS = (
    30,
    400,
)  # grid points that must share the weight for the grid to do; else so many points around the best


@dataclass(frozen=True)
class Curve:
    """A curve ready to be fitted: t [n] ascending (1 at the first step), y [n], w [n] weights of mean 1 (counts)."""

    t: np.ndarray
    y: np.ndarray
    w: np.ndarray
    span: float

    @cached_property
    def scale(self) -> float:
        """How far the values reach, outliers aside."""
        return float(np.quantile(self.y, 0.98) - np.quantile(self.y, 0.02))

    @cached_property
    def spacing(self) -> np.ndarray:
        """[n − 1] distances in units of the usual one."""
        gaps = np.diff(self.t)
        return gaps / np.median(gaps)


def make_curve(steps: np.ndarray, values: np.ndarray, counts: np.ndarray | None = None, bins: int = BINS) -> Curve:
    """Mean over equal stretches of steps (repeated ones fall together), weighted by counts.

    Args:
        steps: [n] in any order; values: [n] finite; counts: [n] completions behind each value, 1 where not known.
    """
    order = np.argsort(steps, kind="stable")
    s, y = np.asarray(steps, dtype=np.float64)[order], np.asarray(values, dtype=np.float64)[order]
    c = np.ones(len(s)) if counts is None else np.asarray(counts, dtype=np.float64)[order]
    t = s - s[0] + 1
    distinct = np.unique(t)
    if len(distinct) > bins:
        edges = np.linspace(t[0], t[-1], bins + 1)
        place = np.clip(np.searchsorted(edges, t, side="right") - 1, 0, bins - 1)
    else:
        place = np.searchsorted(distinct, t)
    total = np.bincount(place, c)
    full = total > 0
    mean = np.bincount(place, c * y)[full] / total[full]
    when = np.bincount(place, c * t)[full] / total[full]
    weight = total[full] / total[full].mean()
    return Curve(when, mean, weight, float(t[-1]))


@dataclass(frozen=True)
class LawFit:
    """A law's posterior over shapes: its grid's, or points around the best one where the data are sharper than the grid.
    shapes [g, k]; log_weight [g] (normalised within the law); mean [g, 2] and cov [g, 2, 2] of (R₀, R∞ − R₀); aicc, r2 and
    `parameters` of the best single fit."""

    law: Law
    shapes: np.ndarray
    log_weight: np.ndarray
    mean: np.ndarray
    cov: np.ndarray
    aicc: float
    r2: float
    parameters: dict[str, float]


def whiten(rows: np.ndarray, curve: Curve, correlation: float) -> np.ndarray:
    """[..., n] rows with the AR(1) part taken out and every entry scaled to the same variance."""
    root = np.sqrt(curve.w)
    scaled = rows * root
    rho = correlation**curve.spacing
    out = np.array(scaled, dtype=np.float64)
    out[..., 1:] = (scaled[..., 1:] - rho * scaled[..., :-1]) / np.sqrt(1 - rho**2)
    return out


@dataclass(frozen=True)
class Noise:
    """variance of a usual point around the curve, correlation of neighbours."""

    variance: float
    correlation: float


def estimate_noise(curve: Curve, residual: np.ndarray, parameters: int) -> Noise:
    """From the residuals of a fit. The lag-1 correlation is raised by what a fit of so many parameters takes away."""
    r = residual * np.sqrt(curve.w)
    n = len(r)
    raw = float((r[1:] * r[:-1]).sum() / max((r**2).sum(), 1e-300))
    correlation = float(np.clip(raw + (parameters + 3 * raw) / n, 0.0, 0.95))
    white = whiten(residual, curve, correlation)
    return Noise(float((white**2).sum() / max(n - parameters, 1)), correlation)


def fit_law(
    law: Law, curve: Curve, noise: Noise, prior: tuple[float, float], phi_grid: np.ndarray | None = None
) -> LawFit:
    """Posterior of a law on its grid.

    Args:
        prior: (middle, width) of the normal prior of R₀ and of R∞: where rewards may lie at all.
        phi_grid: [g, n] the law's φ on its grid, where it is known already.
    """
    shapes = law.grid(curve.span)
    phi_grid = law.phi(curve.t, shapes) if phi_grid is None else phi_grid
    mean, cov, log_weight = _posterior(phi_grid, curve, noise, prior)
    polished, sse, uncertainty = _polish(law, shapes[np.argmax(log_weight)], curve, noise)
    if (
        uncertainty is not None and not _free(law) and _effective(log_weight) < COARSE
    ):  # the mixture's grid is fine enough
        near, log_density = _around(law, polished, uncertainty)
        if len(near) > POINTS // 4:  # else the best shape is at a bound, and the grid is all there is
            shapes = near
            mean, cov, weight = _posterior(law.phi(curve.t, shapes), curve, noise, prior)
            log_weight = weight - log_density
    phi = law.phi(curve.t, polished[None])[0]
    coefficients = _coefficients(phi, curve, noise)
    residual = curve.y - coefficients[0] - coefficients[1] * phi
    n, count = len(curve.y), len(law.parameters) + 4  # R₀, R∞, variance and correlation of the noise
    aicc = akaike(_deviance(sse, curve, noise), n, count)
    spread = float((curve.w * (curve.y - np.average(curve.y, weights=curve.w)) ** 2).sum())
    parameters = {"start": float(coefficients[0]), "plateau": float(coefficients.sum())}
    parameters |= {name: float(value) for name, value in zip(law.parameters, polished, strict=True)}
    r2 = 1 - float((curve.w * residual**2).sum()) / spread if spread > 0 else 0.0
    normalised = log_weight - np.logaddexp.reduce(log_weight)
    return LawFit(law, shapes, normalised, mean, cov, float(aicc), r2, parameters)


def _deviance(sse: float, curve: Curve, noise: Noise) -> float:
    """−2 log L of whitened residuals, their variance as it fits best; without what all laws share."""
    n = len(curve.y)
    return n * float(np.log(max(sse, 1e-300) / n)) + float(np.log1p(-(noise.correlation ** (2 * curve.spacing))).sum())


def akaike(deviance: float, n: int, parameters: int) -> float:
    """AICc = −2 log L + 2k + 2k(k+1)/(n−k−1), up to a constant of the data."""
    return deviance + 2 * parameters + 2 * parameters * (parameters + 1) / max(n - parameters - 1, 1)


@dataclass(frozen=True)
class Level:
    """A level that wanders: y_t = level_t + noise, level_{t+1} = level_t + step. Posterior over the ratio of their variances.

    level, variance [g]: of the level at the last point; drift [g]: variance of a step of usual length; log_weight [g].
    """

    level: np.ndarray
    variance: np.ndarray
    drift: np.ndarray
    log_weight: np.ndarray
    aicc: float
    r2: float
    parameters: dict[str, float]


def fit_level(curve: Curve) -> Level:
    """Kalman filter on a grid of drift-to-noise ratios; the noise variance is that of the innovations."""
    ratio = np.concatenate([[0.0], np.geomspace(1e-4, 10, 24)])
    n = len(curve.y)
    level, p = np.full(len(ratio), curve.y[0]), np.full(len(ratio), 1 / curve.w[0])
    sse, logs = np.zeros(len(ratio)), np.zeros(len(ratio))
    for i in range(1, n):
        p = p + ratio * curve.spacing[i - 1]
        f = p + 1 / curve.w[i]
        innovation = curve.y[i] - level
        sse += innovation**2 / f
        logs += np.log(f)
        gain = p / f
        level, p = level + gain * innovation, p * (1 - gain)
    s2 = np.maximum(sse / (n - 1), 1e-300)
    deviance = n * np.log(s2) + logs + float(np.log(curve.w).sum())
    best = int(np.argmin(deviance))
    spread = float(np.average((curve.y - np.average(curve.y, weights=curve.w)) ** 2, weights=curve.w))
    weight = -0.5 * (deviance - deviance.min())
    return Level(
        level,
        p * s2,
        ratio * s2,
        weight - np.logaddexp.reduce(weight),
        akaike(float(deviance[best]), n, 3),
        1 - float(s2[best]) / spread if spread > 0 else 0.0,
        {"plateau": float(level[best]), "smoothing": float(gain[best])},
    )


def _posterior(
    phi: np.ndarray, curve: Curve, noise: Noise, prior: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean [g, 2], cov [g, 2, 2] of R₀ and R∞ − R₀; log evidence [g]) for φ [g, n], the noise as given."""
    x0 = whiten(np.ones(len(curve.y)), curve, noise.correlation)
    x1, y = whiten(phi, curve, noise.correlation), whiten(curve.y - prior[0], curve, noise.correlation)
    # prior: R₀ and R∞ independent N(middle, width²), so that (R₀, R∞ − R₀) has precision [[2, 1], [1, 1]]/width²
    p = 1 / prior[1] ** 2
    s2 = noise.variance
    a, b, d = x0 @ x0 / s2 + 2 * p, x1 @ x0 / s2 + p, (x1 * x1).sum(1) / s2 + p
    u, v = x0 @ y / s2, x1 @ y / s2
    det = a * d - b * b
    with np.errstate(divide="ignore", invalid="ignore"):
        m0, m1 = (d * u - b * v) / det, (a * v - b * u) / det
        cov = np.stack([np.stack([d, -b], -1), np.stack([-b, np.full_like(d, a)], -1)], -2) / det[:, None, None]
        log_evidence = 0.5 * (2 * np.log(p) - np.log(det)) + 0.5 * (m0 * u + m1 * v)
    log_evidence = np.where(
        np.isfinite(log_evidence), log_evidence, -np.inf
    )  # det = 0 in rounding: a shape that is flat here
    return np.stack([m0 + prior[0], m1], -1), cov, log_evidence


def _coefficients(phi: np.ndarray, curve: Curve, noise: Noise) -> np.ndarray:
    x = np.stack([whiten(np.ones(len(phi)), curve, noise.correlation), whiten(phi, curve, noise.correlation)], 1)
    return np.linalg.lstsq(x, whiten(curve.y, curve, noise.correlation), rcond=None)[0]


def _free(law: Law) -> int:
    """The first shape number that is free; k of the mixture is one of a few."""
    return 1 if law.name == "difficulty_mixture" else 0


def _polish(law: Law, start: np.ndarray, curve: Curve, noise: Noise) -> tuple[np.ndarray, float, np.ndarray | None]:
    """(shape [k], sum of squares, covariance of its free numbers) by least squares from the best point of the grid; no
    covariance where the data do not determine the shape."""
    fixed = _free(law)
    y = whiten(curve.y, curve, noise.correlation)
    scale = np.where(np.abs(start[fixed:]) > 0, np.abs(start[fixed:]), 1.0)

    def residual(z: np.ndarray) -> np.ndarray:
        phi = law.phi(curve.t, np.concatenate([start[:fixed], z * scale])[None])[0]
        c = _coefficients(phi, curve, noise)
        return y - whiten(c[0] + c[1] * phi, curve, noise.correlation)

    low, high = np.array(law.low[fixed:]) / scale, np.array(law.high[fixed:]) / scale
    found = least_squares(
        residual, np.clip(start[fixed:] / scale, low + 1e-12, high - 1e-12), bounds=(low, high), max_nfev=30
    )
    information = found.jac.T @ found.jac / np.outer(scale, scale)
    spread = None
    if np.isfinite(information).all() and np.linalg.cond(information) < 1e12:
        spread = noise.variance * np.linalg.inv(information)
    return np.concatenate([start[:fixed], found.x * scale]), float(2 * found.cost), spread


def _effective(log_weight: np.ndarray) -> float:
    """How many points share the weight, (Σw)²/Σw²."""
    return float(np.exp(2 * np.logaddexp.reduce(log_weight) - np.logaddexp.reduce(2 * log_weight)))


def _around(law: Law, best: np.ndarray, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(shapes [POINTS, k], log density of the draw up to a constant): Student's t with 4 degrees of freedom around the best
    shape, always the same draws; what the law does not allow is left out."""
    size = len(spread)
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal((POINTS, size)) / np.sqrt(rng.chisquare(4, (POINTS, 1)) / 4)
    shapes = best + drawn @ np.linalg.cholesky(spread).T
    kept = ((shapes > np.array(law.low)) & (shapes < np.array(law.high))).all(1)
    return shapes[kept], -0.5 * (4 + size) * np.log1p((drawn[kept] ** 2).sum(1) / 4)


def draw_levels(fit: LawFit, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(number of the shape, R₀, R∞), [count] each, from the posterior."""
    which = rng.choice(len(fit.shapes), size=count, p=np.exp(fit.log_weight))
    c = fit.mean[which] + np.einsum("dij,dj->di", np.linalg.cholesky(fit.cov[which]), rng.standard_normal((count, 2)))
    return which, c[:, 0], c.sum(1)


def shape_interval(fit: LawFit, name: str, level: float = 0.95) -> Interval:
    """A shape number's interval from the posterior, its value that of the best fit; between points weights go over evenly
    (in the logarithm, where all are positive)."""
    values, place = np.unique(fit.shapes[:, fit.law.parameters.index(name)], return_inverse=True)
    positive = bool(values[0] > 0)
    x = np.log(values) if positive else values
    edges = np.concatenate([x[:1], 0.5 * (x[1:] + x[:-1]), x[-1:]])
    below = np.concatenate([[0.0], np.cumsum(np.bincount(place, np.exp(fit.log_weight)))])
    low, high = np.interp([(1 - level) / 2, (1 + level) / 2], below, edges)
    ends = np.exp([low, high]) if positive else (low, high)
    return Interval(fit.parameters[name], float(ends[0]), float(ends[1]))


@dataclass(frozen=True)
class Jump:
    """Two levels and nothing between: `step` (t of the first point after it), `before`, `after`, and how well that fits."""

    t: float
    before: float
    after: float
    aicc: float


def fit_jump(curve: Curve, noise: Noise, least: int = 4) -> Jump | None:
    """The best split into two levels of at least so many points each; None where one level does as well (AICc within 10, as
    the best of many splits always gains something)."""
    n = len(curve.y)
    if n < 2 * least:
        return None
    best, at = np.inf, least
    for k in range(least, n - least + 1):
        phi = (np.arange(n) >= k).astype(np.float64)
        c = _coefficients(phi, curve, noise)
        sse = float((whiten(curve.y - c[0] - c[1] * phi, curve, noise.correlation) ** 2).sum())
        if sse < best:
            best, at, levels = sse, k, c
    aicc = akaike(_deviance(best, curve, noise), n, 5)
    one = float((whiten(curve.y - _coefficients(np.zeros(n), curve, noise)[0], curve, noise.correlation) ** 2).sum())
    if aicc > akaike(_deviance(one, curve, noise), n, 3) - 10:
        return None
    return Jump(float(curve.t[at]), float(levels[0]), float(levels.sum()), aicc)


def fit_all(curve: Curve, prior: tuple[float, float]) -> tuple[list[LawFit], Noise]:
    """Every law under the noise of the best: fitted twice, first with independent noise of the differences' size."""
    floor = max(1e-12, NOISELESS * float(np.var(curve.y)))
    rough = Noise(max(float(np.var(np.diff(curve.y)) / 2), floor), 0.0)
    best, residual, least = LAWS[1], curve.y - curve.y.mean(), np.inf
    grids = [law.phi(curve.t, law.grid(curve.span)) for law in LAWS]
    for law, phi in zip(LAWS, grids, strict=True):
        mean, _, log_weight = _posterior(phi, curve, rough, prior)
        top = int(np.argmax(log_weight))
        r = curve.y - mean[top, 0] - mean[top, 1] * phi[top]
        if float((curve.w * r**2).sum()) < least:
            best, residual, least = law, r, float((curve.w * r**2).sum())
    noise = estimate_noise(curve, residual, len(best.parameters) + 2)
    noise = Noise(max(noise.variance, floor), noise.correlation)
    return [fit_law(law, curve, noise, prior, phi) for law, phi in zip(LAWS, grids, strict=True)], noise
