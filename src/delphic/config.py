"""RunConfig: everything a run is made of. Frozen; read from TOML; every field documented; unknown keys refused."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from delphic.errors import UserError, nearest
from delphic.objective.objective import Objective
from delphic.objective.presets import build


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelConfig(Section):
    path: str = Field(
        "builtin", description='"builtin", a model folder, a GGUF file, or a hub name (org/model): any causal LM.'
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto = a GPU if there is one.")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Numbers the model computes with.")
    chat: bool = Field(
        False, description="Put each prompt into the model's chat template, as a user's message (messages always are)."
    )
    system: str = Field("", description="chat: a system message before each prompt.")
    lora_rank: int = Field(
        0, ge=0, le=4096, description="Train LoRA adapters of this rank (peft) instead of all weights; 0 = all."
    )
    lora_alpha: float = Field(0.0, ge=0, description="LoRA: the adapters' scale is alpha / rank; 0 = twice the rank.")
    lora_targets: tuple[str, ...] = Field(
        (), description="LoRA: names of the layers that get an adapter; empty = all linear ones but the head."
    )
    gradient_checkpointing: bool = Field(
        False, description="Keep no activations inside layers: less memory, a second forward pass, prompts not shared."
    )
    threads: int = Field(
        0, ge=0, description="CPU threads; 0 = torch's choice. Part of what makes a run bit-reproducible."
    )

    @model_validator(mode="after")
    def _adapters(self) -> ModelConfig:
        for key in ("lora_alpha", "lora_targets"):
            if getattr(self, key) and not self.lora_rank:
                raise ValueError(f"{key} is for adapters; set model.lora_rank, too, or leave it out")
        return self


TaskName = Literal["arithmetic", "file", "gsm8k", "math", "reasoning_gym", "tool_call"]


class TaskConfig(Section):
    name: TaskName = Field("arithmetic", description="Where problems come from; see docs/tasks.md.")
    low: int = Field(1, ge=0, description="arithmetic: smallest operand.")
    high: int = Field(20, ge=0, description="arithmetic: largest operand.")
    size: int = Field(5000, ge=1, description="arithmetic, reasoning_gym: number of training problems.")
    path: str | None = Field(
        None,
        description="JSONL, JSON, CSV (all may be .gz) or Parquet, relative to the config file, or org/name on the hub. gsm8k: also a folder with train.jsonl and test.jsonl; None = the hub's.",
    )
    split: str = Field("train", description="Hub datasets: the split to train on.")
    subset: str | None = Field(None, description="Hub datasets: the subset (configuration).")
    prompt_column: str | None = Field(
        None,
        description='Column with the problem: text, or chat messages; dots lead into nested columns. None = "prompt" (gsm8k: question, math: problem).',
    )
    answer_column: str | None = Field(
        None,
        description="Column with the gold answer; must be there in every row. None = none (gsm8k: answer; math: answer, or the box of solution; tool_call: the calls of the transcript).",
    )
    value_column: str | None = Field(None, description="file, gsm8k, math: column with V(x), for the oracle baseline.")
    tools_column: str = Field("tools", description="tool_call: column with the function schemas, where a row has one.")
    template: str = Field(
        "{prompt}",
        description="The prompt (the last user message of a chat); {prompt} and {any column} are replaced, {{ }} are braces.",
    )
    held_out_share: float = Field(
        0.2, ge=0, le=1, description="Share of rows held out, chosen by the seed; 1 = all, to evaluate only."
    )
    held_out_path: str | None = Field(None, description="A second file or hub dataset, held out instead of a share.")
    held_out_split: str | None = Field(None, description="Hub datasets: a split held out instead of a share.")
    unparsable: Literal["refuse", "skip"] = Field(
        "refuse", description="Rows whose gold answer a reward cannot parse: refuse the file, or leave them out."
    )
    answer_format: Literal["last", "strict"] = Field(
        "last",
        description="strict: only what follows #### (gsm8k) or stands in <answer> tags (reasoning_gym) is an answer; last: else also the last number or line.",
    )
    generator: str | None = Field(None, description="reasoning_gym: the generator's name.")
    parameters: dict[str, Any] = Field({}, description="reasoning_gym: table of the generator's own parameters.")
    shots: int = Field(0, ge=0, description="reasoning_gym: solved examples before each question.")
    rewards: tuple[str, ...] = Field(
        (),
        description='Reward functions: "exact_match", "last_number", "strict_number", "math_verify", or "module:function" (TRL signature); empty = the task\'s own. Modules are also looked up beside the config file.',
    )
    reward_weights: tuple[float, ...] = Field((), description="One weight a reward function; empty = all 1.")
    reward_timeout: float = Field(
        10.0,
        gt=0,
        description="Seconds per completion. math_verify, reasoning_gym: a slower one has reward 0; a module's function that is slower on average ends the run.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> TaskConfig:
        if self.reward_weights and len(self.reward_weights) != len(self.rewards):
            raise ValueError(
                f"reward_weights has {len(self.reward_weights)} entries for {len(self.rewards)} reward functions"
            )
        if self.name in ("file", "math", "tool_call") and not self.path:
            raise ValueError(f'name = "{self.name}" needs path')
        if self.name == "file" and not self.rewards:
            raise ValueError('name = "file" needs rewards: one "module:function" at least, or "exact_match"')
        if self.name == "reasoning_gym" and not self.generator:
            raise ValueError('name = "reasoning_gym" needs generator, such as "chain_sum"')
        return self


class SamplingConfig(Section):
    prompts: int = Field(16, ge=1, description="Prompts (groups) per step.")
    completions: int = Field(16, ge=1, description="Completions per prompt, G.")
    max_new_tokens: int = Field(8, ge=1, description="Length limit of a completion, tokens.")
    max_prompt_tokens: int = Field(
        0, ge=0, description="Leave out problems with longer prompts; 0 = leave out none: one too long ends the run."
    )
    temperature: float = Field(1.0, gt=0, description="Sampling temperature; the learner scores at the same one.")
    top_p: float = Field(
        1.0, gt=0, le=1, description="Nucleus; below 1 only where no importance weight needs the full support."
    )
    stop: str = Field("", description="A token whose text contains this ends the completion (besides the end token).")
    order: Literal["independent", "epochs"] = Field(
        "independent", description="Prompts drawn independently, or by reshuffled epochs."
    )
    dynamic: bool = Field(
        False, description="Refill silent groups with fresh prompts (DAPO), judged on the unshaped reward."
    )
    dynamic_attempts: int = Field(5, ge=1, description="Rounds of refilling before a step goes on with what it has.")
    oracle_samples: int = Field(0, ge=0, description="Extra completions per prompt that only estimate V(x).")
    batch_rows: int = Field(512, ge=1, description="Completions decoded at once; bounds the memory of sampling.")


class TrainConfig(Section):
    steps: int = Field(100, ge=1, description="Steps (rollout batches learned).")
    optimizer: Literal["adamw", "sgd"] = Field("adamw", description="adamw, or sgd with momentum.")
    learning_rate: float = Field(1e-4, ge=0, description="Peak learning rate.")
    betas: tuple[float, float] = Field((0.9, 0.999), description="adamw: decay of the first and second moment.")
    momentum: float = Field(0.0, ge=0, lt=1, description="sgd: momentum.")
    master_weights: bool = Field(
        True, description="model.dtype bfloat16: the optimiser keeps float32 weights, so that small updates add up."
    )
    weight_decay: float = Field(0.0, ge=0, description="Decoupled (adamw) or added to the gradient (sgd).")
    warmup_steps: int = Field(0, ge=0, description="Linear warm-up, optimiser updates.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="Decay to 0 over the run after the warm-up."
    )
    max_grad_norm: float = Field(1.0, gt=0, description="Gradient clipping, global norm.")
    minibatches: int = Field(
        1, ge=1, description="Optimiser updates per pass over a rollout batch (groups split at random)."
    )
    passes: int = Field(1, ge=1, description="Passes over each rollout batch.")
    token_budget: int = Field(
        16384, ge=1, description="Tokens (padding included) of one forward pass; never changes the gradient."
    )
    sync_interval: int = Field(1, ge=1, description="m: the sampler gets new weights every m steps.")
    sync_offset: int = Field(0, ge=0, description="n: rollouts are used n steps after they could have been.")
    offline: str | None = Field(
        None, description="A Parquet file or folder of recorded rollouts to learn from; nothing is sampled."
    )
    reference_every: int = Field(
        10,
        ge=0,
        description="Steps between measurements of the KL to the initial policy; 0 = only if the objective needs it.",
    )
    statistics_every: int = Field(
        0,
        ge=0,
        description="Steps between estimates of the gradient's noise from the step's own rollouts (c1, c2, c3, G*, …: docs/plan.md); 0 = none.",
    )
    estimate: bool = Field(
        True, description="Before the start: count memory, time a small probe, refuse what cannot fit."
    )
    value_learning_rate: float = Field(1e-2, gt=0, description="critic: learning rate of the value head (adamw).")
    forecast_every: int | None = Field(
        None,
        ge=0,
        description="Steps between forecasts of the reward and looks at stability (docs/live.md); None = a tenth of the steps, at least 10; 0 = none.",
    )
    stop_at_plateau: float = Field(
        0.0,
        ge=0,
        description="End the run once two forecasts in a row say, with 97.5 % confidence each, that the rest gains less reward than this; 0 = never. Prompts that wake up late are not foreseen.",
    )
    controller: Literal["none", "stability"] = Field(
        "none",
        description="stability: where the margin is below controller_margin, halve the sync interval, and where that is 1 the learning rate.",
    )
    controller_margin: float = Field(
        1.5, gt=1, description="controller: the least ratio of the largest stable learning rate to the present one."
    )

    @model_validator(mode="after")
    def _looks(self) -> TrainConfig:
        needs = {"stop_at_plateau": self.stop_at_plateau > 0, 'controller = "stability"': self.controller != "none"}
        for name, needed in needs.items():
            if needed and self.forecast_every == 0:
                raise ValueError(f"{name} decides at forecasts; leave out forecast_every = 0")
        return self

    @property
    def updates_per_step(self) -> int:
        return self.minibatches * self.passes


class EvaluationConfig(Section):
    every: int = Field(
        25, ge=0, description="Steps between evaluations on held-out problems; 0 = only before and after."
    )
    problems: int = Field(200, ge=0, description="Held-out problems; 0 = no evaluation.")
    samples: int = Field(4, ge=1, description="Completions per held-out problem, at the training temperature.")


class CheckpointConfig(Section):
    every: int = Field(25, ge=1, description="Steps between checkpoints.")
    keep: int = Field(2, ge=1, description="Checkpoints kept, the newest ones; the best one is kept besides.")


DEFAULT_OBJECTIVE = "grpo"


class RunConfig(Section):
    """One run. `objective` is a preset's name, or a table of choices (see docs/objectives.md)."""

    seed: int = Field(0, ge=0, lt=2**48, description="Decides every random number, with the step and the row.")
    output: str = Field("runs/run", description="Run folder, from where the command is given; never overwritten.")
    trackers: tuple[str, ...] = Field(
        (), description='Where the figures also go, through accelerate: "wandb", "tensorboard", "trackio", …'
    )
    objective: Objective = Field(
        default_factory=lambda: build(DEFAULT_OBJECTIVE), description="Preset name or table of choices."
    )
    model: ModelConfig = ModelConfig()
    task: TaskConfig = TaskConfig()
    sampling: SamplingConfig = SamplingConfig()
    train: TrainConfig = TrainConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @field_validator("objective", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return build(value) if isinstance(value, (str, Mapping)) else value

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        goal, sampling, train = self.objective, self.sampling, self.train
        if goal.group_relative and sampling.completions < 2 and train.offline is None:
            raise ValueError(
                f'sampling.completions = 1 leaves the group-relative objective "{goal.name}" nothing to compare; '
                "use 2 or more, or an objective without a group baseline (reinforce, a2c)"
            )
        if sampling.top_p < 1 and goal.needs_behaviour:
            raise ValueError(
                f'sampling.top_p = {sampling.top_p} cuts the support that the ratios of objective "{goal.name}" need; '
                "use top_p = 1, or an objective without importance weight, mask and quadratic term"
            )
        known_value = sampling.oracle_samples > 0 or self.task.value_column or train.offline
        if goal.baseline == "oracle" and not known_value:
            raise ValueError(
                'objective.baseline = "oracle" needs V(x): set sampling.oracle_samples >= 1 to estimate it, '
                "or task.value_column"
            )
        if train.minibatches > sampling.prompts:
            raise ValueError(
                f"train.minibatches = {train.minibatches} needs as many groups; sampling.prompts = {sampling.prompts}"
            )
        if sampling.dynamic and not goal.group_relative:
            raise ValueError("sampling.dynamic refills silent groups, which only a group-relative objective has")
        if goal.overlong_buffer > sampling.max_new_tokens:
            raise ValueError("objective.overlong_buffer is longer than sampling.max_new_tokens")
        if train.offline is not None and (train.sync_interval > 1 or train.sync_offset > 0):
            raise ValueError("train.offline fixes where the data come from; leave out sync_interval and sync_offset")
        if sampling.dynamic and train.offline is not None:
            raise ValueError("sampling.dynamic refills silent groups with fresh samples; train.offline samples nothing")
        if train.statistics_every:
            self._can_estimate_noise()
        return self

    def _can_estimate_noise(self) -> None:
        sampling, train = self.sampling, self.train
        if train.offline is not None or train.sync_interval > 1 or train.sync_offset > 0:
            raise ValueError(
                "train.statistics_every needs completions of the very policy that learns; "
                "leave out train.offline, train.sync_interval and train.sync_offset, or it"
            )
        if sampling.dynamic:
            raise ValueError(
                "train.statistics_every needs prompts as they are drawn; sampling.dynamic keeps those that carry a signal"
            )
        if sampling.completions < 4 or sampling.prompts < 3:
            raise ValueError(
                "train.statistics_every: c1, c2 and c3 need sampling.completions = 4 or more (‖g(x)‖² comes from two pairs "
                f"without a common completion) and sampling.prompts = 3 or more, got {sampling.completions} and "
                f"{sampling.prompts}"
            )

    def fingerprint(self) -> str:
        """Hash of everything that shapes the numbers of a run (not where they go)."""
        content = self.model_dump(mode="json", exclude={"output", "trackers"})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def locate(path: str, folder: Path) -> Path:
    """A path of the config: beside the config file if it is there, else from where the command was given."""
    beside = folder / path
    return beside if beside.exists() else Path(path)


def _merge(base: dict[str, Any], dotted: str, value: Any) -> None:
    *path, last = dotted.replace("-", "_").split(".")
    node = base
    for part in path:
        child = node.get(part)
        if isinstance(child, str) and part == "objective":
            child = {"preset": child}
        node[part] = child if isinstance(child, dict) else {}
        node = node[part]
    node[last] = value


def parse_value(text: str) -> Any:
    """A command-line value as TOML would read it; what is not TOML is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def load_config(path: Path, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Read a TOML file, apply `section.key` overrides, check everything.

    Raises:
        UserError: names the file, the key's path and the nearest valid key.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such config file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    for key, value in sorted((overrides or {}).items(), key=lambda item: item[0] != "objective"):  # a row, then choices
        if key.startswith("objective."):  # one choice changed leaves the others those of the row that would have run
            content.setdefault("objective", DEFAULT_OBJECTIVE)
        _merge(content, key, value)
    return make_config(content, str(path))


def make_config(content: Mapping[str, Any], where: str) -> RunConfig:
    """A RunConfig from nested dictionaries; errors begin with `where`."""
    _refuse_unknown(RunConfig, content, where, ())
    try:
        return RunConfig(**content)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except ValidationError as error:
        raise _first_mistake(error, where) from None


def make_sampling(content: Mapping[str, Any], where: str) -> SamplingConfig:
    """A SamplingConfig of its own, outside a run: no objective has a say in it."""
    try:
        return SamplingConfig(**content)
    except ValidationError as error:
        raise _first_mistake(error, where) from None


def _first_mistake(error: ValidationError, where: str) -> UserError:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    text = first["msg"].removeprefix("Value error, ")
    if first["type"] == "tuple_type":  # to whoever writes TOML it is a list
        text = text.replace("a valid tuple", 'a list, such as ["a", "b"]')
    if first["type"] != "value_error":
        text = f"{text[0].lower()}{text[1:]}, got {first['input']!r}"
    return UserError(f"{where}: {place + ': ' if place else ''}{text}")


def _refuse_unknown(model: type[BaseModel], content: Mapping[str, Any], where: str, path: tuple[str, ...]) -> None:
    for key, value in content.items():
        dotted = ".".join([*path, key])
        if key not in model.model_fields:
            names = [".".join([*path, name]) for name in model.model_fields]
            raise UserError(f"{where}: {dotted}: no such key{nearest(dotted, names)}")
        inner = model.model_fields[key].annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            if not isinstance(value, Mapping):
                raise UserError(f"{where}: {dotted} must be a table, got {value!r}")
            _refuse_unknown(inner, value, where, (*path, key))
