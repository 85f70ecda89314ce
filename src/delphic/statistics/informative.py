"""Which groups carry a signal, and how many would by their difficulty alone."""

from __future__ import annotations

import numpy as np
from scipy.special import betaln

from delphic.objective.prepare import group_slots


def informative_chance(p: float | np.ndarray, group_size: int | np.ndarray) -> float | np.ndarray:
    """Chance that G completions of pass rate p are not all equal, 1 − p^G − (1−p)^G (theory section 1)."""
    return 1 - p**group_size - (1 - p) ** group_size


def silent_share(rewards: np.ndarray, groups: np.ndarray) -> float:
    """Share of groups whose finite rewards are all equal; NaN rewards do not count as different. NaN without groups."""
    shares = [np.unique(r).size <= 1 for r in finite_groups(rewards, groups)]
    return float(np.mean(shares)) if shares else float("nan")


def expected_silent_share(rewards: np.ndarray, groups: np.ndarray) -> float:
    """E_p[p^G + (1−p)^G] over the difficulty of the prompts, by `silent_share_of_hits`.

    Silence of whole groups does not enter, so a surplus of silent groups over this figure is not explained by difficulty.

    Returns: NaN unless rewards take exactly two values and some group has two completions.
    """
    members = [r for r in finite_groups(rewards, groups) if len(r) >= 2]
    levels = np.unique(np.concatenate(members)) if members else np.zeros(0)
    if len(levels) != 2:
        return float("nan")
    sizes = np.array([len(r) for r in members])
    hits = np.array([(r == levels[1]).sum() for r in members])
    return float(silent_share_of_hits(hits, sizes))


def silent_share_of_hits(hits: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """[...] the silent share that difficulty explains, from counts alone: hits [..., groups] of sizes [groups] ≥ 2 completions.

    The first two moments of p over prompts (unbiased: single completions and distinct pairs) fix a Beta distribution, under
    which the expectation is a ratio of Beta functions. Derived; Beta is an assumption. NaN where all or none hit.
    """
    mean = (hits / sizes).mean(-1)
    variance = (hits * (hits - 1) / (sizes * (sizes - 1))).mean(-1) - mean**2
    alike = np.asarray(1 - np.asarray(informative_chance(mean[..., None], sizes))).mean(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        concentration = np.asarray(mean * (1 - mean) / variance - 1)[..., None]
        a, b = mean[..., None] * concentration, (1 - mean)[..., None] * concentration
        spread = (np.exp(betaln(a + sizes, b) - betaln(a, b)) + np.exp(betaln(a, b + sizes) - betaln(a, b))).mean(-1)
    out = np.where(variance <= 0, alike, np.where(concentration[..., 0] <= 0, 1.0, spread))
    return np.where((mean > 0) & (mean < 1), out, np.nan)


def finite_groups(rewards: np.ndarray, groups: np.ndarray) -> list[np.ndarray]:
    """Finite rewards of each group that has any."""
    out = [rewards[slots[slots >= 0]] for slots in group_slots(groups)]
    return [r[np.isfinite(r)] for r in out if np.isfinite(r).any()]
