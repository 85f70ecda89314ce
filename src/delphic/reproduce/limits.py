"""The lag's threshold in a world where everything is exact: a softmax bandit with a KL anchor, the whole update delayed.

K is measured by finite differences of the expected update at its fixed point, the lag is swept for both kinds of schedule, and
the learning rate at which the path stops returning is found by running it. Then the same with sampled updates: how far the policy
spreads around the fixed point (arXiv 2606.30789; theory of the recurrence: `dynamics/stability.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from delphic.dynamics.bandit import Bandit
from delphic.dynamics.bandit_run import Anchor, Optimiser, Plan, mean_step, train
from delphic.dynamics.schedule import source_step
from delphic.dynamics.stability import Lag, closed_form_limit, exact_limit, oscillation_onset, stationary_variance
from delphic.objective import build
from delphic.reproduce.claims import Claim, Outcome, Part

SOURCE = "arXiv 2606.30789"
BETA = 0.5
STEP_REPLICAS = 40_000
Row = dict[str, Any]


class World:
    """Three arms, mean baseline, KL(π‖uniform) with weight β: θ* = r/β. K: the stiffest direction there, `top` [D]."""

    def __init__(self) -> None:
        self.bandit = Bandit.tabular(np.array([[0.0, 0.5, 1.0]]))
        self.objective = build({"preset": "rloo"})
        self.reference = np.zeros(3)
        self.point = self.bandit.rewards[0] / BETA - (self.bandit.rewards[0] / BETA).mean()
        shifts = 1e-5 * np.eye(3)
        slopes = [(self.step(self.point + h) - self.step(self.point - h)) / 2e-5 for h in shifts]
        values, vectors = np.linalg.eigh(-0.5 * (np.array(slopes) + np.array(slopes).T))
        self.stiffness, self.top = float(values[-1]), vectors[:, -1]

    def plan(self, optimiser: Optimiser | None = None, lag: Lag | None = None, completions: int = 16) -> Plan:
        lag = lag or Lag()
        return Plan(
            self.objective,
            completions=completions,
            optimiser=optimiser or Optimiser(),
            interval=lag.interval,
            offset=lag.offset,
            anchor=Anchor(BETA, lagged=True),
        )

    def step(self, theta: np.ndarray) -> np.ndarray:
        """[D] the expected update at θ."""
        return mean_step(self.bandit, self.plan(), theta, self.reference)

    def path(self, rate: float, lag: Lag, steps: int) -> np.ndarray:
        """[steps + 1] distance along the stiffest direction, without noise, from a small push; ends early once it is large."""
        theta = [self.point + 1e-4 * self.top] * 2
        out = [1e-4]
        for t in range(1, steps + 1):
            behaviour = theta[source_step(t, lag.interval, lag.offset) + 1]
            now = theta[-1] + lag.momentum * (theta[-1] - theta[-2]) + rate * self.step(behaviour)
            theta.append(now)
            out.append(float((now - self.point) @ self.top))
            if abs(out[-1]) > 0.05:
                break
        return np.array(out)


def behaves(path: np.ndarray, steps: int) -> str:
    """monotone, oscillating or diverging, from the path alone."""
    n = len(path)
    early, late = np.abs(path[: n // 2]).max(), np.abs(path[-n // 4 :]).max()
    if n <= steps or late > early:
        return "diverging"
    seen = path[np.abs(path) > 1e-12]
    return "oscillating" if (seen[:-1] * seen[1:] < 0).any() else "monotone"


def empirical_limit(world: World, lag: Lag, steps: int) -> float:
    """The learning rate at which the path stops returning, by bisection to 0.3 %."""
    low, high = 1e-3 / world.stiffness, 5.0 / world.stiffness
    while high > low * 1.003:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if behaves(world.path(middle, lag, steps), steps) == "diverging" else (middle, high)
    return float(np.sqrt(low * high))


def limit_rows(world: World, lags: list[Lag], steps: int, note: Callable[[str], None]) -> list[Row]:
    rows = []
    for lag in lags:
        exact, onset = exact_limit(lag), oscillation_onset(lag)
        rates = (0.7 * min(onset, exact), float(np.sqrt(onset * exact)), 1.05 * exact)
        rows.append(
            {
                "kind": "constant" if lag.interval == 1 else "hold",
                "K_ref": lag.largest,
                "μ": lag.momentum,
                "closed form": closed_form_limit(lag) * lag.stiffness,
                "exact": exact * lag.stiffness,
                "found by running": empirical_limit(world, lag, steps) * lag.stiffness,
                "below the onset, between, above": ", ".join(behaves(world.path(r, lag, steps), steps) for r in rates),
            }
        )
        note(f"lag {lag.largest}, momentum {lag.momentum:g}")
    return rows


def variance_rows(world: World, lags: list[Lag], replicas: int, steps: int) -> list[Row]:
    """Variance along the stiffest direction after the start is forgotten, over replicas and late steps."""
    rows = []
    for seed, lag in enumerate(lags):
        rate = 0.25 * exact_limit(lag) if lag.largest else 0.05 / lag.stiffness
        start = np.repeat(world.point[None], replicas, 0)
        many = np.repeat(world.point[None], STEP_REPLICAS, 0)  # the noise of one step, to 0.7 %
        one = train(world.bandit, world.plan(Optimiser(rate=rate)), many, 1, 100 + seed, reference=world.reference)
        spread = float(((one.last - world.point) @ world.top).var())
        plan = world.plan(Optimiser(rate=rate, momentum=lag.momentum), lag)
        trace = train(
            world.bandit, plan, start, steps, seed, every=steps // 20 + 1, keep_theta=True, reference=world.reference
        )
        assert trace.theta is not None
        late = (trace.theta[10:] - world.point) @ world.top
        measured, formula = float((late**2).mean()), stationary_variance(rate, lag, spread)
        rows.append(
            {
                "K_ref": lag.largest,
                "μ": lag.momentum,
                "ηK": rate * lag.stiffness,
                "measured": measured,
                "formula": formula,
            }
            | {"ratio": measured / formula}
        )
    return rows


def run(folder: Path, quick: bool, note: Callable[[str], None]) -> Outcome:
    """About 4 minutes on one core; quick: seconds."""
    world = World()
    K = world.stiffness
    sizes, momenta = ((4,), (0.0, 0.5)) if quick else ((1, 4, 16), (0.0, 0.5, 0.9))
    lags = [Lag(1, n, mu, K) for n in sizes for mu in momenta]
    lags += [Lag(m + 1, 0, mu, K) for m in sizes for mu in momenta]
    rows = limit_rows(world, lags, 600 if quick else 1500, note)
    spread = variance_rows(
        world, [Lag(1, 0, 0.0, K), Lag(1, 4, 0.5, K), Lag(5, 0, 0.0, K)], 300 if quick else 3000, 1000
    )
    apart = max(abs(row["found by running"] / row["exact"] - 1) for row in rows)
    above = [row["exact"] / row["closed form"] for row in rows]
    off = [row for row in rows if row["found by running"] < 0.97 * row["closed form"]]
    phases = [row["below the onset, between, above"] for row in rows]
    right = sum(phase == "monotone, oscillating, diverging" for phase in phases)
    ratio = max(abs(row["ratio"] - 1) for row in spread)
    claims = [
        Claim(
            "The path goes from monotone to damped swings to divergence as the learning rate is raised",
            SOURCE,
            f"{right} of {len(phases)} schedules show all three in that order",
            "holds" if right == len(phases) else "does not hold",
        ),
        Claim(
            "The threshold is where the exact spectral radius reaches 1",
            "derived",
            f"found by running within {apart:.1%} of it in {len(rows)} schedules",
            "holds" if apart < 0.01 else "does not hold",
        ),
        Claim(
            "ηK·K_ref = 1 − μ is the threshold",
            SOURCE,
            f"a safe bound in {len(rows) - len(off)} of {len(rows)} schedules; the exact threshold is {min(above):.2f} "
            f"to {max(above):.2f} times it",
            "holds" if max(above) < 1.01 and not off else "does not hold",
        ),
        Claim(
            "The spread around the fixed point is that of the recurrence under the steps' own noise, within 5 %",
            "derived",
            f"largest difference {ratio:.1%} over {len(spread)} schedules",
            "holds" if ratio < 0.05 else "cannot tell" if quick else "does not hold",
        ),
    ]
    return Outcome(claims, {"ηK at the threshold": rows, "variance along the stiffest direction": spread})


PART = Part("limits", "thresholds of a lagged bandit, found by running, beside closed-form and exact ones", run)
