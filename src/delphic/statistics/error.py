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


def error_parts(
    constants: tuple[float, float, float], completions: int | np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """(c₁, c₂/G, c₃/(G(G−1))): between prompts, the oracle's own noise, the baseline's."""
    c1, c2, c3 = constants
    G = np.asarray(completions, dtype=np.float64)
    return c1, c2 / G, c3 / (G * (G - 1))


def prompt_error(constants: tuple[float, float, float], completions: int | np.ndarray) -> np.ndarray:
    """c₁ + c₂/G + c₃/(G(G−1)): B times the error of the leave-one-out estimator."""
    between, oracle, baseline = error_parts(constants, completions)
    return between + oracle + baseline


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
    if estimator in ("loo", "self_inclusive") and bool((G < 2).any()):
        raise ValueError(f'"{estimator}" compares completions of a prompt; it needs two')
    if estimator == "loo":
        return prompt_error(moments.constants, G) / prompts
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
    return (moments.between + (within[estimator] - moments.gradient) / G) / prompts


def oracle_ratio(moments: ErrorMoments, completions: int) -> float:
    """Error of the leave-one-out estimator over the oracle's, at G completions; NaN where the latter is not positive."""
    loo, oracle = (float(mean_squared_error(name, moments, 1, completions)) for name in ("loo", "oracle"))
    return loo / oracle if oracle > 0 else float("nan")
