"""Laws of a reward curve, R(t) = R₀ + (R∞ − R₀)·φ(t; shape): what each says of the way from start to plateau.

t counts steps from 1 at the first. Every law is linear in R₀ and R∞, so a grid over its shapes is all that a fit needs
(`fitting.py`). Sources: three_phase, exponential: arXiv 2606.30789 (theory section 3); scaling_sigmoid: ScaleRL's sigmoid in
log-compute, with steps for compute; difficulty_mixture: ṗ = η[p(1−p)]^k, the softmax bandit without a KL anchor (k = 2 with mean
baseline, 3/2 where rewards are divided by their spread, 1 the logistic), mixed over prompts whose logits are normal (derived).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import expit


@dataclass(frozen=True)
class Law:
    """φ(t [n], shapes [g, k]) -> [g, n]; `grid(span)` covers the shapes that matter over `span` steps, [g, k].

    parameters: names of the k shape numbers; low, high: their bounds.
    """

    name: str
    parameters: tuple[str, ...]
    phi: Callable[[np.ndarray, np.ndarray], np.ndarray]
    grid: Callable[[float], np.ndarray]
    low: tuple[float, ...]
    high: tuple[float, ...]


def _product(*axes: np.ndarray) -> np.ndarray:
    return np.stack([a.ravel() for a in np.meshgrid(*axes, indexing="ij")], -1)


def exponential(t: np.ndarray, shapes: np.ndarray) -> np.ndarray:
    """1 − e^{−λt}."""
    return -np.expm1(-shapes[:, :1] * t)


def three_phase(t: np.ndarray, shapes: np.ndarray) -> np.ndarray:
    """From rest, rates a(1 ± √−q): q in (−1, 0) creeps, 0 is critical, and for q > 0 the path swings with ω = a√q:
    1 − e^{−at}(cos ωt + sin(ωt)/√q)."""
    a, q = shapes[:, :1], shapes[:, 1:2]
    root = a * np.sqrt(np.abs(q))
    x = root * t
    swing = np.exp(-a * t) * (np.cos(x) + a * t * np.sinc(x / np.pi))
    fast, slow = a + root, np.maximum(a - root, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        creep = (fast * np.exp(-slow * t) - slow * np.exp(-fast * t)) / (2 * root)
    return 1 - np.where(q > 0, swing, np.where(np.abs(q) < 1e-8, np.exp(-a * t) * (1 + a * t), creep))


def logistic(t: np.ndarray, shapes: np.ndarray) -> np.ndarray:
    """σ((t − middle)/width)."""
    return expit((t - shapes[:, :1]) / shapes[:, 1:2])


def scaling_sigmoid(t: np.ndarray, shapes: np.ndarray) -> np.ndarray:
    """1/(1 + (middle/t)^exponent)."""
    return expit(shapes[:, 1:2] * (np.log(t) - np.log(shapes[:, :1])))


KS = (1.0, 1.5, 2.0)
_NODES = np.polynomial.hermite_e.hermegauss(21)
_TAU = np.concatenate([[0.0], np.geomspace(1e-3, 1e7, 400)])


@lru_cache(maxsize=4096)
def _mixture(k: float, middle: float, spread: float) -> np.ndarray:
    """E p on _TAU = ηt, logits at the start N(middle, spread²). In logits ẋ = η v^{k−1}, so the inner time ∫ v^{1−k} dx is
    known: x, 4 sinh(x/2), 2x + 2 sinh x."""
    nodes, weights = _NODES
    x0 = middle + spread * nodes
    if k == 1.0:
        x = x0[:, None] + _TAU
    elif k == 1.5:
        x = 2 * np.arcsinh((4 * np.sinh(x0 / 2)[:, None] + _TAU) / 4)
    else:
        line = np.linspace(-40, 40, 8001)
        x = np.interp(2 * (x0 + np.sinh(x0))[:, None] + _TAU, 2 * (line + np.sinh(line)), line)
    return weights @ expit(x) / weights.sum()


def difficulty_mixture(t: np.ndarray, shapes: np.ndarray) -> np.ndarray:
    """E p(t) over prompts; shapes: k, middle, spread, rate η."""
    out = np.empty((len(shapes), len(t)))
    position = np.log(np.maximum(np.abs(shapes[:, 3:4]) * t, 1e-12))
    grid = np.log(np.maximum(_TAU, 1e-12))
    for key in np.unique(shapes[:, :3], axis=0):
        rows = (shapes[:, :3] == key).all(1)
        out[rows] = np.interp(position[rows], grid, _mixture(*(float(x) for x in key)))
    return out


def _three_phase_grid(span: float) -> np.ndarray:
    slow = _product(np.geomspace(0.03, 200, 30), np.array([1.0, 1.5, 2.5, 5.0, 12.0, 40.0]))  # λ₋, λ₊/λ₋
    creep = np.stack([0.5 * slow[:, 0] * (1 + slow[:, 1]), -(((slow[:, 1] - 1) / (slow[:, 1] + 1)) ** 2)], 1)
    swing = _product(np.geomspace(0.2, 100, 16), np.geomspace(0.5, 20, 14) ** 2)
    swing = swing[swing[:, 0] * np.sqrt(swing[:, 1]) < 150]
    return np.concatenate([creep, swing]) / np.array([span, 1.0])


INFINITY = float("inf")
LAWS = (
    Law("three_phase", ("decay", "swing"), three_phase, _three_phase_grid, (1e-9, -0.999999), (10.0, 1e4)),
    Law(
        "exponential",
        ("rate",),
        exponential,
        lambda span: _product(np.geomspace(0.03, 300, 60)) / span,
        (1e-9,),
        (10.0,),
    ),
    Law(
        "logistic",
        ("middle", "width"),
        logistic,
        lambda span: _product(np.linspace(-0.5, 2.5, 31), np.geomspace(0.01, 2, 18)) * span,
        (-INFINITY, 1e-3),
        (INFINITY, INFINITY),
    ),
    Law(
        "difficulty_mixture",
        ("k", "middle", "spread", "rate"),
        difficulty_mixture,
        lambda span: _product(
            np.array(KS), np.linspace(-6, 3, 13), np.array([0.3, 1.0, 2.0, 3.5]), np.geomspace(0.1, 1000, 22) / span
        ),
        (1.0, -INFINITY, 0.0, 0.0),
        (2.0, INFINITY, INFINITY, INFINITY),
    ),
    Law(
        "scaling_sigmoid",
        ("middle", "exponent"),
        scaling_sigmoid,
        lambda span: _product(np.geomspace(0.01, 10, 28) * span, np.geomspace(0.3, 10, 14)),
        (1e-9, 0.05),
        (INFINITY, 30.0),
    ),
)
