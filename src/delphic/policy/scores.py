"""Scores S_i = ∇ log π(y_i) of a model's completions: exact Gram matrices from one backward pass, and their sums.

What a token adds to a weight's gradient is an outer product: of the output's gradient and the input of a linear layer,
of an id's unit vector and the output's gradient of an embedding. So S_i · S_j = Σ_{t,s} (l_it · l_js)(r_it · r_js), and no
gradient of a completion need ever be stored. A weight that two layers share (a tied head) adds their cross terms.
Theory section 1; held against a loop of backward passes in float64.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

from delphic.errors import UserError
from delphic.policy.logprobs import plain_rows
from delphic.policy.model import Policy
from delphic.policy.outer import Outer, outer_gram, outer_sum
from delphic.policy.sketch import add_sketch
from delphic.rollouts import Rollouts


@dataclass(frozen=True)
class GroupScores:
    """Of one group of G completions.

    gram [G, G]: S_i · S_j, float64. sketch [K]: of Σ_i w_i S_i, or None; inner products of sketches estimate those of the
    vectors without bias, to about 1/√K of their lengths. scaled: the same of the scores P ∘ S_i, where P was given.
    """

    gram: np.ndarray
    sketch: np.ndarray | None = None
    scaled: GroupScores | None = None


def group_scores(
    policy: Policy,
    prompt: np.ndarray,
    tokens: Sequence[np.ndarray],
    loss_mask: Sequence[np.ndarray],
    temperature: float,
    *,
    only: Sequence[str] | None = None,
    precondition: Mapping[str, torch.Tensor] | None = None,
    weights: np.ndarray | None = None,
    sketch: int = 0,
    seed: int = 0,
) -> GroupScores:
    """Scores of the completions of one prompt, from ONE backward pass over plain rows.

    Args:
        prompt [P]; tokens, loss_mask: G × [T_i].
        only: names of the parameters that count (default: all that are trained).
        precondition: P, a factor for each number of each parameter, such as 1/(√v̂ + ε) of Adam.
        weights, sketch, seed: w [G], the length K of the sketch (0 = none) and the seed of its hashing.

    Raises:
        UserError: a parameter belongs to a layer of a kind that this cannot do, by name.
    """
    wanted = {id(p): name for name, p in policy.parameters().items() if only is None or name in only}
    record = _Record(wanted, len(tokens), precondition, weights, sketch, seed)
    with record.hooked(policy.model):
        record.backward(policy, prompt, tokens, loss_mask, temperature)
    plain, scaled = (
        GroupScores(gram.numpy(), sketched.numpy() if sketch else None)
        for gram, sketched in zip(record.gram, record.sketched, strict=True)
    )
    return plain if precondition is None else replace(plain, scaled=scaled)


def check_layers(policy: Policy) -> None:
    """Raises UserError where `group_scores` would: a trained parameter belongs to a layer of an unknown kind."""
    names = {id(p): name for name, p in policy.parameters().items()}
    with _Record(names, 0, None, None, 0, 0).hooked(policy.model):
        pass


def score_norms(policy: Policy, rollouts: Rollouts, temperature: float) -> np.ndarray:
    """[N] ‖∇ log π(y)‖² over all trainable parameters, the loss mask's tokens summed."""
    out = np.zeros(len(rollouts))
    for group in np.unique(rollouts.group):
        rows = np.flatnonzero(rollouts.group == group)
        part = rollouts.select(rows)
        out[rows] = np.diag(group_scores(policy, part.prompt_tokens[0], part.tokens, part.loss_mask, temperature).gram)
    return out


