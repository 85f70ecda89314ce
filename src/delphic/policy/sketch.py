"""Sketches: a long vector hashed to K numbers, so that inner products of many vectors need none of them."""

from __future__ import annotations

import torch

HASHED = 1 << 22  # numbers at a time


def add_sketch(
    sketches: torch.Tensor, gradient: torch.Tensor, factor: torch.Tensor | None, seed: int, number: int
) -> None:
    """Add a weight's gradient [rows, columns] to sketches[0] and factor ∘ gradient to sketches[1]; sketches [2, K], float64.

    Each row is shifted by a random offset and folded to K numbers, rows and columns having random signs: two different
    numbers of the gradient meet with random sign, so inner products keep their mean.

    Args:
        seed, number: of the hashing, and of the weight within the model.
    """
    rows, columns = gradient.shape
    length = sketches.shape[1]
    generator = torch.Generator().manual_seed((seed << 20) + number)
    offset = torch.randint(length, (rows,), generator=generator)
    signs = [torch.randint(2, (n,), generator=generator).double() * 2 - 1 for n in (rows, columns)]
    for part in torch.arange(rows).split(max(1, HASHED // columns)):
        place = ((offset[part, None] + torch.arange(columns)[None, :]) % length).flatten()
        value = gradient[part].double().cpu() * signs[0][part, None] * signs[1][None, :]
        sketches[0].index_add_(0, place, value.flatten())
        if factor is not None:
            scaled = value * factor.view(rows, columns)[part.to(factor.device)].double().cpu()
            sketches[1].index_add_(0, place, scaled.flatten())
