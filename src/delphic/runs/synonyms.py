"""Names that people give the columns of logs which no framework wrote, and of completions."""

from __future__ import annotations

from delphic.runs.keys import keys

STEPS = (
    "step", "_step", "training/global_step", "train/global_step", "global_step", "trainer/global_step", "train/step",
    "rollout/step", "training_step", "progress/batch", "wandb_step", "iteration", "epoch_step",
)  # fmt: skip
# of recorded completions: ids of groups, rewards, texts
GROUPS = ("group", "group_id", "group_idx", "uid", "prompt_id", "problem_id", "question_id", "example_id")
REWARDS = ("reward", "score", "total_reward", "rewards", "final_reward")
COMPLETIONS = ("completion", "output", "response")
GENERIC = keys(
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
