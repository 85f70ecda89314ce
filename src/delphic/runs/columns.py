"""What the columns of a run's table mean, whatever framework wrote them: name, unit, meaning, and the kinds that must not be mixed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Canonical:
    """name: of the column. kinds: what a source's figure may be; the first where nothing else is known."""

    name: str
    unit: str
    meaning: str
    kinds: tuple[str, ...] = ("",)


_ALL = (
    Canonical(
        "reward_mean", "reward", "mean reward of the step's completions", ("raw", "shaped", "kept groups", "normalised")
    ),
    Canonical("reward_std", "reward", "spread of rewards", ("unknown", "within groups", "batch")),
    Canonical("eval_reward", "reward", "mean reward or accuracy on held-out problems"),
    Canonical("silent_share", "share", "groups whose rewards are all equal", ("groups", "samples")),
    Canonical(
        "solved_all_share", "share", "groups in which every completion has the full reward", ("groups", "samples")
    ),
    Canonical("solved_none_share", "share", "groups in which no completion has any reward", ("groups", "samples")),
    Canonical("silent_share_expected", "share", "silent share that difficulty explains"),
    Canonical("dropped_groups", "groups", "groups that a filter dropped or replaced"),
    Canonical("advantage_variance", "advantage²", "variance of the advantages"),
    Canonical(
        "entropy", "nats/token", "entropy of the policy", ("exact", "sampled −log p", "weighted −log p", "unknown")
    ),
    Canonical("kl_reference", "nats/token", "KL between policy and reference", ("k3", "k1", "unknown")),
    Canonical("kl_update", "nats/token", "KL between the policy and the one that sampled, as the trainer scores both"),
    Canonical(
        "kl_sampler", "nats/token", "KL between the sampler's probabilities and the trainer's for the same weights"
    ),
    Canonical(
        "sampler_difference",
        "nats",
        "mean |log p| difference, or |p| difference, of sampler and trainer",
        ("log p", "p"),
    ),
    Canonical("ratio_mean", "ratio", "mean ratio of the policy to the one that sampled"),
    Canonical("ratio_max", "ratio", "largest such ratio"),
    Canonical("clip_share", "share", "tokens that the clip stops", ("tokens", "sequences")),
    Canonical("clip_low_share", "share", "the same on the low side"),
    Canonical("clip_high_share", "share", "the same on the high side"),
    Canonical("gradient_norm", "", "norm of the gradient before clipping"),
    Canonical("update_norm", "", "norm of the change of the weights"),
    Canonical("learning_rate", "", "learning rate"),
    Canonical("loss", "", "loss: no measure of progress"),
    Canonical("length_mean", "tokens", "mean length of a completion"),
    Canonical("length_max", "tokens", "longest completion"),
    Canonical("length_terminated_mean", "tokens", "mean length of completions that ended by themselves"),
    Canonical("truncated_share", "share", "completions stopped by the length limit"),
    Canonical("lag", "updates or steps", "age of the policy that sampled, mean"),
    Canonical("lag_max", "updates or steps", "the same, oldest"),
)
CANONICAL = {column.name: column for column in _ALL}
COMPONENT = "reward/"  # reward/<function>: mean of one reward function
