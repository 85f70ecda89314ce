"""What each framework's keys mean: source key → canonical column, with its kind.

A key may hold one `*`. Of several keys for one column the first that has numbers counts. `train/` in front of a key is ignored.
`marks`: keys by which a framework is known; more of them than of any other decide. Versions read: TRL 1.10, verl 0.10.dev, OpenRLHF
0.11, prime-rl 0.8, NeMo-RL, SkyRL, slime, open-instruct, tinker-cookbook (August 2026), Trinity-RFT 0.5.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from delphic.runs.columns import COMPONENT

Change = Literal["", "percent", "complement"]
STEPS = (
    "step", "_step", "training/global_step", "train/global_step", "global_step", "trainer/global_step", "train/step",
    "rollout/step", "training_step", "progress/batch", "wandb_step", "iteration", "epoch_step",
)  # fmt: skip


@dataclass(frozen=True)
class Key:
    """source: key or pattern. change: percent → share, complement → 1 − x."""

    source: str
    canonical: str
    kind: str = ""
    change: Change = ""


@dataclass(frozen=True)
class Framework:
    name: str
    marks: tuple[str, ...]
    keys: tuple[Key, ...]


def _keys(*rows: str) -> tuple[Key, ...]:
    """ "source | canonical | kind | change", the last two optional."""
    out = []
    for row in rows:
        parts = [part.strip() for part in row.split("|")]
        source, canonical, kind, change = [*parts, "", ""][:4]
        out.append(Key(source, canonical, kind, change))  # type: ignore[arg-type]
    return tuple(out)


TRL = _keys(
    "reward | reward_mean | raw",
    "reward_std | reward_std | unknown",
    "eval_reward | eval_reward",
    "eval_rewards/*/mean | eval_reward",
    "frac_reward_zero_std | silent_share | groups",
    "entropy | entropy | exact",
    "kl | kl_reference | k3",
    "sampling/sampling_logp_difference/mean | sampler_difference | log p",
    "sampling/importance_sampling_ratio/mean | ratio_mean",
    "sampling/importance_sampling_ratio/max | ratio_max",
    "clip_ratio/region_mean | clip_share | tokens",
    "clip_ratio/low_mean | clip_low_share",
    "clip_ratio/high_mean | clip_high_share",
    "cispo_clip_ratio | clip_share | tokens",
    "clip_ratio | clip_share | tokens",
    "grad_norm | gradient_norm",
    "learning_rate | learning_rate",
    "loss | loss",
    "completions/mean_length | length_mean",
    "completion_length | length_mean",
    "completions/max_length | length_max",
    "completions/mean_terminated_length | length_terminated_mean",
    "completions/clipped_ratio | truncated_share",
    "rewards/*/mean | reward/*",
    "rewards/* | reward/*",
)
VERL = _keys(
    "critic/score/mean | reward_mean | raw",
    "critic/rewards/mean | reward_mean | shaped",
    "val-core/*/reward/mean@* | eval_reward",
    "val-core/*/acc/mean@* | eval_reward",
    "val-core/* | eval_reward",
    "val/test_score/* | eval_reward",
    "actor/entropy | entropy | exact",
    "actor/entropy_loss | entropy | exact",
    "actor/kl_loss | kl_reference | unknown",
    "actor/reward_kl_penalty | kl_reference | unknown",
    "critic/kl | kl_reference | unknown",
    "actor/ppo_kl | kl_update",
    "rollout_corr/kl | kl_sampler",
    "rollout_corr/k3_kl | kl_sampler",
    "training/rollout_probs_diff_mean | sampler_difference | p",
    "rollout_corr/rollout_is_mean | ratio_mean",
    "rollout_corr/rollout_is_max | ratio_max",
    "actor/pg_clipfrac | clip_share | tokens",
    "actor/grad_norm | gradient_norm",
    "actor/lr | learning_rate",
    "actor/loss | loss",
    "actor/pg_loss | loss",
    "response_length/mean | length_mean",
    "response_length/max | length_max",
    "response_length/clip_ratio | truncated_share",
    "training/off_policy/trajectory_staleness/mean | lag",
    "training/off_policy/trajectory_staleness/max | lag_max",
)
TRINITY = _keys(
    "experience_pipeline/group_advantages/reward_mean/mean | reward_mean | raw",
    "rollout/accuracy/mean | reward_mean | raw",
    "experience_pipeline/group_advantages/reward_std/mean | reward_std | within groups",
    "experience_pipeline/group_advantages/skipped_group_ratio | silent_share | groups",
    "experience_pipeline/filtered_count | dropped_groups",
    "eval/*/mean | eval_reward",
)
OPENRLHF = _keys(
    "rollout/reward_mean | reward_mean | raw",
    "reward | reward_mean | raw",
    "group_reward_std | reward_std | within groups",
    "rollout/reward_std | reward_std | batch",
    "eval_*pass1 | eval_reward",
    "entropy_loss | entropy | exact",
    "kl | kl_reference | unknown",
    "ppo_kl | kl_update",
    "vllm_kl | kl_sampler",
    "ppo_clip_ratio | clip_share | tokens",
    "actor_grad_norm | gradient_norm",
    "actor_lr | learning_rate",
    "policy_loss | loss",
    "response_length | length_mean",
    "rollout/response_length_mean | length_mean",
    "truncated | truncated_share",
    "rollout/truncated_rate | truncated_share",
    "response_clip_ratio | truncated_share",
)
PRIME = _keys(
    "agg/all/*/reward/mean | reward_mean | raw",
    "agg/effective/*/reward/mean | reward_mean | kept groups",
    "reward/all/mean | reward_mean | raw",
    "agg/all/*/solved_none | solved_none_share | groups",
    "agg/all/*/solved_all | solved_all_share | groups",
    "eval/*/avg@* | eval_reward",
    "entropy/all/mean | entropy | exact",
    "mismatch_kl/all/mean | kl_sampler",
    "is_masked/mean | clip_share | tokens",
    "is_masked_low/mean | clip_low_share",
    "is_masked_high/mean | clip_high_share",
    "optim/grad_norm | gradient_norm",
    "optim/lr | learning_rate",
    "loss/mean | loss",
    "agg/all/*/num_output_tokens/mean | length_mean",
    "agg/all/*/is_truncated/mean | truncated_share",
    "off_policy/mean | lag",
    "off_policy/max | lag_max",
)
NEMO = _keys(
    "reward | reward_mean | raw",
    "filtered_reward | reward_mean | kept groups",
    "baseline_reward/pct_0 | solved_none_share | samples | percent",
    "baseline_reward/pct_1 | solved_all_share | samples | percent",
    "baseline_reward/pct_mixed | silent_share | samples | percent",
    "validation/accuracy | eval_reward",
    "approx_entropy | entropy | weighted −log p",
    "kl_penalty | kl_reference | unknown",
    "gen_kl_error | kl_sampler",
    "policy_kl_error | kl_sampler",
    "probs_ratio | ratio_mean",
    "probs_ratio_max | ratio_max",
    "grad_norm | gradient_norm",
    "lr | learning_rate",
    "loss | loss",
    "mean_gen_tokens_per_sample | length_mean",
    "max_gen_tokens_per_sample | length_max",
    "truncation_rate | truncated_share",
    "natural_termination_rate | truncated_share | | complement",
    "avg_trajectory_age | lag",
)
SKYRL = _keys(
    "reward/avg_raw_reward | reward_mean | raw",
    "reward/mean_positive_reward | reward_mean | shaped",
    "eval/*/avg_score | eval_reward",
    "reward/num_zero_variance_filtered | dropped_groups",
    "policy/policy_entropy | entropy | exact",
    "loss/avg_kl | kl_reference | unknown",
    "policy/policy_kl | kl_reference | unknown",
    "policy/rollout_train_logprobs_abs_diff_mean | sampler_difference | log p",
    "policy/loss_metrics/clip_ratio | clip_share | tokens",
    "policy/grad_norm | gradient_norm",
    "policy/policy_lr | learning_rate",
    "policy/policy_loss | loss",
    "generate/avg_num_tokens | length_mean",
    "async/staleness_mean | lag",
    "async/staleness_max | lag_max",
)
SLIME = _keys(
    "rollout/raw_reward | reward_mean | raw",
    "rollout/rewards | reward_mean | normalised",
    "eval/*-truncated_ratio | -",
    "eval/* | eval_reward",
    "rollout/entropy | entropy | exact",
    "kl_loss | kl_reference | unknown",
    "ppo_kl | kl_update",
    "train_rollout_logprob_abs_diff | sampler_difference | log p",
    "pg_clipfrac | clip_share | tokens",
    "grad_norm | gradient_norm",
    "lr-pg_0 | learning_rate",
    "loss | loss",
    "rollout/response_len/mean | length_mean",
    "rollout/response_len/max | length_max",
    "rollout/truncated_ratio | truncated_share",
)
OPEN_INSTRUCT = _keys(
    "scores | reward_mean | raw",
    "objective/verifiable_reward | reward_mean | raw",
    "objective/verifiable_correct_rate | -",
    "eval/scores | eval_reward",
    "policy/entropy_avg | entropy | exact",
    "objective/kl3_avg | kl_reference | k3",
    "objective/kl_avg | kl_reference | k1",
    "objective/kl0_avg | kl_reference | k1",
    "loss/kl_avg | kl_reference | unknown",
    "debug/vllm_local_reverse_kl | kl_sampler",
    "debug/vllm_vs_local_logprob_diff_mean | sampler_difference | log p",
    "val/ratio | ratio_mean",
    "policy/clipfrac_avg | clip_share | tokens",
    "optim/grad_norm | gradient_norm",
    "lr | learning_rate",
    "loss/policy_avg | loss",
    "val/sequence_lengths | length_mean",
    "val/stop_rate | truncated_share | | complement",
)
TINKER = _keys(
    "env/all/reward/total | reward_mean | raw",
    "reward/total | reward_mean | raw",
    "reward/mean | reward_mean | raw",
    "test/env/all/reward/total | eval_reward",
    "env/all/by_group/frac_all_good | solved_all_share | groups",
    "env/all/by_group/frac_all_bad | solved_none_share | groups",
    "env/all/by_group/frac_mixed | silent_share | groups | complement",
    "optim/entropy | entropy | sampled −log p",
    "kl_policy_base | kl_reference | unknown",
    "optim/kl_sample_train_v1 | kl_sampler",
    "optim/kl_sample_train_v2 | kl_sampler",
    "optim/lr | learning_rate",
    "env/all/ac_tokens_per_turn | length_mean",
    "stop/max_tokens | truncated_share",
)
AREAL = _keys(
    "rollout/reward | reward_mean | raw",
    "grpo_actor/task_reward/avg | reward_mean | raw",
    "ppo_actor/task_reward/avg | reward_mean | raw",
    "eval-rollout/reward | eval_reward",
    "eval/reward | eval_reward",
    "*_actor/update/entropy/avg | entropy | exact",
    "*_actor/entropy/avg | entropy | exact",
    "*_actor/approx_kl/avg | kl_update",
    "*_actor/behave_approx_kl/avg | kl_sampler",
    "*_actor/behave_imp_weight/avg | ratio_mean",
    "*_actor/behave_imp_weight/max | ratio_max",
    "*_actor/clip_ratio/avg | clip_share | tokens",
    "*_actor/grad_norm | gradient_norm",
    "*_actor/lr | learning_rate",
    "*_actor/actor_loss/avg | loss",
    "*_actor/seq_len/avg | length_mean",
    "*_actor/seq_len/max | length_max",
    "*_actor/no_eos_ratios/avg | truncated_share",
)
DELPHIC = _keys(
    "reward_mean | reward_mean | raw",
    "reward_std_within | reward_std | within groups",
    "eval_accuracy | eval_reward",
    "silent_share | silent_share | groups",
    "silent_share_expected | silent_share_expected",
    "refill_dropped_groups | dropped_groups",
    "advantage_variance | advantage_variance",
    "entropy | entropy | exact",
    "kl_reference | kl_reference | k3",
    "kl_behaviour_learned | kl_update",
    "ratio_max_learned | ratio_max",
    "masked_negative_learned | clip_low_share",
    "masked_positive_learned | clip_high_share",
    "gradient_norm | gradient_norm",
    "update_norm | update_norm",
    "learning_rate | learning_rate",
    "length_mean | length_mean",
    "length_mean_terminated | length_terminated_mean",
    "truncated_share | truncated_share",
    "lag | lag",
    "lag_max | lag_max",
    "reward/* | reward/*",
)
GENERIC = _keys(
    *(f"{name} | reward_mean" for name in ("reward_mean", "reward", "reward_avg", "mean_reward", "avg_reward", "reward/mean", "rewards/mean", "train/reward", "rewards", "score", "return", "accuracy")),
    *(f"{name} | eval_reward" for name in ("eval_reward", "eval_acc", "eval_accuracy", "val_reward", "val_acc", "test_acc", "test_reward", "eval/reward", "val/reward", "heldout_reward", "true_reward")),
    *(f"{name} | reward_std | unknown" for name in ("reward_std", "std_reward")),
    *(f"{name} | silent_share | groups" for name in ("silent_share", "frac_reward_zero_std", "zero_std_frac")),
    "silent_share_expected | silent_share_expected",
    *(f"{name} | entropy | unknown" for name in ("entropy", "entropy_avg", "entropy_mean", "policy_entropy", "mean_entropy")),
    *(f"{name} | kl_reference | unknown" for name in ("kl_reference", "kl", "kl_loss", "kl_ref", "kl_mean", "ref_kl")),
    *(f"{name} | kl_update" for name in ("kl_update", "ppo_kl", "approx_kl")),
    "kl_sampler | kl_sampler",
    "sampler_difference | sampler_difference | log p",
    *(f"{name} | ratio_mean" for name in ("ratio_mean", "policy_ratio", "ratio")),
    "ratio_max | ratio_max",
    *(f"{name} | clip_share | tokens" for name in ("clip_share", "clip_frac", "clipfrac", "clip_fraction", "clip_ratio")),
    *(f"{name} | gradient_norm" for name in ("gradient_norm", "grad_norm")),
    "update_norm | update_norm",
    *(f"{name} | learning_rate" for name in ("learning_rate", "lr")),
    "loss | loss",
    *(f"{name} | length_mean" for name in ("length_mean", "avg_response_len", "response_length", "mean_length", "completion_length", "avg_length", "length")),
    *(f"{name} | truncated_share" for name in ("truncated_share", "truncated", "clipped_ratio", "truncation_rate")),
    *(f"{name} | lag" for name in ("lag", "staleness")),
    "advantage_variance | advantage_variance",
    "reward/* | reward/*",
)  # fmt: skip

FRAMEWORKS = (
    Framework("ms-swift", ("memory(GiB)", "train_speed(iter/s)", "global_step/max_steps"), TRL),
    Framework(
        "trl",
        ("frac_reward_zero_std", "completions/mean_length", "completions/clipped_ratio", "completion_length", "num_tokens", "clip_ratio/region_mean", "rewards/*/mean", "reward_std", "train_runtime"),
        TRL,
    ),
    Framework("trinity", ("experience_pipeline/*", "sample/model_version/mean", "rollout/model_version", "explorer/*"), TRINITY + VERL),
    Framework(
        "verl",
        ("critic/score/mean", "critic/rewards/mean", "actor/pg_loss", "actor/pg_clipfrac", "actor/ppo_kl", "response_length/clip_ratio", "global_seqlen/mean", "perf/throughput", "timing_s/step"),
        VERL,
    ),
    Framework("openrlhf", ("actor_lr", "actor_grad_norm", "ppo_clip_ratio", "vllm_kl", "group_reward_std", "dynamic_filtering_pass_rate", "policy_loss", "response_length"), OPENRLHF),
    Framework("prime-rl", ("agg/all/*", "mismatch_kl/all/mean", "is_masked/mean", "reward/all/mean", "entropy/all/mean", "off_policy/mean"), PRIME),
    Framework("nemo-rl", ("baseline_reward/pct_0", "gen_kl_error", "token_mult_prob_error", "mean_gen_tokens_per_sample", "approx_entropy", "natural_termination_rate"), NEMO),
    Framework("skyrl", ("reward/avg_raw_reward", "policy/policy_entropy", "policy/policy_lr", "generate/avg_num_tokens", "policy/loss_metrics/clip_ratio"), SKYRL),
    Framework("slime", ("rollout/raw_reward", "lr-pg_0", "train_rollout_logprob_abs_diff", "rollout/response_len/*", "rollout/zero_std/*"), SLIME),
    Framework("open-instruct", ("objective/verifiable_reward", "objective/verifiable_correct_rate", "val/sequence_lengths", "policy/clipfrac_avg", "debug/vllm_vs_local_logprob_diff_mean"), OPEN_INSTRUCT),
    Framework("tinker-cookbook", ("env/all/reward/total", "env/all/by_group/frac_mixed", "progress/batch", "optim/kl_sample_train_v1", "progress/done_frac", "env/all/ac_tokens_per_turn"), TINKER),
    Framework("areal", ("grpo_actor/*", "ppo_actor/*", "timeperf/*"), AREAL),
    Framework("delphic", ("reward_std_within", "learned_share", "left_out_share", "masked_positive_learned", "objective_learned"), DELPHIC),
)  # fmt: skip


def bare(key: str) -> str:
    """A key without `train/` in front, as exports and trackers add it."""
    return key.removeprefix("train/")


FORMS = {"trainer_state": "trl", "transformers-console": "trl", "verl-console": "verl", "areal-console": "areal"}


def recognise(keys: list[str], form: str = "") -> Framework:
    """The framework with the most marks among the keys (two at least, or one of one's own), else the one that writes this form of
    file, else the generic one."""
    names = [bare(key) for key in keys]
    best, most = Framework("generic", (), GENERIC), 1
    for framework in FRAMEWORKS:
        count = sum(any(fnmatchcase(name, mark) for name in names) for mark in framework.marks)
        if count > most or (count == 1 and most == 1 and best.name == "generic" and _own(framework, names)):
            best, most = framework, max(count, 1)
    if best.name == "generic" and form in FORMS:
        return next(framework for framework in FRAMEWORKS if framework.name == FORMS[form])
    return best


def _own(framework: Framework, names: list[str]) -> bool:
    """Whether a mark with a slash, which nobody else uses, is there."""
    return any("/" in mark and fnmatchcase(name, mark) for mark in framework.marks for name in names)


def assign(framework: Framework, keys: list[str]) -> list[tuple[str, Key]]:
    """[(source key, its meaning)], in the order in which keys for one column are preferred; `reward/*` with the function's name."""
    names = {bare(key): key for key in reversed(keys)}
    out: list[tuple[str, Key]] = []
    taken: set[str] = set()
    for rule in framework.keys:
        for name, key in names.items():
            if key in taken or not (name == rule.source or ("*" in rule.source and fnmatchcase(name, rule.source))):
                continue
            taken.add(key)
            canonical = rule.canonical
            if canonical == COMPONENT + "*":
                head, _, tail = rule.source.partition("*")
                canonical = COMPONENT + name[len(head) : len(name) - len(tail) or None]
            if canonical != "-":
                out.append((key, Key(key, canonical, rule.kind, rule.change)))
    return out
