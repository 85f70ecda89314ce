"""Metric names, declared once: unit, kind and reduction. docs/metrics.md is written from this table.

A metric is a (sum, count) pair until it is written, so that parts combine exactly however the step was cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Metric:
    unit: str
    about: str
    reduction: str = "mean"  # mean: sum/count · total: sum · max · last: the newest value


REGIMES = ("overdamped", "oscillatory", "unstable")  # the codes of `stability_regime`

METRICS: dict[str, Metric] = {
    # rewards, over all completions of the step
    "reward_mean": Metric(
        "reward", "Mean reward of the completions with a finite reward (unshaped: before overlong and KL terms)."
    ),
    "reward_std_within": Metric("reward", "Mean over groups of the sample standard deviation within the group."),
    "reward/<function>": Metric("reward", "Mean of one reward function, over the completions to which it applies."),
    "advantage_variance": Metric("advantage²", "Variance of the advantages A over the kept completions."),
    "silent_share": Metric("share", "Groups whose rewards are all equal: they carry no signal."),
    "silent_share_expected": Metric(
        "share",
        "Silent share that difficulty explains: E[p^G + (1−p)^G] over a Beta distribution of p fitted to means and pairs (rewards of two values).",
    ),
    "left_out_share": Metric(
        "share", "Completions that do not count: NaN reward, masked truncation, dropped by the objective."
    ),
    "refill_rounds": Metric("count", "Rounds of dynamic sampling beyond the first.", "last"),
    "refill_dropped_groups": Metric("count", "Silent groups that dynamic sampling replaced.", "last"),
    # the policy at sampling, over all completions
    "entropy": Metric("nats/token", "Exact entropy of the sampling distribution, mean over tokens, taken at sampling."),
    "kl_reference": Metric(
        "nats/token",
        "KL(behaviour‖reference), k3 on the sampled tokens, all completions; every train.reference_every steps.",
    ),
    "length_mean": Metric("tokens", "Tokens that the policy wrote, mean over completions."),
    "length_mean_terminated": Metric("tokens", "The same over completions that ended by themselves."),
    "truncated_share": Metric("share", "Completions stopped by the length limit."),
    "lag": Metric(
        "updates",
        "Optimiser updates between the policy that sampled a completion and the one that learns from it; mean over the step's updates.",
    ),
    "lag_max": Metric("updates", "Largest such lag in the step.", "last"),
    # learning, over the rows that were learned
    "learned_share": Metric("share", "Completions with any gradient: rows where every term is zero are skipped."),
    "kl_behaviour_learned": Metric(
        "nats/token", "KL(now‖behaviour), E[ρ log ρ − ρ + 1] over the learned tokens (new against old policy)."
    ),
    "ratio_positive_learned": Metric(
        "ratio", "Mean ratio to the behaviour policy where A ≥ 0, as importance and mask see it."
    ),
    "ratio_negative_learned": Metric("ratio", "The same where A < 0."),
    "ratio_max_learned": Metric("ratio", "Largest ratio of the step.", "max"),
    "masked_positive_learned": Metric(
        "share", "Learned tokens with A ≥ 0 that the mask (clip) stops. Always 0 with one update per batch and no lag."
    ),
    "masked_negative_learned": Metric("share", "The same where A < 0."),
    "objective_learned": Metric(
        "–",
        "Σ weight · coefficient over the learned tokens: near 0 by construction on-policy; not a measure of progress.",
        "total",
    ),
    "gradient_norm": Metric(
        "–", "Global gradient norm before clipping, mean over the step's updates. 0 with silent groups only."
    ),
    "update_norm": Metric("–", "Norm of the parameter change, mean over the step's updates."),
    "learning_rate": Metric("–", "Learning rate of the step's last update.", "last"),
    "value_loss": Metric("reward²", "Mean squared error of the critic before its update."),
    "version": Metric("updates", "Optimiser updates done after this step.", "last"),
    # how good the gradient of the step is; adamw: in its own units, the gradient times 1/(√v̂ + ε)
    "statistics/c1": Metric(
        "gradient²", "c₁ = E‖g(x) − g‖², between prompts; every train.statistics_every steps, as all of these.", "last"
    ),
    "statistics/c2": Metric("gradient²", "c₂ = E[‖S‖²(Z − V)²] − E‖g(x)‖², the noise of an oracle baseline.", "last"),
    "statistics/c3": Metric("gradient²", "c₃ = E[E‖S‖²·Var Z + ‖g(x)‖²], the noise of the group's baseline.", "last"),
    "statistics/g_star": Metric(
        "completions", "Best group size at the same number of completions, 1 + √(c₃/c₁); left out if infinite.", "last"
    ),
    "statistics/<constant>_low": Metric("–", "Lower end of the 95 % interval of each of these four.", "last"),
    "statistics/<constant>_high": Metric("–", "Upper end.", "last"),
    "statistics/share_between_prompts": Metric("share", "c₁'s part of the error at the step's G.", "last"),
    "statistics/share_oracle": Metric("share", "c₂'s part.", "last"),
    "statistics/share_baseline": Metric("share", "c₃'s part.", "last"),
    "statistics/oracle_ratio": Metric("ratio", "Error of the gradient over that of an oracle baseline.", "last"),
    "statistics/critical_batch": Metric(
        "prompts", "Prompts at which noise and signal are equal; left out if infinite.", "last"
    ),
    # evaluation on held-out problems
    "eval_accuracy": Metric("reward", "Mean reward on held-out problems, sampled at the training temperature.", "last"),
    "eval_accuracy_low": Metric("reward", "Lower end of its 95 % interval, clustered by problem.", "last"),
    "eval_accuracy_high": Metric("reward", "Upper end.", "last"),
    "eval_pass_at_k": Metric(
        "share", "Held-out problems solved by at least one of the evaluation.samples completions.", "last"
    ),
    # the outlook, every train.forecast_every steps
    "forecast_refused": Metric("0/1", "1: the curve so far does not say where it is heading.", "last"),
    "forecast_final": Metric(
        "reward", "Forecast of reward_mean's mean over the last tenth of the planned steps.", "last"
    ),
    "forecast_low": Metric("reward", "Lower end of its 95 % interval.", "last"),
    "forecast_high": Metric("reward", "Upper end.", "last"),
    "forecast_gain": Metric("reward", "What the level itself still gains until then, without noise.", "last"),
    "forecast_gain_low": Metric("reward", "Lower end of its 95 % interval.", "last"),
    "forecast_gain_high": Metric("reward", "Upper end; train.stop_at_plateau compares it with its bound.", "last"),
    "forecast_plateau": Metric("reward", "Plateau of the laws; left out where not determined.", "last"),
    "forecast_plateau_low": Metric("reward", "Lower end of its 95 % interval.", "last"),
    "forecast_plateau_high": Metric("reward", "Upper end.", "last"),
    "forecast_step_95": Metric("steps", "Step at 95 % of the way from start to plateau.", "last"),
    "forecast_step_95_low": Metric("steps", "Lower end of its 95 % interval.", "last"),
    "forecast_step_95_high": Metric("steps", "Upper end.", "last"),
    "stability_margin": Metric(
        "ratio",
        "Largest stable learning rate over the present one: at the upper end of a measured K, or, not certified, an upper bound from the reward's decay rate.",
        "last",
    ),
    "stability_margin_high": Metric("ratio", "The same at the lower end of a measured K; certified only.", "last"),
    "stability_certified": Metric("0/1", "1: K was measured (stability.json in the run's folder).", "last"),
    "stability_stiffness": Metric("–", "K that the margin stands on, of one optimiser update.", "last"),
    "stability_regime": Metric(
        "code", "0 overdamped, 1 oscillatory, 2 unstable: of the measured K, else of the reward curve.", "last"
    ),
    "plateau_reached": Metric("0/1", "1: this look found less than train.stop_at_plateau to gain.", "last"),
    "steps_saved": Metric(
        "steps", "Only in the last row of a run that ended at its plateau: steps left undone.", "last"
    ),
    "control_sync_interval": Metric("steps", "The controller's new sync interval, from the next sync on.", "last"),
    "control_learning_rate": Metric(
        "ratio", "The controller's new factor on the learning rate, from the next step on.", "last"
    ),
}

TIMING: dict[str, Metric] = {
    "seconds_sample": Metric("s", "Sampling and rewarding."),
    "seconds_score": Metric("s", "Forward passes without a gradient: reference, critic, score norms."),
    "seconds_statistics": Metric("s", "The figures `statistics/…`, in the steps that have them."),
    "seconds_learn": Metric("s", "Forward and backward passes and the optimiser."),
    "seconds_sync": Metric("s", "Handing weights to the sampler, checking their fingerprint."),
    "seconds_evaluate": Metric("s", "Evaluation."),
    "seconds_forecast": Metric("s", "The outlook: forecast, stability margin."),
    "seconds_total": Metric("s", "The whole step, writing included."),
    "tokens_per_second": Metric("tokens/s", "Sampled tokens over the whole step's time."),
}


@dataclass
class Meter:
    """Collects (sum, count) pairs of declared metrics."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, total: float, count: float = 1.0) -> None:
        reduction = declared(name).reduction
        if reduction == "max":
            self.sums[name] = max(self.sums.get(name, -math.inf), total)
        elif reduction == "last":
            self.sums[name] = total
        else:
            self.sums[name] = self.sums.get(name, 0.0) + total
            self.counts[name] = self.counts.get(name, 0.0) + count

    def values(self) -> dict[str, float]:
        """Reduced values; what was never counted, or is not finite, is left out."""
        out = {}
        for name, total in self.sums.items():
            value = total
            if declared(name).reduction == "mean":
                if not self.counts[name]:
                    continue
                value = total / self.counts[name]
            if math.isfinite(value):
                out[name] = value
        return out


def declared(name: str) -> Metric:
    """The metric's declaration. Raises KeyError for a name that is not in the table."""
    if name in METRICS:
        return METRICS[name]
    if name.startswith("reward/"):
        return METRICS["reward/<function>"]
    if name.startswith("statistics/"):
        return METRICS[f"statistics/<constant>_{name.rpartition('_')[2]}"]
    return TIMING[name]
