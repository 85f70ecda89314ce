"""All checks on one run, and the verdict: which failure modes, healthy, or that it cannot be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from delphic.diagnosis import course, groups, hacking, instability, length, policy, record, update
from delphic.diagnosis.finding import SEVERITIES, Finding, Skipped
from delphic.diagnosis.sequential import thin
from delphic.runs.log import RunLog

Check = Callable[[RunLog], Finding | Skipped | None]
CHECKS: tuple[Check, ...] = (
    *record.CHECKS,
    *length.CHECKS,
    *update.CHECKS,
    *groups.CHECKS,
    *hacking.CHECKS,
    *policy.CHECKS,
    *instability.CHECKS,
    *course.CHECKS,
)
START = 5  # steps
ENOUGH = 20  # steps before a run without findings is called healthy
FORECAST_POINTS = 300

# a finding that explains another: what is named first takes the modes after it away
EXPLAINS = {
    "all_truncated": ("no_signal", "advantage_degeneracy", "policy_concentration"),
    "no_signal": ("policy_concentration",),
    "dynamic_instability": ("collapse",),
    "reward_hacking": ("policy_concentration", "advantage_degeneracy"),
    "advantage_degeneracy": ("no_signal", "policy_concentration"),
    "collapse": ("policy_concentration",),
}
# what either causes a collapse or follows from it: whether it was there before decides
BEFORE = (("all_truncated", "truncated_share", 0.5), ("advantage_degeneracy", "silent_share", 0.8))


@dataclass(frozen=True)
class Diagnosis:
    """verdict: failure modes, ("healthy",) or ("cannot_tell",). findings: the gravest first, of these the verdict's. forecast, stability: as those commands'
    JSON, or None. band: t, low, middle, high of the forecast curve. groups: `statistics.rewards.rewards_report` of recorded
    completions, or None."""

    verdict: tuple[str, ...]
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    forecast: dict[str, Any] | None = None
    band: dict[str, np.ndarray] | None = None
    stability: dict[str, Any] | None = None
    groups: dict[str, Any] | None = None

    @property
    def status(self) -> int:
        """Exit status: 0 nothing above info, 1 a warning or error, 3 cannot tell."""
        if any(f.severity != "info" for f in self.findings):
            return 1
        return 3 if self.verdict == ("cannot_tell",) else 0


def diagnose(log: RunLog, *, ahead: bool = True) -> Diagnosis:
    """Every check on a run's table.

    Args:
        ahead: also forecast the reward and report on groups (the slowest parts); off where only the verdict counts.
    """
    results = [check(log) for check in CHECKS if log.has("reward_mean") or check in record.CHECKS]
    seen, band = _forecast(log) if ahead else (None, None)
    results.append(course.trend(log, seen) if log.has("reward_mean") else Skipped("trend", "reward_mean"))
    findings = [r for r in results if isinstance(r, Finding)]
    skipped = tuple(r for r in results if isinstance(r, Skipped))
    if any(f.name == "reward_not_used" for f in findings):  # what groups and entropy do is then not the reward's doing
        findings = [f for f in findings if f.name not in ("silent_groups", "policy_concentration")]
    if any(f.severity == "error" for f in findings):  # whether going on pays is then not the question
        findings = [f for f in findings if f.name not in course.TRENDS]
    verdict = _verdict(log, findings)
    findings.sort(key=lambda f: (-SEVERITIES.index(f.severity), f.mode not in verdict))
    groups = _groups(log) if ahead else None
    return Diagnosis(verdict, tuple(findings), skipped, seen, band, _stability(log, seen), groups)


def _groups(log: RunLog) -> dict[str, Any] | None:
    if log.rollouts is None:
        return None
    from delphic.statistics.rewards import rewards_report  # imports that few logs need

    return rewards_report(log.rollouts["reward"].to_numpy(), log.rollouts["group"].to_numpy())


def _verdict(log: RunLog, findings: list[Finding]) -> tuple[str, ...]:
    modes = list(dict.fromkeys(f.mode for f in findings if f.mode and f.severity != "info"))
    explained = {other for mode in modes for other in EXPLAINS.get(mode, ())}
    if "collapse" in modes:
        at = min(f.steps[0] for f in findings if f.mode == "collapse")
        explained |= {
            "collapse" if _there(log, name, at, least) else mode for mode, name, least in BEFORE if mode in modes
        }
    kept = tuple(mode for mode in modes if mode not in explained)
    if kept:
        return kept
    if modes:
        return tuple(modes)
    if not log.has("reward_mean") or len(log.series("reward_mean")[1]) < ENOUGH:
        return ("cannot_tell",)
    if any(f.name in ("reward_not_used", "flat", "falling") for f in findings):
        return ("cannot_tell",)
    return ("healthy",)


def _there(log: RunLog, name: str, step: int, least: float) -> bool:
    """Whether a share was at `least` at the start and up to a step."""
    steps, values = log.series(name)
    before = values[steps < step]
    return len(before) > 0 and min(float(before[:START].mean()), float(before.mean())) >= least


def _forecast(log: RunLog) -> tuple[dict[str, Any] | None, dict[str, np.ndarray] | None]:
    """To the planned end, or to twice the steps."""
    from delphic.dynamics.forecast import forecast, likely_limits

    if not log.has("reward_mean"):
        return None, None
    steps, values = log.series("reward_mean")
    if len(steps) < 2:
        return None, None
    end = float(log.settings.get("steps") or 0)
    if end <= steps[-1]:
        end = float(2 * steps[-1] - steps[0])
    t, y, counts = thin(steps, values, FORECAST_POINTS)
    found = forecast(t, y, end, limits=likely_limits(values), counts=counts)
    return {"end": end, **{k: v for k, v in asdict(found).items() if k != "band"}}, found.band


def _stability(log: RunLog, seen: dict[str, Any] | None) -> dict[str, Any] | None:
    """From the decay rate of the fit with the lag inverted; an upper bound of the margin, so never certified here."""
    rate = log.learning_rate
    decay = seen.get("decay") if seen else None
    if not rate or not decay:
        return None
    from delphic.dynamics.stability import Lag, dominant_mode, exact_limit, gain_from_decay, oscillation_onset

    interval = int(log.settings.get("sync_interval") or 1)
    offset = int(log.settings.get("sync_offset") or 0)
    lag = Lag(interval, offset)
    gain = gain_from_decay(float(decay["value"]), lag)
    if gain is None:
        return None
    lag = Lag(interval, offset, stiffness=gain / rate)
    mode = dominant_mode(rate, lag)
    limit, onset = exact_limit(lag), oscillation_onset(lag)
    return {
        "learning_rate": rate,
        "gain": gain * max(lag.largest, 0),
        "exact_limit": limit,
        "oscillation_onset": None if np.isinf(onset) else onset,
        "regime": mode.regime,
        "damping_ratio": mode.damping_ratio,
        "period": mode.period,
        "spectral_radius": mode.spectral_radius,
        "margin": limit / rate,
        "certified": False,
    }
