"""Loading any causal language model: the built-in one, a folder, a GGUF file, a hub name; with or without adapters."""

from __future__ import annotations

import os
import warnings
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from delphic.config import ModelConfig
from delphic.errors import UserError
from delphic.policy.model import Policy

transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()
# peft asks by the old name, which is nothing that a user could change
warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_policy(path: str, model: ModelConfig | None = None, adapters: Path | None = None, seed: int = 0) -> Policy:
    """Load a model for sampling and learning.

    Args:
        path: "builtin", a model folder, a folder of peft adapters (they are merged into their base), a `.gguf` file, or
            a hub name.
        model: how (device, dtype, chat, LoRA, checkpointing); its own `path` is not looked at.
        adapters: a folder of LoRA adapters to go on with; without it, fresh ones are drawn from `seed`.

    Raises:
        UserError: nothing is there, or transformers cannot read it (with its reason).
    """
    model = model or ModelConfig()
    dtype = DTYPES[model.dtype]
    causal, tokenizer = _read(path, dtype)
    causal = causal.to(_device(model.device))
    adapted = _adapt(causal, model, adapters, seed) if model.lora_rank else None
    policy = Policy(
        causal,
        tokenizer,
        adapted=adapted,
        chat=model.chat,
        system=model.system,
        shares_prefix=not model.gradient_checkpointing,  # the cache would be written a second time by the second pass
    )
    if model.gradient_checkpointing:
        _checkpoint(causal)
    return policy


def resolve(path: str, folder: Path) -> str:
    """A config's model path: beside the config file if something is there, else from where the command was given, else
    as it is. Absolute where it is local, so that saved adapters find their base from anywhere."""
    if path == "builtin":
        return path
    return next((str(p.resolve()) for p in (folder / path, Path(path)) if path and p.exists()), path)


def is_somewhere(path: str) -> bool:
    """Whether something is there, or the path could be a hub's name."""
    name = path.count("/") == 1 and not path.startswith((".", "/", "~")) and not path.endswith(".gguf")
    return path == "builtin" or (bool(path) and Path(path).exists()) or name


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError('model.device = "cuda", but torch sees no GPU here; use "cpu" or "auto"')
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def _read(path: str, dtype: torch.dtype) -> tuple[Any, Any]:
    if path == "builtin":
        path = str(Path(str(resources.files("delphic") / "assets" / "arithmetic")))
    if not is_somewhere(path):
        raise UserError(
            f'model.path: there is nothing at "{path}"; give a model folder, a .gguf file, a hub name (org/model), or "builtin"'
        )
    local = Path(path)
    try:
        if local.is_file():
            return _read_gguf(local, dtype)
        if (local / "adapter_config.json").is_file():
            return _merge(local, dtype)
        # from_pretrained(dtype=…) and not .to(dtype): the latter would also cast the rotary frequencies
        causal = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=local.exists())
        return causal, AutoTokenizer.from_pretrained(path, local_files_only=local.exists())
    except UserError:
        raise
    except Exception as error:  # transformers raises many kinds; all mean that it cannot be used
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if not local.exists() and isinstance(error, OSError):
            reason = f"there is no such folder, and the hub gave nothing ({reason})"
        raise UserError(f'model.path: "{path}" cannot be loaded as a causal language model: {reason}') from None


def _read_gguf(file: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """A plain model with a GGUF file's weights: the one that transformers returns remembers that it was quantised, and
    refuses to be saved or trained."""
    if file.suffix != ".gguf":
        raise UserError(f'model.path: "{file}" is a file, but no .gguf one; give the folder that it is in')
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise UserError("a GGUF model needs the gguf package: pip install gguf") from None
    quantised = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    plain = {k: v for k, v in quantised.config.to_dict().items() if k != "quantization_config"}
    config = type(quantised.config)(**plain)
    causal = AutoModelForCausalLM.from_config(config, dtype=dtype)
    causal.load_state_dict(quantised.state_dict())
    causal.generation_config.eos_token_id = tokenizer.eos_token_id
    return causal, tokenizer


def _merge(folder: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    from peft import PeftConfig, PeftModel

    base = str(PeftConfig.from_pretrained(str(folder)).base_model_name_or_path)
    causal, tokenizer = _read(base, dtype)
    return PeftModel.from_pretrained(causal, str(folder)).merge_and_unload(), tokenizer


def _adapt(causal: Any, model: ModelConfig, adapters: Path | None, seed: int) -> Any:
    """LoRA adapters put into the model's layers; the peft model around them, for saving and switching off."""
    try:
        from peft import LoraConfig, PeftModel, get_peft_model
    except ImportError:
        raise UserError("model.lora_rank needs peft: pip install 'delphic[train]'") from None
    if adapters is not None:
        return PeftModel.from_pretrained(causal, str(adapters), is_trainable=True)
    settings = LoraConfig(
        r=model.lora_rank,
        lora_alpha=model.lora_alpha or 2 * model.lora_rank,
        target_modules=list(model.lora_targets) or "all-linear",
        lora_dropout=0.0,  # what is sampled is what is scored
        task_type="CAUSAL_LM",
    )
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return get_peft_model(causal, settings)
    except ValueError as error:
        raise UserError(f"model.lora_targets: {str(error).splitlines()[0]}") from None


def _checkpoint(causal: Any) -> None:
    """Checkpoint the layers' activations, which transformers does for layers in training mode; what is inside them
    stays in evaluation mode, without dropout."""
    if not causal.supports_gradient_checkpointing:
        raise UserError(f"model.gradient_checkpointing: {type(causal).__name__} does not support it")
    enable = getattr(causal, "activation_checkpointing_enable", None) or causal.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    for module in causal.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True