@dataclass
class _Record:
    """Collects, weight by weight, what the backward pass brings, and lets go of it as soon as a weight is complete."""

    wanted: Mapping[int, str]
    count: int
    precondition: Mapping[str, torch.Tensor] | None
    weights: np.ndarray | None
    sketch: int
    seed: int
    expected: dict[int, int] = field(default_factory=dict)  # passes through layers that hold the weight
    outers: dict[int, list[Outer]] = field(default_factory=dict)
    rows: dict[int, list[torch.Tensor]] = field(default_factory=dict)  # vectors: [G, d] gradients themselves
    roots: list[tuple[torch.Tensor, Any]] = field(default_factory=list)
    listening: bool = True  # not while layers that were checkpointed are computed again
    owners: dict[int, tuple[torch.Tensor, int]] = field(default_factory=dict)  # by the number of tokens

    def __post_init__(self) -> None:
        self.gram = torch.zeros(2, self.count, self.count, dtype=torch.float64)  # plain, preconditioned
        self.sketched = torch.zeros(2, self.sketch, dtype=torch.float64)
        self.numbers = {identity: number for number, identity in enumerate(self.wanted)}

    # -- the pass ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def hooked(self, model: nn.Module) -> Iterator[None]:
        handles, covered = [], set()
        for path, module in model.named_modules():
            own = {key: p for key, p in module.named_parameters(recurse=False) if id(p) in self.wanted}
            if own:
                _refuse_unknown(module, own, path)
                covered |= {id(p) for p in own.values()}
            if own or isinstance(module, nn.Embedding):
                handles.append(module.register_forward_hook(self._hook(own, path)))
        missing = [name for identity, name in self.wanted.items() if identity not in covered]
        try:
            if missing:
                raise UserError(f"scores: {missing[0]} belongs to no layer whose score is known")
            yield
        finally:
            for handle in handles:
                handle.remove()

    def backward(
        self,
        policy: Policy,
        prompt: np.ndarray,
        tokens: Sequence[np.ndarray],
        loss_mask: Sequence[np.ndarray],
        T: float,
    ) -> None:
        """Of Σ_i log π(y_i), down to the embeddings: weights' own gradients are not asked for, so they are not made."""
        ids, chosen = plain_rows([prompt] * len(tokens), tokens)
        chosen[chosen.clone()] = torch.from_numpy(np.concatenate(list(loss_mask)).astype(bool))
        owner, lengths = chosen.nonzero()[:, 0], chosen.sum(1)
        self.owners[len(owner)] = owner, int(lengths[0]) if bool((lengths == lengths[0]).all()) else 0
        ids, chosen = ids.to(policy.device), chosen.to(policy.device)
        states = policy.states(ids)[chosen]
        logits = policy.model.get_output_embeddings()(states) if policy.truncated_head else states
        logits = (logits if logits.dtype == torch.float64 else logits.float()) / T
        targets = torch.roll(ids, -1, 1)[chosen]
        logp = logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)
        self.listening = False
        gradients = torch.autograd.grad(logp.sum(), [root for root, _ in self.roots], allow_unused=True)
        for gradient, (_, arrived) in zip(gradients, self.roots, strict=True):
            if gradient is not None:
                arrived(gradient)
        self.roots.clear()

    def _hook(self, own: Mapping[str, nn.Parameter], path: str) -> Any:
        def hook(module: nn.Module, arguments: Any, output: torch.Tensor) -> torch.Tensor | None:
            if not (self.listening and torch.is_grad_enabled()):  # without a graph: a norm asked for its slope
                return None
            for parameter in own.values():
                self.expected[id(parameter)] = self.expected.get(id(parameter), 0) + 1
            inputs = arguments[0].detach()
            if isinstance(module, nn.Embedding):
                if own and inputs.is_floating_point():
                    raise UserError(_unknown(module, path))
                if len(output) == 1:  # positions: the same for all rows, whose gradients must not mix
                    output = output.expand(self.count, *output.shape[1:])

            # what a hook holds stays in memory: its own tensor would keep the graph for ever
            seen = output.detach() if isinstance(module, nn.Embedding) else None

            def arrived(gradient: torch.Tensor) -> None:
                self._arrive(module, own, inputs, seen, gradient.detach())

            if isinstance(module, nn.Embedding):  # where the backward pass ends
                root = output.detach().requires_grad_()
                self.roots.append((root, arrived if own else lambda _gradient: None))
                return root
            output.register_hook(arrived)
            return None

        return hook

    def _arrive(
        self,
        module: nn.Module,
        own: Mapping[str, nn.Parameter],
        inputs: torch.Tensor,
        output: torch.Tensor | None,
        gradient: torch.Tensor,
    ) -> None:
        weight, bias = own.get("weight"), own.get("bias")
        if weight is not None:
            self.expected[id(weight)] -= 1
            if weight.dim() == 1:
                self.rows.setdefault(id(weight), []).append(
                    self._by_completion(_slope(module, weight, inputs) * gradient)
                )
            else:
                self.outers.setdefault(id(weight), []).append(self._outer(module, weight, inputs, output, gradient))
            self._finish(weight)
        if bias is not None:
            self.expected[id(bias)] -= 1
            self.rows.setdefault(id(bias), []).append(self._by_completion(gradient))
            self._finish(bias)

    def _owner(self, leading: torch.Size) -> tuple[torch.Tensor, int]:
        """[n] the completion of every token of a tensor with these leading dimensions; and `Outer.each`."""
        n = leading.numel()
        if leading[0] == self.count or n not in self.owners:  # all tokens of the rows; else the chosen ones
            assert n % self.count == 0, "tokens that are neither all nor the chosen ones"
            return torch.arange(self.count).repeat_interleave(n // self.count), n // self.count
        return self.owners[n]

    def _by_completion(self, values: torch.Tensor) -> torch.Tensor:
        """[G, d] sums over a completion's tokens."""
        flat, (owner, each) = values.reshape(-1, values.shape[-1]).double().cpu(), self._owner(values.shape[:-1])
        if each:
            return flat.view(self.count, each, -1).sum(1)
        return flat.new_zeros(self.count, flat.shape[1]).index_add_(0, owner, flat)

    def _outer(
        self,
        module: nn.Module,
        weight: torch.Tensor,
        inputs: torch.Tensor,
        output: torch.Tensor | None,
        gradient: torch.Tensor,
    ) -> Outer:
        owner, each = self._owner(gradient.shape[:-1])
        right = gradient.reshape(-1, gradient.shape[-1])
        if output is not None:  # an embedding's
            ids = inputs.expand(gradient.shape[:-1]).reshape(-1)
            return Outer(ids, right * _embedding_scale(weight, inputs, output), owner, each)
        values = inputs.reshape(-1, inputs.shape[-1])
        left, right = (values, right) if isinstance(module, Conv1D) else (right, values)
        return Outer(left, right, owner, each)

    # -- a weight that is complete -----------------------------------------------------------------------------

    def _finish(self, parameter: torch.Tensor) -> None:
        identity = id(parameter)
        if self.expected[identity]:
            return
        factor = None if self.precondition is None else self.precondition[self.wanted[identity]]
        if parameter.dim() == 1:
            rows = torch.stack(self.rows.pop(identity)).sum(0)
            self.gram[0] += rows @ rows.T
            if factor is not None:
                scaled = rows * factor.double().cpu()
                self.gram[1] += scaled @ scaled.T
            if self.sketch:
                self._sketch((self._w() @ rows)[:, None], identity, factor)
            return
        outers = self.outers.pop(identity)
        plain, preconditioned = outer_gram(outers, self.count, parameter.shape, factor)
        self.gram[0] += plain
        if preconditioned is not None:
            self.gram[1] += preconditioned
        if self.sketch:
            weighted = [replace(o, right=o.right * self._w()[o.owner, None].to(o.right)) for o in outers]
            self._sketch(outer_sum(weighted, parameter.shape), identity, factor)

    def _sketch(self, gradient: torch.Tensor, identity: int, factor: torch.Tensor | None) -> None:
        add_sketch(self.sketched, gradient, factor, self.seed, self.numbers[identity])

    def _w(self) -> torch.Tensor:
        assert self.weights is not None
        return torch.from_numpy(np.asarray(self.weights, dtype=np.float64))


def _refuse_unknown(module: nn.Module, own: Mapping[str, nn.Parameter], path: str) -> None:
    matrix = type(module) in (nn.Linear, Conv1D) or isinstance(module, nn.Embedding)
    vectors = "norm" in type(module).__name__.lower() and all(p.dim() == 1 for p in own.values())
    if not (matrix or vectors) or not set(own) <= {"weight", "bias"}:
        raise UserError(_unknown(module, path))


def _unknown(module: nn.Module, path: str) -> str:
    return f"scores: the layer {path} ({type(module).__name__}) is of a kind whose score is not known"


@torch.no_grad()
def _slope(module: nn.Module, weight: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """dy/dw of a norm's weight: its output is linear in it, w·x̂ or (1 + w)·x̂."""
    high, low = (functional_call(module, {"weight": torch.full_like(weight, v)}, (inputs,)) for v in (1.0, 0.0))
    return high - low


@torch.no_grad()
def _embedding_scale(weight: torch.Tensor, ids: torch.Tensor, output: torch.Tensor) -> float:
    """What an embedding multiplies its rows with (Gemma: √width); 1 for most.

    Raises:
        UserError: its output is no multiple of its rows.
    """
    rows = weight[ids.expand(output.shape[:-1])]
    scale = float((rows.double() * output.double()).sum() / rows.double().square().sum())
    if not torch.allclose(rows * scale, output, rtol=1e-3, atol=1e-6):
        raise UserError("scores: an embedding does more than look up rows; its score is not known")
    return scale
