"""Scores ∇ log π(y) of a model's completions."""

from __future__ import annotations

import numpy as np
import torch

from delphic.policy.logprobs import score
from delphic.policy.model import Policy
from delphic.rollouts import Rollouts


def score_norms(policy: Policy, rollouts: Rollouts, temperature: float) -> np.ndarray:
    """[N] ‖∇ log π(y)‖² over all trainable parameters, the loss mask's tokens summed; one backward pass a completion."""
    parameters = list(policy.parameters().values())
    out = np.zeros(len(rollouts))
    for i in range(len(rollouts)):
        part = rollouts.select([i])
        logp = score(policy, part.prompt_tokens, part.tokens, temperature).logp
        mask = torch.from_numpy(part.loss_mask[0]).to(logp.dtype)
        gradients = torch.autograd.grad((logp[0] * mask).sum(), parameters, allow_unused=True)
        out[i] = sum(float(g.double().square().sum()) for g in gradients if g is not None)
    return out
