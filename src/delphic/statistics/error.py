"""Mean squared error of policy-gradient estimators as a function of prompts B and completions G (theory section 1).

Everything is a sum of a between-prompt part over B and a within-prompt part over B and G; only the latter depends on
the baseline. The formulas are exact for every G >= 2 for the plain score-function gradient with independent prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ESTIMATORS = ("vanilla", "loo", "self_inclusive", "oracle", "critic", "best_baseline")


@dataclass(frozen=True)
class ErrorMoments:
    """Moments over prompts x; V, g of each prompt are those of the policy that samples.

    between: c₁ = E‖g(x) − g‖² · gradient: E‖g(x)‖² · mean: ‖g‖² · spread: E[‖S‖²(Z−V)²] · product: E[E‖S‖²·Var Z]
    square: E[‖S‖²Z²] · best: E[(E‖S‖²Z)² / E‖S‖²], what the best prompt-only baseline saves
    critic: E[‖S‖²(Z−V̂)²] for a learned V̂, or NaN where there is none.
    """

    between: float
    gradient: float
    mean: float
    spread: float
    product: float
    square: float
    best: float
    critic: float = float("nan")

    @property
    def constants(self) -> tuple[float, float, float]:
        """(c₁, c₂, c₃): MSE of the leave-one-out estimator = c₁/B + c₂/(BG) + c₃/(BG(G−1))."""
        return self.between, self.spread - self.gradient, self.product + self.gradient


def mean_squared_error(
    estimator: str, moments: ErrorMoments, prompts: float, completions: int | np.ndarray
) -> np.ndarray:
    """E‖ĝ − g‖² of a batch of B prompts × G completions.

    Args:
        estimator: one of ESTIMATORS. "self_inclusive" (the group mean as baseline) shrinks the expected step by
            (G−1)/G: its error about g holds that bias, so compare it with care.

    Raises:
        ValueError: an unknown estimator, or a group baseline with G < 2.
    """
    G = np.asarray(completions, dtype=np.float64)
    c1, c2, c3 = moments.constants
    if estimator in ("loo", "self_inclusive") and bool((G < 2).any()):
        raise ValueError(f'"{estimator}" compares completions of a prompt; it needs two')
    if estimator == "loo":
        return (c1 + c2 / G + c3 / (G * (G - 1))) / prompts
    if estimator == "self_inclusive":
        kept = (G - 1) / G
        return kept**2 * mean_squared_error("loo", moments, prompts, completions) + moments.mean / G**2
    within = {
        "oracle": moments.spread,
        "vanilla": moments.square,
        "best_baseline": moments.square - moments.best,
        "critic": moments.critic,
    }
    if estimator not in within:
        raise ValueError(f'there is no estimator "{estimator}"; {", ".join(ESTIMATORS)}')
    return (c1 + (within[estimator] - moments.gradient) / G) / prompts
