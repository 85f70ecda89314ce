"""Any delphic objective inside TRL's GRPOTrainer, and runs of TRL in delphic's format.

    trainer = DelphicGRPOTrainer(objective="rec_ring_nois", model=…, reward_funcs=…, args=GRPOConfig(…), …)
    Recorder("runs/mine").attach(trainer)
    trainer.train()

TRL samples, rewards and steps as it always does; the advantages and the loss are the objective's. Its own loss is
computed for its metrics and not used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback
from trl import GRPOTrainer

from delphic.objective import Objective, StepInputs, Totals, build, coefficients, prepare, token_weights
from delphic.plugins.host import refuse_missing, warn_untested
from delphic.plugins.trl_diagnose import DelphicDiagnoseCallback
from delphic.plugins.trl_probe import DelphicProbeCallback
from delphic.randomness import Purpose, stream
from delphic.rollouts import Rollouts

__all__ = ["DelphicDiagnoseCallback", "DelphicGRPOTrainer", "DelphicProbeCallback", "Recorder"]

TESTED = "1.16.0"


class DelphicGRPOTrainer(GRPOTrainer):
    """TRL's GRPOTrainer with a delphic objective.

    Args:
        objective: a preset's name, or a table of choices (docs/objectives.md). `{"preset": "grpo", "scale_epsilon":
            1e-4}` is TRL's own GRPO.

    Raises:
        UserError: an objective that TRL cannot serve, by the name of the missing piece.
    """

    def __init__(self, *args: Any, objective: str | Mapping[str, Any] | Objective = "grpo", **kwargs: Any) -> None:
        goal = objective if isinstance(objective, Objective) else build(objective)
        refuse_missing(goal, "TRL")
        warn_untested("trl", TESTED)
        self.objective = goal
        config = kwargs.get("args")
        if config is not None:
            _check(config)
            if goal.needs_reference and config.beta == 0:
                config.beta = goal.kl_coefficient  # TRL loads a reference model only then
        self._captured_logps: torch.Tensor | None = None
        self._captured_rewards: torch.Tensor | None = None
        super().__init__(*args, **kwargs)

    # -- advantages --------------------------------------------------------------------------------------------

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._captured_rewards = super()._calculate_rewards(*args, **kwargs)
        return self._captured_rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        assert self._captured_rewards is not None
        rewards = weighted_rewards(self._captured_rewards, self.reward_weights)
        group_size = self.num_generations if self.model.training else self.num_generations_eval
        mask = loss_mask(output)
        lengths = self.accelerator.gather(mask.sum(1)).cpu().numpy().astype(np.int64)
        cut = self.accelerator.gather(self._truncated(output)).cpu().numpy()
        rows = np.arange(len(rewards))
        priority = np.array([stream(self.args.seed, Purpose.DROP, self._step, int(row)).random() for row in rows])
        prepared = prepare(
            self.objective,
            StepInputs(
                rewards=rewards,
                groups=rows // group_size,  # TRL keeps a prompt's completions together, over all processes
                lengths=lengths,
                truncated=cut,
                max_length=self.max_completion_length,
                priority=priority,
            ),
        )
        count = mask.shape[0]
        here = slice(self.accelerator.process_index * count, (self.accelerator.process_index + 1) * count)
        for name, values in (
            ("advantages", prepared.coefficient),
            ("kept", prepared.kept),
            ("penalised", prepared.penalised),
        ):
            output[name] = torch.from_numpy(values[here]).to(mask.device, torch.float32)
        return output

    def _truncated(self, output: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """[N] whether the last token is no end token."""
        last = output["completion_mask"].sum(1).long().clamp(min=1) - 1
        final = output["completion_ids"].gather(1, last[:, None])[:, 0]
        return ~torch.isin(final, torch.tensor(end_tokens(self), device=final.device))

    # -- loss --------------------------------------------------------------------------------------------------

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._captured_logps = result[0]
        return result

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        super()._compute_loss(model, inputs)  # for the host's metrics, and for its forward pass
        logp = self._captured_logps
        assert logp is not None
        now, mask = logp.detach().float(), loss_mask(inputs)
        behaviour = inputs.get("sampling_per_token_logps", inputs.get("old_per_token_logps"))
        behaviour = now if behaviour is None else behaviour.float()
        zero = torch.zeros_like(now)
        reference = inputs.get("ref_per_token_logps")
        c = coefficients(
            self.objective,
            inputs["advantages"][:, None],
            inputs["penalised"][:, None],
            torch.where(mask > 0, now - behaviour, zero),
            mask,
            None if reference is None else torch.where(mask > 0, now - reference.float(), zero),
        )
        totals = self._totals(inputs)
        kept = inputs["kept"][:, None]
        weight = token_weights(mask, kept, self.objective.aggregation, totals, self.max_completion_length)
        mode = "train" if self.model.training else "eval"
        stopped = (~c.learns & (mask > 0)).sum() / mask.sum().clamp(min=1)
        self._metrics[mode]["delphic/masked_share"].append(self.accelerator.gather(stopped).mean().item())
        # gradients are averaged over processes, the normaliser is that of all of them
        return -(weight * (c.policy + c.penalty) * logp).sum() * self.accelerator.num_processes

    def _totals(self, inputs: Mapping[str, Any]) -> Totals:
        """Completions and tokens of the whole optimiser step, over all processes: one normaliser, however it is cut."""
        window: list[Mapping[str, Any]] = [inputs]
        if self.model.training and self._buffered_inputs is not None:
            size = self.current_gradient_accumulation_steps
            start = (self._step % self.args.steps_per_generation) // size * size
            window = self._buffered_inputs[start : start + size]
        completions = sum(float(part["kept"].sum()) for part in window)
        tokens = sum(float((loss_mask(part) * part["kept"][:, None]).sum()) for part in window)
        both = self.accelerator.gather(torch.tensor([[completions, tokens]], device=self.accelerator.device)).sum(0)
        return Totals(int(both[0]), int(both[1]))


def _check(config: Any) -> None:
    """Settings of TRL that would change the objective behind its back, or that leave no place for it."""
    from delphic.errors import UserError

    if getattr(config, "use_liger_kernel", False):
        raise UserError("TRL's use_liger_kernel fuses its own loss; delphic's objectives need it off")
    if getattr(config, "top_entropy_quantile", 1.0) < 1.0:
        raise UserError("TRL's top_entropy_quantile changes the loss; leave it at 1.0 with a delphic objective")
    spread = config.steps_per_generation
    if spread is not None and config.gradient_accumulation_steps > spread:
        raise UserError(
            f"gradient_accumulation_steps = {config.gradient_accumulation_steps} spans several generations of "
            f"{spread} steps; the normaliser of the step would not be known in time"
        )


def end_tokens(trainer: GRPOTrainer) -> list[int]:
    """Ids after which a completion counts as ended."""
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    return [*trainer.eos_token_ids, tokenizer.pad_token_id]


def weighted_rewards(rewards_NK: torch.Tensor, weights: torch.Tensor) -> np.ndarray:
    """[N] float64 weighted sum over the functions that apply (None arrives as NaN); NaN where none does."""
    rewards = rewards_NK.double().cpu().numpy()
    total = np.nansum(rewards * weights.double().cpu().numpy(), axis=1)
    total[np.isnan(rewards).all(axis=1)] = np.nan
    return total


def loss_mask(inputs: Mapping[str, Any]) -> torch.Tensor:
    """[N, T] float: completion tokens that the policy wrote."""
    mask = inputs["completion_mask"]
    if "tool_mask" in inputs:
        mask = mask * inputs["tool_mask"]
    return mask.float()


class Recorder(TrainerCallback):
    """Writes a TRL run in delphic's format: `metrics.jsonl` with TRL's keys, `rollouts/step_*.parquet`.

    Works with TRL's own GRPOTrainer too.
    """

    def __init__(self, output: str | Path) -> None:
        self.output = Path(output)
        (self.output / "rollouts").mkdir(parents=True, exist_ok=True)
        self.rewards: torch.Tensor | None = None

    def attach(self, trainer: GRPOTrainer) -> Recorder:
        """Register with a trainer and watch its completions; returns itself."""
        self.trainer = trainer
        trainer.add_callback(self)
        reward, generate = trainer._calculate_rewards, trainer._generate_and_score_completions

        def watch_rewards(*args: Any, **kwargs: Any) -> torch.Tensor:
            self.rewards = reward(*args, **kwargs)
            return self.rewards

        def watch(inputs: Any) -> dict[str, Any]:
            output = generate(inputs)
            if trainer.model.training and trainer.accelerator.num_processes == 1:
                self._rollouts(output).write(self._path(), {"source": "trl"})
            return output

        trainer._calculate_rewards, trainer._generate_and_score_completions = watch_rewards, watch
        return self

    def _path(self) -> Path:
        return self.output / "rollouts" / f"step_{self.trainer.state.global_step + 1:06d}.parquet"

    def _rollouts(self, output: Mapping[str, Any]) -> Rollouts:
        trainer, step = self.trainer, self.trainer.state.global_step
        assert self.rewards is not None
        n = output["completion_ids"].shape[0]
        masks = output["completion_mask"].bool().cpu()
        written = loss_mask(output).bool().cpu()
        logps = output.get("sampling_per_token_logps", output.get("old_per_token_logps"))
        empty = np.zeros(0, dtype=np.float32)
        tokens = [output["completion_ids"][i].cpu()[masks[i]].numpy().astype(np.int32) for i in range(n)]
        prompts = [
            output["prompt_ids"][i].cpu()[output["prompt_mask"][i].bool().cpu()].numpy().astype(np.int32)
            for i in range(n)
        ]
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        ended = [bool(len(t)) and int(t[-1]) in end_tokens(trainer) for t in tokens]
        components = self.rewards.double().cpu().numpy()
        return Rollouts(
            group=step * (1 << 20) + np.arange(n) // trainer.num_generations,
            prompt_tokens=prompts,
            tokens=tokens,
            loss_mask=[written[i][masks[i]].numpy() for i in range(n)],
            behaviour_logp=[empty if logps is None else logps[i].float().cpu()[masks[i]].numpy() for i in range(n)],
            entropy=[empty] * n,
            reward=weighted_rewards(self.rewards, trainer.reward_weights),
            version=np.full(n, step, dtype=np.int64),
            truncated=~np.array(ended),
            problem=np.full(n, -1, dtype=np.int64),
            row=np.arange(n, dtype=np.int64),
            value=np.full(n, np.nan),
            prompt=tokenizer.batch_decode(prompts, skip_special_tokens=False),
            completion=tokenizer.batch_decode(tokens, skip_special_tokens=True),
            components={name: components[:, k] for k, name in enumerate(trainer.reward_func_names)},
        )

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs and state.is_world_process_zero:
            row = {"step": state.global_step, **{k: v for k, v in logs.items() if isinstance(v, int | float)}}
            with (self.output / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({k: v for k, v in row.items() if v == v}) + "\n")
