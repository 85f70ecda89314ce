"""How many completions per prompt: the three constants of a pilot, the best group size, and how sure that is.

At a fixed budget N = B·G the error is (c₁ + c₂/G + c₃/(G(G−1)))/B, so N·MSE = c₁G + c₂ + c₃/(G−1) and the best group
size is G* = 1 + √(c₃/c₁) (theory section 1, exact; the paper's upper-bound form is one less).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from delphic.statistics.error import ErrorMoments, error_parts, prompt_error
from delphic.statistics.interval import Interval
from delphic.statistics.ustatistic import PromptMoments

FEW, WIDE = 16, 4.0  # prompts below which, and ratio of G*'s ends above which, no number is recommended
SIZES = np.array([2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256])


@dataclass(frozen=True)
class Pilot:
    """B prompts × G₀ completions, measured: moments of each prompt, and ĝ_b · ĝ_b′ of the leave-one-out gradients.

    cross: [B, B], of which only numbers off the diagonal count (exact, or estimated from sketches).
    """

    prompts: Sequence[PromptMoments]
    cross: np.ndarray

    def column(self, name: str) -> np.ndarray:
        return np.array([getattr(p, name) for p in self.prompts])


def error_moments(pilot: Pilot, counts: np.ndarray | None = None) -> ErrorMoments:
    """Unbiased estimates of the moments over prompts; NaN where the prompts have too few completions. Only `best` is a
    plug-in (a ratio at each prompt): it makes the best prompt-only baseline look better than it is.

    Args:
        counts: [B] how often each prompt counts (a bootstrap sample); a prompt is never paired with itself.
    """
    n = np.ones(len(pilot.prompts)) if counts is None else counts.astype(np.float64)
    total = n.sum()
    pairs = n[:, None] * n[None, :]
    np.fill_diagonal(pairs, 0.0)
    mean = float((pairs * pilot.cross).sum() / pairs.sum()) if pairs.sum() > 0 else float("nan")

    def average(values: np.ndarray) -> float:
        return float((n * values).sum() / total)

    gradient = average(pilot.column("gradient"))
    score, linear = pilot.column("score"), pilot.column("linear")
    with np.errstate(divide="ignore", invalid="ignore"):
        saved = np.where(score > 0, linear**2 / score, 0.0)
    return ErrorMoments(
        between=gradient - mean,
        gradient=gradient,
        mean=mean,
        spread=average(pilot.column("spread")),
        product=average(pilot.column("product")),
        square=average(pilot.column("square")),
        best=average(saved),
    )


def best_group_size(c1: float, c3: float) -> float:
    """G* = 1 + √(c₃/c₁); infinite where prompts do not differ (c₁ ≤ 0: completions cost nothing in variety)."""
    if not c3 > 0:
        return float("nan")
    return 1 + float(np.sqrt(c3 / c1)) if c1 > 0 else float("inf")


def relative_error(constants: tuple[float, float, float], sizes: np.ndarray = SIZES) -> np.ndarray:
    """N·MSE of the leave-one-out estimator at a fixed budget, over group sizes."""
    return sizes * prompt_error(constants, sizes)


def cost_aware_group_size(constants: tuple[float, float, float], prompt_cost: float, completion_cost: float) -> int:
    """The G that minimises error × cost, (c₁ + c₂/G + c₃/(G(G−1)))·(a + bG), among whole numbers up to 4,096."""
    sizes = np.arange(2, 4097, dtype=np.float64)
    return int(sizes[np.argmin(prompt_error(constants, sizes) * (prompt_cost + completion_cost * sizes))])


def flat_range(constants: tuple[float, float, float], loss: float = 0.02) -> tuple[int, int]:
    """Smallest and largest whole G whose error at a fixed budget is within `loss` of the best whole G's."""
    sizes = np.arange(2, 4097, dtype=np.float64)
    error = relative_error(constants, sizes)
    good = sizes[error <= (1 + loss) * error.min()]
    return int(good[0]), int(good[-1])


def critical_batch(constants: tuple[float, float, float], size: int, gradient2: float) -> float:
    """Prompts at which noise and signal are equal: (c₁ + c₂/G + c₃/(G(G−1)))/‖g‖² (McCandlish et al. 2018)."""
    return float(prompt_error(constants, size)) / gradient2 if gradient2 > 0 else float("inf")


def noise_split(constants: tuple[float, float, float], size: int) -> dict[str, float]:
    """Shares of the error at group size G: between prompts, the oracle's own noise, the baseline's."""
    parts = [float(part) for part in error_parts(constants, size)]
    names = ("between_prompts", "oracle", "baseline")
    return {name: part / sum(parts) for name, part in zip(names, parts, strict=True)}


