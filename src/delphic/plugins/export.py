"""A delphic config as another trainer's: TRL (a Python script) or verl (its command line).

Knows the hosts' names of settings only, and imports neither host. What a host has no setting for is listed in a
comment, never dropped in silence.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from delphic.config import RunConfig
from delphic.errors import UserError, nearest
from delphic.plugins.host import VERL_AGGREGATION, refuse_missing


def export(config: RunConfig, host: str) -> str:
    """The host's text for a config.

    Raises:
        UserError: an unknown host, or an objective that it cannot serve.
    """
    writers = {"trl": to_trl, "verl": to_verl}
    if host not in writers:
        raise UserError(f'export: there is no host "{host}"{nearest(host, writers)}')
    return writers[host](config)


def objective_choices(config: RunConfig) -> dict[str, Any]:
    """The objective as the choices that differ from the defaults, enough to build it again."""
    return config.objective.model_dump(mode="json", exclude_defaults=True)


def not_carried(config: RunConfig, host: str) -> list[str]:
    """Settings of this run that the host has no place for."""
    s, t, m = config.sampling, config.train, config.model
    out = []
    if m.lora_rank and host == "trl":
        out.append(f"LoRA of rank {m.lora_rank}: give the trainer a peft_config")
    if m.chat or m.system:
        out.append("the chat template and system message: give the data set's prompts as messages")
    if s.max_prompt_tokens and host == "trl":
        out.append(f"prompts longer than {s.max_prompt_tokens} tokens: leave them out of the data set")
    if config.trackers:
        out.append(f"trackers {', '.join(config.trackers)}")
    if t.sync_interval > 1 or t.sync_offset > 0:
        out.append(f"lag: sync_interval = {t.sync_interval}, sync_offset = {t.sync_offset}")
    if t.offline:
        out.append(f"offline learning from {t.offline}")
    if s.dynamic and host == "trl":
        out.append("refilling of silent groups (sampling.dynamic)")
    if s.stop:
        out.append(f"stop text {s.stop!r}")
    if s.order == "independent":
        out.append("prompts drawn independently (this host goes through reshuffled epochs)")
    if t.optimizer == "sgd":
        out.append(f"SGD with momentum {t.momentum}")
    return out


def to_trl(config: RunConfig) -> str:
    """A Python script around `delphic.plugins.trl.DelphicGRPOTrainer`."""
    refuse_missing(config.objective, "TRL")
    s, t = config.sampling, config.train
    schedule = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}[t.schedule]
    rows = s.prompts * s.completions
    if rows % t.minibatches:
        raise UserError(
            f"export: TRL splits the {rows} completions of a step evenly; train.minibatches = {t.minibatches} does not divide them"
        )
    settings: dict[str, Any] = {
        "output_dir": config.output,
        "seed": config.seed,
        "max_steps": t.steps * t.updates_per_step,
        "per_device_train_batch_size": rows // t.minibatches,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": t.minibatches,
        "num_iterations": t.passes,
        "num_generations": s.completions,
        "max_completion_length": s.max_new_tokens,
        "temperature": s.temperature,
        "top_p": s.top_p,
        "learning_rate": t.learning_rate,
        "lr_scheduler_type": schedule,
        "warmup_steps": t.warmup_steps,
        "adam_beta1": t.betas[0],
        "adam_beta2": t.betas[1],
        "weight_decay": t.weight_decay,
        "max_grad_norm": t.max_grad_norm,
        "beta": config.objective.kl_coefficient if config.objective.uses_kl_loss else 0.0,
        "disable_dropout": True,
        "bf16": config.model.dtype == "bfloat16",
        "gradient_checkpointing": config.model.gradient_checkpointing,
        "logging_steps": 1,
    }
    lines = [f"# {config.objective.name} in TRL, written by `delphic export`."]
    lines += [f"# Not carried over: {text}." for text in not_carried(config, "trl")]
    lines += [
        "from trl import GRPOConfig",
        "",
        "from delphic.plugins.trl import DelphicGRPOTrainer, Recorder",
        "",
        f"OBJECTIVE = {objective_choices(config)!r}",
        "ARGS = GRPOConfig(",
        *(f"    {name}={value!r}," for name, value in settings.items()),
        ")",
        "",
        "",
        "def make_trainer(model, dataset, reward_funcs, **kwargs):",
        '    """dataset: rows with a "prompt" column; reward_funcs: as in the delphic config."""',
        "    trainer = DelphicGRPOTrainer(",
        "        objective=OBJECTIVE, model=model, train_dataset=dataset, reward_funcs=reward_funcs, args=ARGS, **kwargs",
        "    )",
        "    Recorder(ARGS.output_dir).attach(trainer)",
        "    return trainer",
    ]
    return "\n".join(lines) + "\n"


def to_verl(config: RunConfig) -> str:
    """Command-line overrides for `verl.trainer.main_ppo`, with the registration that every worker needs."""
    goal, s, t = config.objective, config.sampling, config.train
    refuse_missing(goal, "verl")
    label = "delphic_objective"
    choices = {k: v for k, v in objective_choices(config).items() if not k.startswith("kl")}
    settings: dict[str, Any] = {
        "algorithm.adv_estimator": label,
        "actor_rollout_ref.actor.policy_loss.loss_mode": label,
        "actor_rollout_ref.actor.loss_agg_mode": VERL_AGGREGATION[goal.aggregation],
        "actor_rollout_ref.actor.use_kl_loss": goal.uses_kl_loss,
        "actor_rollout_ref.actor.kl_loss_coef": goal.kl_coefficient if goal.uses_kl_loss else 0.0,
        "actor_rollout_ref.actor.kl_loss_type": {"k2": "k2", "k3": "k3"}.get(goal.kl, "k3")
        + ("+" if goal.kl_corrected else ""),
        "data.train_batch_size": s.prompts,
        "actor_rollout_ref.rollout.n": s.completions,
        "data.max_response_length": s.max_new_tokens,
        "actor_rollout_ref.rollout.temperature": s.temperature,
        "actor_rollout_ref.rollout.top_p": s.top_p,
        "actor_rollout_ref.actor.ppo_mini_batch_size": s.prompts // t.minibatches,
        "actor_rollout_ref.actor.ppo_epochs": t.passes,
        "actor_rollout_ref.actor.grad_clip": t.max_grad_norm,
        "actor_rollout_ref.actor.optim.lr": t.learning_rate,
        "actor_rollout_ref.actor.optim.lr_warmup_steps": t.warmup_steps,
        "actor_rollout_ref.actor.optim.weight_decay": t.weight_decay,
        "trainer.total_training_steps": t.steps,
        "actor_rollout_ref.model.path": _model_folder(config),
        "actor_rollout_ref.model.enable_gradient_checkpointing": config.model.gradient_checkpointing,
    }
    if config.model.lora_rank:
        settings["actor_rollout_ref.model.lora_rank"] = config.model.lora_rank
        settings["actor_rollout_ref.model.lora_alpha"] = config.model.lora_alpha or 2 * config.model.lora_rank
    if s.max_prompt_tokens:
        settings["data.max_prompt_length"] = s.max_prompt_tokens
    if s.prompts % t.minibatches:
        raise UserError(
            f"export: verl splits prompts evenly; train.minibatches = {t.minibatches} does not divide {s.prompts}"
        )
    head = [f"# {goal.name} in verl, written by `delphic export`."]
    head += [f"# Not carried over: {text}." for text in not_carried(config, "verl")]
    head += [
        "# In a module that every worker imports (verl's VERL_USE_EXTERNAL_MODULES):",
        "#   from delphic.plugins.verl import register",
        f"#   register({choices!r}, name={label!r}, seed={config.seed})",
        "python -m verl.trainer.main_ppo \\",
    ]
    body = [f"    {name}={_hydra(value)}" for name, value in settings.items()]
    return "\n".join(head) + "\n" + " \\\n".join(body) + "\n"


def _model_folder(config: RunConfig) -> str:
    if config.model.path != "builtin":
        return config.model.path
    return str(resources.files("delphic") / "assets" / "arithmetic")


def _hydra(value: Any) -> str:
    return str(value) if not isinstance(value, bool) else ("True" if value else "False")
