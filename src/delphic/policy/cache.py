"""A key/value cache that does not copy itself with every sampled token."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

ROOM = 64  # positions that a grown buffer has to spare


class GrowingLayer(DynamicLayer):
    """Writes new positions into a buffer with room to spare; only without gradients, where writing in place is sound.

    `keys` and `values` stay what `DynamicLayer` says they are, so whatever it does with them (select, repeat, crop)
    holds; a layer whose `keys` are no longer its buffer's moves into a new one.
    """

    keys: torch.Tensor
    values: torch.Tensor
    _buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() or self.get_seq_length() == 0:
            return super().update(key_states, value_states, *args, **kwargs)
        start, end = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
        if self._buffers is None or self._buffers[0].data_ptr() != self.keys.data_ptr() or self._full(end):
            self._buffers = (_roomy(self.keys, end), _roomy(self.values, end))
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[..., start:end, :] = new
        self.keys, self.values = (buffer[..., :end, :] for buffer in self._buffers)
        return self.keys, self.values

    def _full(self, end: int) -> bool:
        return self._buffers is not None and self._buffers[0].shape[-2] < end


def _roomy(old: torch.Tensor, end: int) -> torch.Tensor:
    """A buffer for `end` positions and some more, with the old ones in it."""
    buffer = old.new_empty((*old.shape[:-2], end + ROOM, old.shape[-1]))
    buffer[..., : old.shape[-2], :] = old
    return buffer


def make_cache(config: Any) -> DynamicCache:
    """An empty cache for a model; sliding-window and other special layers stay as transformers makes them."""
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