def allocation(oracle: np.ndarray, budget: int, least: int = 2) -> np.ndarray:
    """[B] completions per prompt that minimise the within-prompt error for a total budget (Neyman's form: in proportion
    to the root of the oracle part), at least `least` each.

    Args:
        oracle: [B] E[‖S‖²(Z−V)²] − ‖g(x)‖² of each prompt (c₂ without the mean over prompts).

    Raises:
        ValueError: the budget does not reach.
    """
    count = len(oracle)
    if budget < least * count:
        raise ValueError(f"{count} prompts need at least {least * count} completions, the budget is {budget}")
    root = np.sqrt(np.maximum(oracle, 0.0))
    out = np.full(count, float(least))
    free = np.ones(count, dtype=bool)
    while True:  # prompts whose share would be below the least keep it; the others divide what is left
        left = budget - least * (~free).sum()
        share = left * root / root[free].sum() if root[free].sum() > 0 else np.full(count, left / free.sum())
        low = free & (share < least)
        if not low.any():
            out[free] = share[free]
            break
        free &= ~low
        if not free.any():
            break
    whole = np.floor(out).astype(int)
    rest = np.argsort(-(out - whole), kind="stable")[: budget - whole.sum()]
    whole[rest] += 1
    return whole


@dataclass(frozen=True)
class Constants:
    """c₁, c₂, c₃ and G* with intervals over prompts; G* is infinite where c₁ ≤ 0."""

    c1: Interval
    c2: Interval
    c3: Interval
    g_star: Interval


def jackknife(value: float, without: np.ndarray) -> Interval:
    """95 % interval of a statistic from its values without each unit in turn [B] (Student's t on B − 1 degrees)."""
    count = len(without)
    error = np.sqrt((count - 1) / count * ((without - without.mean()) ** 2).sum())
    half = float(stdtrit(count - 1, 0.975) * error)
    return Interval(value, value - half, value + half)


def estimate_constants(pilot: Pilot) -> Constants:
    """The three constants and G*, unbiased, with jackknife intervals over prompts (the independent unit).

    G*'s interval is that of c₁/c₃, which is never infinite, mapped through G* = 1 + (c₁/c₃)^(−1/2).

    Raises:
        ValueError: fewer than three prompts, or completions too few for the constants (four a prompt).
    """
    return constants_of(pilot.column("gradient"), pilot.column("spread"), pilot.column("product"), pilot.cross)


def constants_of(gradient: np.ndarray, spread: np.ndarray, product: np.ndarray, cross: np.ndarray) -> Constants:
    """`estimate_constants` from columns [B] of `PromptMoments` and `Pilot.cross` [B, B]."""
    count = len(gradient)
    if count < 3:
        raise ValueError(f"{count} prompts give no interval; three are needed at least")
    # leaving a prompt out of a mean over prompts or pairs of prompts has a closed form
    rows = cross.sum(1) - np.diag(cross)
    means = [v.mean() for v in (gradient, spread, product)] + [rows.sum() / (count * (count - 1))]
    without = [(v.sum() - v) / (count - 1) for v in (gradient, spread, product)]
    without.append((rows.sum() - 2 * rows) / ((count - 1) * (count - 2)))

    def constants(gradient: np.ndarray, spread: np.ndarray, product: np.ndarray, mean: np.ndarray) -> np.ndarray:
        return np.array([gradient - mean, spread - gradient, product + gradient])

    whole, left_out = constants(*means), constants(*without)
    if not np.isfinite(whole).all():
        raise ValueError("c₁, c₂ and c₃ need four completions of every prompt")
    c1, c2, c3 = (jackknife(float(whole[k]), left_out[k]) for k in range(3))
    ratio = jackknife(float(whole[0] / whole[2]), left_out[0] / left_out[2])
    sizes = [best_group_size(r, 1.0) for r in (ratio.value, ratio.high, ratio.low)]
    return Constants(c1, c2, c3, Interval(*sizes))


@dataclass(frozen=True)
class Recommendation:
    """completions: G to set. low, high: the range of G that loses less than 2 %."""

    completions: int
    low: int
    high: int


def recommend(constants: Constants, prompts: int) -> Recommendation | None:
    """The power of two in the flat range that is nearest to G* (on a log scale), or the whole number nearest to it where the
    range holds none; None where the pilot is too small or G*'s interval too wide to say.

    Args:
        prompts: how many the pilot had.
    """
    star = constants.g_star
    if prompts < FEW or not np.isfinite(star.low) or not star.high <= WIDE * star.low:
        return None
    low, high = flat_range((max(constants.c1.value, 0.0), constants.c2.value, constants.c3.value))
    powers = [2**k for k in range(1, 13) if low <= 2**k <= high]
    best = min(powers, key=lambda g: abs(np.log(g / star.value))) if powers else max(2, round(star.value))
    return Recommendation(best, low, high)
