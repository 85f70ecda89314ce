"""Loading a causal language model, and its logits at chosen positions only."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from delphic.errors import UserError
from delphic.policy.cache import make_cache

transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()


@dataclass
class Prefix:
    """Token sequences that went through the model once, and can be repeated, selected and extended.

    cache: the model's keys and values, with graph where gradients are on; seen [N, W]: bool, which of its positions
    are no padding (that is on the left); last [N, D]: the states (see `Policy.states`) at each sequence's last token.
    """

    cache: Any
    seen: torch.Tensor
    last: torch.Tensor

    def select(self, rows: torch.Tensor) -> None:
        """Keep, repeat or reorder sequences, by their numbers [M]."""
        self.cache.batch_select_indices(rows)
        self.seen, self.last = self.seen[rows], self.last[rows]


class Policy:
    """A causal LM with its tokenizer.

    Attributes:
        model: any `transformers` causal LM, in eval mode (no dropout: what is sampled is what is scored).
        eos: token ids that end a completion.
        context: longest sequence the model takes, tokens, or None.
        truncated_head: whether logits at chosen positions can be had from the last hidden state.
        shares_prefix: whether its cache of a prompt can be repeated for the completions of a group.
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
        self.shares_prefix = all(hasattr(layer, "batch_select_indices") for layer in make_cache(model.config).layers)

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

    def states(self, input_ids: torch.Tensor, **extra: Any) -> torch.Tensor:
        """[N, L, D] what `logits` takes: the last hidden states or, where the head is more than a matrix, logits."""
        extra = {"use_cache": False, **extra}
        if self.truncated_head:
            return self.model.base_model(input_ids=input_ids, **extra).last_hidden_state
        return self.model(input_ids=input_ids, **extra).logits

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """[..., V] float32 logits of some of the `states`."""
        return (self.model.get_output_embeddings()(states) if self.truncated_head else states).float()

    def prefill(self, sequences: Sequence[np.ndarray]) -> Prefix:
        """Run token sequences [L_n] through the model, each once."""
        width = max(len(s) for s in sequences)
        padded = np.stack([np.pad(s, (width - len(s), 0)) for s in sequences])
        lengths = torch.tensor([len(s) for s in sequences])
        seen = torch.arange(width)[None, :] >= width - lengths[:, None]
        cache = make_cache(self.model.config)
        states = self.states(
            torch.from_numpy(padded).long(),
            attention_mask=seen.long(),
            position_ids=(seen.long().cumsum(-1) - 1).clamp(min=0),
            use_cache=True,
            **{self.cache_argument: cache},
            **({} if self.truncated_head else {"logits_to_keep": 1}),
        )
        return Prefix(cache, seen, states[:, -1])

    def extend(self, prefix: Prefix, input_ids: torch.Tensor) -> torch.Tensor:
        """[N, L, D] states of L further tokens per sequence; `prefix` then holds them too."""
        count, length = input_ids.shape
        positions = prefix.seen.sum(-1, keepdim=True) + torch.arange(length)
        # which positions are no padding; the model itself makes of it the mask that its attention wants: a ready-made
        # one is added to the logits by some kinds, misses sliding windows, and hides the positions that ALiBi counts
        prefix.seen = torch.cat([prefix.seen, torch.ones(count, length, dtype=torch.bool)], -1)
        states = self.states(
            input_ids,
            attention_mask=prefix.seen.long(),
            position_ids=positions,
            use_cache=True,
            **{self.cache_argument: prefix.cache},
        )
        prefix.last = states[:, -1]
        return states

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
    policy = Policy(model, tokenizer)
    if not policy.shares_prefix:
        raise UserError(
            f'model.path: "{path}" ({model.config.model_type}) has layers with a recurrent state; '
            "only models whose layers are all attention can be sampled"
        )
    return policy
