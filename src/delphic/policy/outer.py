"""Gradients that are sums of outer products, one a token: their Gram matrices and themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

NUMBERS = 1 << 26  # of one weight, products or gradients exist for at most so many at a time


@dataclass(frozen=True)
class Outer:
    """A weight's gradient as Σ_n left_n ⊗ right_n over n tokens, of which owner_n is the completion, in order.

    left: [n, rows], or [n] the numbers of rows where it is a unit vector. right: [n, columns]. owner: [n]. each: the
    tokens of every completion where all have the same number, else 0.
    """

    left: torch.Tensor
    right: torch.Tensor
    owner: torch.Tensor
    each: int

    @property
    def dense(self) -> bool:
        return self.left.dim() == 2


def outer_gram(
    outers: Sequence[Outer], count: int, shape: torch.Size, factor: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """[G, G] inner products of the completions' gradients of one weight, float64; and those of factor ∘ gradient.

    Token by token, or by making the gradients, whichever multiplies fewer numbers.
    """
    rows, columns = shape
    n, dense = sum(len(o.right) for o in outers), sum(len(o.right) for o in outers if o.dense)
    pairwise = n * n * columns + dense * dense * rows
    made = (dense + count * count) * rows * columns
    plain = torch.zeros(count, count, dtype=torch.float64)
    if factor is None and pairwise <= made:
        for i, first in enumerate(outers):
            plain += _pairwise(first, first, count)
            for second in outers[i + 1 :]:
                cross = _pairwise(first, second, count)
                plain += cross + cross.T
        return plain, None
    scaled = None if factor is None else torch.zeros_like(plain)
    step = max(1, NUMBERS // (count * rows))
    for start in range(0, columns, step):
        part = slice(start, start + step)
        flat = _by_completion(outers, count, rows, part).flatten(1)
        plain += (flat @ flat.T).double().cpu()
        if factor is not None and scaled is not None:
            flat = flat * factor[:, part].flatten().to(flat)
            scaled += (flat @ flat.T).double().cpu()
    return plain, scaled


def outer_sum(outers: Sequence[Outer], shape: Sequence[int]) -> torch.Tensor:
    """[rows, columns] Σ left ⊗ right."""
    total = torch.zeros(*shape, dtype=outers[0].right.dtype, device=outers[0].right.device)
    for outer in outers:
        if outer.dense:
            total += outer.left.T @ outer.right
        else:
            total.index_add_(0, outer.left, outer.right)
    return total


def _by_completion(outers: Sequence[Outer], count: int, rows: int, columns: slice) -> torch.Tensor:
    """[G, rows, some columns] the completions' gradients of one weight."""
    total: torch.Tensor | None = None
    for outer in sorted(outers, key=lambda o: not o.dense):
        right = outer.right[:, columns]
        if outer.dense:
            left, right = (_padded(outer, x, count) for x in (outer.left, right))
            made = left.transpose(1, 2) @ right
            total = made if total is None else total.add_(made)
        else:
            total = right.new_zeros(count, rows, right.shape[1]) if total is None else total
            place = outer.owner.to(right.device) * rows + outer.left
            total.view(count * rows, -1).index_add_(0, place, right)
    assert total is not None
    return total


def _padded(outer: Outer, values: torch.Tensor, count: int) -> torch.Tensor:
    """[G, T, …] a token's values by completion and number, zero where a completion has fewer tokens."""
    if outer.each:
        return values.reshape(count, outer.each, -1)
    lengths = torch.bincount(outer.owner, minlength=count)
    number = torch.arange(len(outer.owner)) - (lengths.cumsum(0) - lengths)[outer.owner]
    out = values.new_zeros(count, int(lengths.max()), values.shape[1])
    out[outer.owner.to(out.device), number.to(out.device)] = values
    return out


def _pairwise(first: Outer, second: Outer, count: int) -> torch.Tensor:
    """[G, G] Σ (left · left')(right · right'), summed over the tokens of each pair of completions."""
    gram = torch.zeros(count, count, dtype=torch.float64)
    if not len(first.right) or not len(second.right):
        return gram
    into = torch.zeros(len(second.owner), count, dtype=second.right.dtype)
    into[torch.arange(len(second.owner)), second.owner] = 1
    into = into.to(second.right.device)
    for part in torch.arange(len(first.right)).split(max(1, NUMBERS // len(second.right))):
        product = _lefts(first.left[part], second.left) * (first.right[part] @ second.right.T)
        gram.index_add_(0, first.owner[part], (product @ into).double().cpu())
    return gram


def _lefts(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """[n, n'] inner products, of unit vectors where only their numbers are given."""
    if a.dim() == b.dim() == 1:
        return (a[:, None] == b[None, :]).float()
    if a.dim() == 1:
        return b[:, a].T
    if b.dim() == 1:
        return a[:, b]
    return a @ b.T
