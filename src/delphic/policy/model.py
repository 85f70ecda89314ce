"""Loading a causal language model, and its logits at chosen positions only."""

from __future__ import annotations

import inspect
import zlib
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils import logging as transformers_logging

from delphic.errors import UserError

transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()


class Policy:
    """A causal LM with its tokenizer.

    Attributes:
        model: any `transformers` causal LM, in eval mode (no dropout: what is sampled is what is scored).
        eos: token ids that end a completion.
        context: longest sequence the model takes, tokens, or None.
        truncated_head: whether logits at chosen positions can be had from the last hidden state.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        generation = getattr(model, "generation_config", None)
        eos = getattr(generation, "eos_token_id", None)
        ids = eos if isinstance(eos, list) else [eos]
        self.eos = {int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None}
        self.context: int | None = getattr(model.config, "max_position_embeddings", None)
        # transformers renames the argument; ask the model which name it takes
        takes = inspect.signature(model.forward).parameters
        self.cache_argument = "cache" if "cache" in takes else "past_key_values"
        self.truncated_head = self._head_is_linear()

    def _head_is_linear(self) -> bool:
        """Compare base model + output embedding with the model's own logits once: soft-capped or scaled heads differ."""
        head = self.model.get_output_embeddings()
        if head is None or self.model.base_model is self.model:
            return False
        probe = torch.arange(3).unsqueeze(0) % self.model.config.get_text_config().vocab_size
        with torch.no_grad():
            direct = self.model(input_ids=probe, use_cache=False).logits
            hidden = self.model.base_model(input_ids=probe, use_cache=False).last_hidden_state
            return bool(torch.equal(head(hidden), direct))

    def hidden(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[N, L, D] last hidden states of right-padded rows; causal attention keeps padding out of real positions."""
        return self.model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state

    def logits_at(self, input_ids: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """[M, V] logits at the M positions where `chosen` [N, L] is true, in row-major order."""
        if self.truncated_head:
            return self.model.get_output_embeddings()(self.hidden(input_ids)[chosen])
        return self.model(input_ids=input_ids, use_cache=False).logits[chosen]

    def encode(self, text: str) -> np.ndarray:
        """Token ids of a prompt, with the special tokens that the tokenizer itself adds, once."""
        return np.array(self.tokenizer(text)["input_ids"], dtype=np.int32)

    def decode(self, tokens: np.ndarray) -> str:
        return self.tokenizer.decode(tokens.tolist(), skip_special_tokens=True)

    def tokens_containing(self, text: str) -> set[int]:
        """Ids of all tokens whose text contains `text` (for a stop string)."""
        return {i for i in range(len(self.tokenizer)) if text in self.tokenizer.decode([i])}

    def fingerprint(self) -> int:
        """CRC of all weights: equal fingerprints mean the sampler really has the learner's weights."""
        crc = 0
        for tensor in self.model.state_dict().values():
            crc = zlib.crc32(tensor.detach().contiguous().view(torch.uint8).numpy(), crc)
        return crc

    def parameters(self) -> dict[str, nn.Parameter]:
        """Trainable parameters by name; tied ones once."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}


def load_policy(path: str) -> Policy:
    """Load `builtin` or a local folder, in float32.

    Raises:
        UserError: the folder is missing, transformers cannot read it (with its reason), or not all layers are attention.
    """
    if path == "builtin":
        folder = Path(str(resources.files("delphic") / "assets" / "arithmetic"))
    else:
        folder = Path(path)
        if not folder.is_dir():
            raise UserError(f'model.path: there is no folder "{path}"; give a model folder, or "builtin"')
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers raises many kinds; all mean that the folder cannot be used
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f'model.path: "{path}" cannot be loaded as a causal language model: {reason}') from None
    if not all(hasattr(layer, "batch_repeat_interleave") for layer in DynamicCache(config=model.config).layers):
        raise UserError(
            f'model.path: "{path}" ({model.config.model_type}) has layers with a recurrent state; '
            "only models whose layers are all attention can be sampled"
        )
    return Policy(model, tokenizer)
