"""A causal language model: logits at chosen positions only, prompts shared by their completions, text to tokens."""

from __future__ import annotations

import contextlib
import inspect
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from delphic.errors import UserError
from delphic.policy.cache import GrowingLayer, make_cache

Messages = Sequence[Mapping[str, Any]]


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
        self.cache.batch_select_indices(rows.to(self.last.device))
        self.seen, self.last = self.seen[rows], self.last[rows.to(self.last.device)]

    def join(self, other: Prefix) -> Prefix:
        """These sequences and then the other's, the shorter ones padded; positions that no one sees are dropped."""
        width = max(self.seen.shape[1], other.seen.shape[1])
        seen = torch.cat([_pad_left(p.seen, width, -1) for p in (self, other)])
        first = int(seen.any(0).nonzero()[0])
        for mine, new in zip(self.cache.layers, other.cache.layers, strict=True):
            for name in ("keys", "values"):
                both = torch.cat([_pad_left(getattr(layer, name), width, -2) for layer in (mine, new)])
                setattr(mine, name, both[..., first:, :])
        return Prefix(self.cache, seen[:, first:], torch.cat([self.last, other.last]))


class Policy:
    """A causal LM with its tokenizer.

    Attributes:
        model: any `transformers` causal LM, in eval mode (no dropout: what is sampled is what is scored).
        eos: token ids that end a completion.
        context: longest sequence the model takes, tokens, or None.
        truncated_head: whether logits at chosen positions can be had from the last hidden state.
        joins_cache: whether caches of different lengths can be put together (every layer keeps every position).
        repeats_cache: whether its cache of a prompt can be repeated for the completions of a group (attention only).
        shares_prefix: whether learning makes use of that.
        vocabulary: number of token ids.
        adapted: the `peft` model around it, where adapters are trained.
        chat, system: whether plain prompts go into the chat template, and the system message before them.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        adapted: Any = None,
        chat: bool = False,
        system: str = "",
        shares_prefix: bool = True,
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.adapted, self.chat, self.system = adapted, chat, system
        self.device: torch.device = next(model.parameters()).device
        generation = getattr(model, "generation_config", None)
        eos = getattr(generation, "eos_token_id", None)
        ids = eos if isinstance(eos, list) else [eos]
        self.eos = {int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None}
        self.context: int | None = getattr(model.config, "max_position_embeddings", None)
        # transformers renames the argument; ask the model which name it takes
        takes = inspect.signature(model.forward).parameters
        self.cache_argument = "cache" if "cache" in takes else "past_key_values"
        self.vocabulary: int = model.get_input_embeddings().num_embeddings
        self.truncated_head = self._head_is_linear()
        layers = make_cache(model.config).layers
        self.repeats_cache = all(hasattr(layer, "batch_select_indices") for layer in layers)
        self.joins_cache = bool(layers) and all(isinstance(layer, GrowingLayer) for layer in layers)
        self.shares_prefix = self.repeats_cache and shares_prefix

    def _head_is_linear(self) -> bool:
        """Compare base model + output embedding with the model's own logits once: soft-capped or scaled heads differ."""
        head = self.model.get_output_embeddings()
        if head is None or self.model.base_model is self.model:
            return False
        probe = torch.arange(3, device=self.device).unsqueeze(0) % self.model.config.get_text_config().vocab_size
        with torch.no_grad():
            direct = self.model(input_ids=probe, use_cache=False).logits
            hidden = self.model.base_model(input_ids=probe, use_cache=False).last_hidden_state
            return bool(torch.equal(head(hidden), direct))

    def hidden(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[N, L, D] last hidden states of right-padded rows; causal attention keeps padding out of real positions."""
        return self.model.base_model(input_ids=input_ids.to(self.device), use_cache=False).last_hidden_state

    def states(self, input_ids: torch.Tensor, **extra: Any) -> torch.Tensor:
        """[N, L, D] what `logits` takes: the last hidden states or, where the head is more than a matrix, logits.

        On the model's device, wherever the arguments are.
        """
        extra = {"use_cache": False, **{k: v.to(self.device) if torch.is_tensor(v) else v for k, v in extra.items()}}
        input_ids = input_ids.to(self.device)
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
            attention_mask=_mask(seen),
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
            attention_mask=_mask(prefix.seen),
            position_ids=positions,
            use_cache=True,
            **{self.cache_argument: prefix.cache},
        )
        prefix.last = states[:, -1]
        return states

    def render(self, prompt: str | Messages, tools: Any = None) -> str:
        """The text that the model sees: messages (and plain prompts, where `chat`) through the chat template.

        Raises:
            UserError: the model has no chat template, or its template refuses these messages.
        """
        if isinstance(prompt, str) and not self.chat:
            return prompt
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        if self.system and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": self.system}, *messages]
        if not getattr(self.tokenizer, "chat_template", None):
            raise UserError(
                "the model has no chat template, which chat messages need; set model.chat = false and give prompts as "
                "plain text (task.template), or take an instruction-tuned model"
            )
        try:
            return self.tokenizer.apply_chat_template(
                messages, tools=list(tools) if tools else None, add_generation_prompt=True, tokenize=False
            )
        except Exception as error:  # a template is a program of its own
            raise UserError(f"the model's chat template refuses the messages: {error}") from None

    def encode(self, prompt: str | Messages, tools: Any = None) -> np.ndarray:
        """Token ids of a prompt, with the special tokens that the tokenizer itself adds, once; a chat template brings
        its own."""
        plain = isinstance(prompt, str) and not self.chat
        ids = self.tokenizer(self.render(prompt, tools), add_special_tokens=plain)["input_ids"]
        return np.array(ids, dtype=np.int32)

    def decode(self, tokens: np.ndarray) -> str:
        return self.tokenizer.decode(tokens.tolist(), skip_special_tokens=True)

    def tokens_containing(self, text: str) -> set[int]:
        """Ids of all tokens whose text contains `text` (for a stop string)."""
        return {i for i in range(len(self.tokenizer)) if text in self.tokenizer.decode([i])}

    def fingerprint(self) -> int:
        """CRC of all weights: equal fingerprints mean the sampler really has the learner's weights."""
        crc = 0
        for tensor in self.model.state_dict().values():
            crc = zlib.crc32(tensor.detach().cpu().contiguous().view(torch.uint8).numpy(), crc)
        return crc

    def parameters(self) -> dict[str, nn.Parameter]:
        """Trainable parameters by name; tied ones once."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @contextlib.contextmanager
    def without_adapters(self) -> Iterator[None]:
        """The model as it was before its adapters."""
        with self.adapted.disable_adapter():
            yield

    def save(self, folder: Any) -> None:
        """Weights (only the adapters, where those are trained) and tokenizer, as transformers and peft load them."""
        (self.adapted or self.model).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def _mask(seen: torch.Tensor) -> torch.Tensor | None:
    """None where nothing is padded: some recurrent layers would take the mask of a whole sequence for one token's."""
    return None if bool(seen.all()) else seen.long()


def _pad_left(x: torch.Tensor, width: int, dimension: int) -> torch.Tensor:
    """Zeros before `x` along a dimension, up to `width`."""
    missing = list(x.shape)
    missing[dimension] = width - x.shape[dimension]
    return torch.cat([x.new_zeros(missing), x], dimension) if missing[dimension] else x
