"""Do the laws find what was planted? Curves of each law with AR(1) noise, fitted whole by that law: how often the 95 %
intervals hold the start, the plateau and the shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from delphic.dynamics.fitting import draw_levels, fit_all, make_curve, shape_interval
from delphic.dynamics.laws import LAWS
from delphic.reproduce.claims import Claim, Outcome, Part, Verdict
from delphic.reproduce.forecasts import STEPS, Planted, law_curve
from delphic.statistics.interval import share

SHAPES = {"exponential": ("rate",), "logistic": ("middle", "width"), "scaling_sigmoid": ("middle", "exponent")}
SHAPES |= {"three_phase": ("decay", "swing"), "difficulty_mixture": ()}  # the mixture's numbers trade off


def held(curve: Planted, rng: np.random.Generator) -> dict[str, bool]:
    """Whether the interval of each planted number holds it."""
    fits, _ = fit_all(make_curve(np.arange(1, len(curve.rewards) + 1), curve.rewards), (0.5, 0.5))
    fit = next(f for f in fits if f.law.name == curve.law.name)
    _, starts, ends = draw_levels(fit, 4000, rng)
    intervals = {"start": np.quantile(starts, [0.025, 0.975]), "plateau": np.quantile(ends, [0.025, 0.975])}
    truth = {"start": curve.start, "plateau": curve.plateau} | dict(zip(curve.law.parameters, curve.shape, strict=True))
    for name in SHAPES[curve.law.name]:
        found = shape_interval(fit, name)
        intervals[name] = np.array([found.low, found.high])
    return {name: bool(low <= truth[name] <= high) for name, (low, high) in intervals.items()}


def run(folder: Path, quick: bool, note: Callable[[str], None]) -> Outcome:
    """100 curves of each law, about 3 minutes on one core; quick: 6."""
    rng, count = np.random.default_rng(31), 6 if quick else 100
    rows: list[dict[str, Any]] = []
    for law in LAWS:
        seen = [held(law_curve(rng, STEPS, law), rng) for _ in range(count)]
        for name in seen[0]:
            hits = sum(s[name] for s in seen)
            found = share(hits, count)
            row = {"law": law.name, "number": name, "curves": count, "held": hits}
            rows.append(row | {"covered": found.value, "low": found.low, "high": found.high})
        note(f"{law.name}: {count} curves")
    total = sum(row["held"] for row in rows) / sum(row["curves"] for row in rows)
    verdict: Verdict = "holds" if 0.90 <= total <= 0.98 else "does not hold"
    worst = min(rows, key=lambda row: row["covered"])
    claim = Claim(
        "95 % intervals of the planted start, plateau and shape hold them in 90 to 98 % of curves",
        "stated here",
        f"{total:.1%} of {sum(row['curves'] for row in rows)} intervals over {count * len(LAWS)} curves; least "
        f"{worst['covered']:.0%} ({worst['low']:.0%} – {worst['high']:.0%}): {worst['law']}, {worst['number']}",
        "cannot tell" if quick else verdict,
    )
    return Outcome([claim], {"planted numbers inside their intervals": rows})


PART = Part("planted", "do the laws find what was planted, within their intervals", run)
