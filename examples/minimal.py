"""Group-relative RL in one page: the trainer's own steps, written out with delphic's public functions.

    python examples/minimal.py [STEPS]

It trains the built-in model on arithmetic with GRPO, on-policy, one update a step, as `delphic train` does with the
same settings; a test holds the two to the same first three steps. What the trainer adds, and this leaves out: lag,
micro-batches, several updates a batch, penalties, critics, checkpoints, evaluation, metrics.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import torch

from delphic.objective import StepInputs, build, coefficients, prepare, token_weights
from delphic.policy.load import load_policy
from delphic.policy.logprobs import pad_rows, score
from delphic.policy.sampling import SamplingSettings, sample
from delphic.randomness import Purpose
from delphic.tasks import Arithmetic
from delphic.training.prompts import PromptOrder

PROMPTS, COMPLETIONS, MAX_NEW_TOKENS = 16, 16, 6
SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, max_new_tokens=MAX_NEW_TOKENS, stop="", batch_rows=512)


def train(
    model: str = "builtin", steps: int = 3, seed: int = 0, learning_rate: float = 1e-4
) -> Iterator[tuple[float, float]]:
    """Yields (mean reward, gradient norm) of each step."""
    policy, task, objective = load_policy(model), Arithmetic(seed=seed), build("grpo")
    parameters = list(policy.parameters().values())
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
    order = PromptOrder(len(task.train), "independent", seed)

    for step in range(1, steps + 1):
        # 1. sample a group of completions for each prompt
        problems = [task.train[i] for i in order.draw((step - 1) * PROMPTS, PROMPTS)]
        rows = np.arange(PROMPTS * COMPLETIONS)
        prompts = [problem.prompt for problem in problems]
        sampled = sample(
            policy, prompts, COMPLETIONS, SETTINGS, seed=seed, purpose=Purpose.TRAIN_SAMPLE, step=step, rows=rows
        )

        # 2. reward them, and compare within each group
        groups = rows // COMPLETIONS
        rewards = np.array(task.reward([problems[g] for g in groups], sampled.text), dtype=np.float64)
        lengths = np.array([len(tokens) for tokens in sampled.tokens])
        prepared = prepare(objective, StepInputs(rewards=rewards, groups=groups, lengths=lengths))

        # 3. score the completions under the current weights, with a graph
        logp_NT = score(policy, sampled.prompt_tokens, sampled.tokens, SETTINGS.temperature).logp
        width = logp_NT.shape[1]
        mask_NT = pad_rows([np.ones(n, dtype=np.float32) for n in lengths], width, torch.float32)
        behaviour_NT = pad_rows(sampled.logp, width, torch.float32)

        # 4. the factor in front of every token's ∇ log π, and the weight of every token
        def column(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(values).float()[:, None]

        log_ratio_NT = (logp_NT.detach() - behaviour_NT) * mask_NT
        factor = coefficients(
            objective, column(prepared.coefficient), column(prepared.penalised), log_ratio_NT, mask_NT
        ).policy
        weight_NT = token_weights(
            mask_NT, column(prepared.kept), objective.aggregation, prepared.totals(lengths), MAX_NEW_TOKENS
        )

        # 5. ascend
        optimizer.zero_grad()
        loss = -(weight_NT * factor * logp_NT).sum()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        yield float(rewards.mean()), float(norm)


if __name__ == "__main__":
    for number, (reward, gradient) in enumerate(train(steps=int(sys.argv[1]) if len(sys.argv) > 1 else 20), 1):
        print(f"step {number}  reward {reward:.3f}  gradient norm {gradient:.3f}")
