"""What a run will need, before it starts: memory counted, time measured on two small probes that change nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import psutil
import torch

from delphic.config import RunConfig
from delphic.errors import UserError
from delphic.policy.logprobs import LOGITS, micro_batches, score
from delphic.policy.model import Policy
from delphic.rollouts import Rollouts
from delphic.training.generate import Generator

GB = 1e9


@dataclass(frozen=True)
class Memory:
    """Bytes at the same time, by what they are for. `activations` and `cache` never coincide."""

    weights: float
    gradients: float
    optimiser: float
    reference: float
    activations: float
    cache: float
    process: float

    @property
    def total(self) -> float:
        constant = self.weights + self.gradients + self.optimiser + self.reference + self.process
        return constant + max(self.activations, self.cache)


@dataclass(frozen=True)
class Estimate:
    memory: Memory
    available: float  # bytes that the device has for this process
    seconds_sample: float  # a step
    seconds_learn: float  # a step
    seconds_run: float

    def sentence(self) -> str:
        step, total = self.seconds_sample + self.seconds_learn, self.seconds_run
        length = (
            f"{total / 3600:.1f} h" if total > 5400 else f"{total / 60:.0f} min" if total > 90 else f"{total:.0f} s"
        )
        return (
            f"estimate: {self.memory.total / GB:.1f} GB of {self.available / GB:.1f} GB, about {step:.2g} s a step "
            f"(sampling {self.seconds_sample:.2g}, learning {self.seconds_learn:.2g}), {length} in all"
        )


def estimate(policy: Policy, config: RunConfig, source: Generator, done: int, longest: int) -> Estimate:
    """Sample and learn a few groups of the first step twice (the first time warms up), and scale.

    Args:
        done: steps of the run that are behind it. longest: tokens of the longest prompt.

    The probe's random numbers are the step's own and its gradients are dropped, so the run's bits do not depend on it.

    Raises:
        UserError: the run cannot fit into memory, naming the setting to change.
    """
    memory, available = count_memory(policy, config, longest), _available(policy.device)
    if memory.total > available:
        raise UserError(_does_not_fit(memory, available, config))
    sampling = config.sampling
    groups = max(1, sampling.prompts // 8)
    for _ in range(2):
        began = time.perf_counter()
        probe = source.probe(groups)
        sampled = time.perf_counter()
        learn_nothing(policy, probe, config)
        learned = time.perf_counter()
    share = groups / sampling.prompts
    sample, learn = (sampled - began) / share, (learned - sampled) / share * config.train.passes
    steps = config.train.steps - done
    every, e = config.evaluation.every, config.evaluation
    rounds = (steps // every if every else 0) + 2 if e.problems else 0
    evaluation = rounds * min(e.problems, len(source.task.held_out)) * e.samples
    seconds = steps * (sample + learn) + evaluation * sample / (sampling.prompts * sampling.completions)
    return Estimate(memory, available, sample, learn, seconds)


def learn_nothing(policy: Policy, rollouts: Rollouts, config: RunConfig) -> None:
    """Forward and backward passes as in a step, whose gradients are dropped."""
    for rows in micro_batches(policy, rollouts, np.arange(len(rollouts)), config.train.token_budget):
        part = rollouts.select(rows)
        score(policy, part.prompt_tokens, part.tokens, config.sampling.temperature).logp.sum().backward()
    policy.model.zero_grad(set_to_none=True)


def count_memory(policy: Policy, config: RunConfig, prompt: int) -> Memory:
    """Bytes from the model's tensors, and per token from what a small backward pass keeps and a small cache holds.

    Args:
        prompt: tokens of the longest prompt; at least one row goes through the model, whatever the budget.
    """
    size = sum(p.numel() * p.element_size() for p in policy.model.parameters())
    trained = list(policy.parameters().values())
    numbers = sum(p.numel() for p in trained)
    half = sum(p.numel() for p in trained if p.dtype != torch.float32) if config.train.master_weights else 0
    moments = 2 if config.train.optimizer == "adamw" else int(config.train.momentum > 0)
    reference = config.objective.needs_reference or config.train.reference_every > 0
    s = config.sampling
    kept, cached = _per_token(policy)
    rows = min(s.batch_rows, s.prompts * s.completions)
    row = prompt + s.max_new_tokens
    tokens = max(row, min(config.train.token_budget, s.prompts * s.completions * row))
    if config.train.statistics_every:  # scores a group in plain rows
        tokens = max(tokens, s.completions * row)
    logits = min(LOGITS, tokens * policy.vocabulary)
    return Memory(
        weights=size,
        gradients=sum(p.numel() * p.element_size() for p in trained),
        optimiser=4.0 * (moments * numbers + half),
        reference=size if reference and policy.adapted is None else 0.0,
        activations=kept * tokens + 3 * 4.0 * logits,
        cache=cached * rows * row + 4.0 * 4.0 * rows * policy.vocabulary,
        process=0.5 * GB if policy.device.type == "cpu" else 0.0,  # the interpreter and torch itself
    )


def _per_token(policy: Policy) -> tuple[float, float]:
    """(bytes kept for the gradient, bytes of the key/value cache) per token."""
    length = 16
    prompt = np.arange(8, dtype=np.int32) % policy.vocabulary
    completion = np.arange(length + 1, dtype=np.int32) % policy.vocabulary
    parameters = {p.data_ptr() for p in policy.model.parameters()}
    seen: dict[int, int] = {}
    alive: list[torch.Tensor] = []  # so that no storage is freed and its address counted for another

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        alive.append(tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        states = policy.states(torch.from_numpy(np.concatenate([prompt, completion]))[None].long())
    kept = sum(seen.values()) / states.shape[1]
    cached = 0.0
    if policy.repeats_cache:
        with torch.no_grad():
            layers = policy.prefill([prompt]).cache.layers
        cached = sum(x.numel() * x.element_size() for layer in layers for x in (layer.keys, layer.values)) / len(prompt)
    return kept, cached


def _available(device: torch.device) -> float:
    """Bytes that this process may still take and those that it has: on a GPU of its memory, else of the machine's and
    the container's."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device))
    limit = float("inf")
    try:
        with open("/sys/fs/cgroup/memory.max") as cgroup, open("/sys/fs/cgroup/memory.current") as current:
            text = cgroup.read().strip()
            limit = float(text) - float(current.read()) if text != "max" else limit
    except OSError:  # no container, or no Linux
        pass
    return min(psutil.virtual_memory().available, limit) + psutil.Process().memory_info().rss


def _does_not_fit(memory: Memory, available: float, config: RunConfig) -> str:
    need = f"the run needs about {memory.total / GB:.1f} GB and there are {available / GB:.1f} GB"
    constant = memory.total - max(memory.activations, memory.cache)
    if constant > available:
        what = f"weights, gradients and optimiser alone take {constant / GB:.1f} GB"
        advice = "train adapters (model.lora_rank = 16)" if not config.model.lora_rank else "model.dtype = bfloat16"
        if memory.reference:
            advice += ", or leave out the reference (train.reference_every = 0 and no KL term)"
    elif memory.activations >= memory.cache:
        what = f"learning keeps {memory.activations / GB:.1f} GB of activations"
        advice = (
            f"lower train.token_budget (now {config.train.token_budget}), or set model.gradient_checkpointing = true"
        )
    else:
        what = f"sampling holds {memory.cache / GB:.1f} GB of keys, values and logits"
        advice = f"lower sampling.batch_rows (now {config.sampling.batch_rows})"
    return f"{need}: {what}; {advice}, or go on all the same with train.estimate = false"
