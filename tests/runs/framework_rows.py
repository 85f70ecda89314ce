"""One row of each framework's log, in its keys, and what it has to be read as: column → (kind, value)."""

from __future__ import annotations

ROWS: dict[str, tuple[dict[str, float], dict[str, tuple[str, float]]]] = {
    "trl": (
        {"reward": 0.5, "reward_std": 0.2, "frac_reward_zero_std": 0.25, "completions/mean_length": 90.0, "completions/clipped_ratio": 0.1, "kl": 0.01, "entropy": 0.8, "clip_ratio/region_mean": 0.02, "rewards/acc/mean": 0.5, "grad_norm": 1.0},
        {"reward_mean": ("raw", 0.5), "kl_reference": ("k3", 0.01), "silent_share": ("groups", 0.25), "reward_std": ("unknown", 0.2), "reward/acc": ("", 0.5), "truncated_share": ("", 0.1), "clip_share": ("tokens", 0.02)},
    ),
    "ms-swift": ({"reward": 0.5, "memory(GiB)": 30.0, "train_speed(iter/s)": 0.1, "completions/mean_length": 80.0}, {"reward_mean": ("raw", 0.5), "length_mean": ("", 80.0)}),
    "verl": (
        {"critic/score/mean": 0.6, "critic/rewards/mean": 0.5, "actor/ppo_kl": -0.001, "actor/kl_loss": 0.02, "actor/entropy": 0.3, "response_length/clip_ratio": 0.2, "actor/pg_clipfrac": 0.01, "actor/pg_clipfrac_lower": 0.9, "rollout_corr/kl": 0.002},
        {"reward_mean": ("raw", 0.6), "kl_update": ("", -0.001), "kl_reference": ("unknown", 0.02), "clip_share": ("tokens", 0.01), "truncated_share": ("", 0.2), "kl_sampler": ("", 0.002)},
    ),
    "trinity": ({"experience_pipeline/group_advantages/reward_mean/mean": 0.4, "experience_pipeline/filtered_count": 3.0, "actor/entropy_loss": 0.2, "sample/model_version/mean": 4.0}, {"reward_mean": ("raw", 0.4), "dropped_groups": ("", 3.0), "entropy": ("exact", 0.2)}),
    "openrlhf": ({"train/reward": 0.4, "train/group_reward_std": 0.1, "train/ppo_kl": 0.01, "train/kl": 0.03, "train/vllm_kl": 0.002, "train/actor_lr": 1e-6, "train/ppo_clip_ratio": 0.05}, {"reward_mean": ("raw", 0.4), "reward_std": ("within groups", 0.1), "kl_update": ("", 0.01), "kl_reference": ("unknown", 0.03), "kl_sampler": ("", 0.002)}),
    "prime-rl": ({"train/agg/all/math/reward/mean": 0.4, "train/agg/effective/math/reward/mean": 0.6, "train/agg/all/math/solved_none": 0.3, "train/agg/all/math/solved_all": 0.1, "mismatch_kl/all/mean": 0.001, "is_masked/mean": 0.02, "off_policy/mean": 1.5}, {"reward_mean": ("raw", 0.4), "solved_none_share": ("groups", 0.3), "kl_sampler": ("", 0.001), "lag": ("", 1.5)}),
    "nemo-rl": ({"train/reward": 0.4, "train/filtered_reward": 0.5, "train/baseline_reward/pct_0": 40.0, "train/natural_termination_rate": 0.9, "train/gen_kl_error": 0.001, "train/approx_entropy": 0.5}, {"reward_mean": ("raw", 0.4), "solved_none_share": ("samples", 0.4), "truncated_share": ("", 0.1), "entropy": ("weighted −log p", 0.5)}),
    "skyrl": ({"reward/avg_raw_reward": 0.4, "policy/policy_entropy": 0.5, "policy/policy_lr": 1e-6, "async/staleness_mean": 2.0, "generate/avg_num_tokens": 300.0}, {"reward_mean": ("raw", 0.4), "lag": ("", 2.0), "length_mean": ("", 300.0)}),
    "slime": ({"rollout/raw_reward": 0.4, "rollout/rewards": 0.0, "train/lr-pg_0": 1e-6, "train/train_rollout_logprob_abs_diff": 0.01, "train/ppo_kl": 0.0, "rollout/response_len/mean": 200.0}, {"reward_mean": ("raw", 0.4), "sampler_difference": ("log p", 0.01), "kl_update": ("", 0.0)}),
    "open-instruct": ({"objective/verifiable_reward": 4.0, "val/sequence_lengths": 300.0, "policy/clipfrac_avg": 0.02, "val/stop_rate": 0.9}, {"reward_mean": ("raw", 4.0), "truncated_share": ("", 0.1)}),
    "tinker-cookbook": ({"env/all/reward/total": 0.7, "env/all/by_group/frac_mixed": 0.4, "optim/entropy": 0.2, "optim/kl_sample_train_v1": 0.001, "progress/batch": 3.0}, {"reward_mean": ("raw", 0.7), "silent_share": ("groups", 0.6), "entropy": ("sampled −log p", 0.2), "kl_sampler": ("", 0.001)}),
    "areal": ({"rollout/reward": 0.2, "grpo_actor/entropy/avg": 0.4, "grpo_actor/approx_kl/avg": 0.0, "grpo_actor/behave_approx_kl/avg": 0.001, "timeperf/rollout": 1.0}, {"reward_mean": ("raw", 0.2), "entropy": ("exact", 0.4), "kl_sampler": ("", 0.001)}),
    "delphic": ({"reward_mean": 0.3, "reward_std_within": 0.2, "eval_accuracy": 0.4, "learned_share": 0.8, "left_out_share": 0.0, "silent_share": 0.2}, {"reward_mean": ("raw", 0.3), "reward_std": ("within groups", 0.2), "eval_reward": ("", 0.4)}),
    "generic": ({"reward_avg": 0.3, "entropy_avg": 0.5, "avg_response_len": 200.0, "kl_loss": 0.1}, {"reward_mean": ("", 0.3), "entropy": ("unknown", 0.5), "length_mean": ("", 200.0), "kl_reference": ("unknown", 0.1)}),
}  # fmt: skip
