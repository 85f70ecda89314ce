"""One model, many problems: what its gradient's error is by the formulas, and by experiment.

The experiment uses no formula: fresh groups of G completions, each estimator's gradient of a prompt, and its distance to
a reference gradient g of all problems, made from other completions. No gradient but g is ever held, since
‖Σ w_i S_i − g‖² = wᵀKw − 2 wᵀ(S·g) + ‖g‖², with K the exact Gram matrix and S_i·g the slope of log π(y_i) along g.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch

from delphic.config import RunConfig
from delphic.errors import UserError
from delphic.planning.pilot import run_pilot
from delphic.policy.logprobs import micro_batches, prompt_states, score, score_all
from delphic.policy.model import Policy
from delphic.policy.scores import GroupScores
from delphic.randomness import Purpose
from delphic.rollouts import Rollouts
from delphic.statistics.error import ErrorMoments
from delphic.statistics.group_size import Pilot, error_moments
from delphic.statistics.ustatistic import baseline_weights, prompt_moments
from delphic.training.critic import TOKEN_BUDGET
from delphic.training.generate import Generator, rollout
from delphic.training.loop import Parts, build_parts

ESTIMATORS = ("vanilla", "critic", "self_inclusive", "loo", "oracle")
FOLDS = 5
SHIFT = 1e-3  # length of the step along g for the slope


@dataclass(frozen=True)
class Examined:
    """Of P problems × n completions (K, S·g from them), and of other completions of the same problems (V, g).

    grams [P, n, n] · along [P, n]: S·g · rewards [P, n] · value [P]: V, the mean of the other rewards · predicted [P]:
    V̂ of a critic that never saw the problem · norm: ‖g‖² · others: how many other completions of each problem.
    """

    pilot: Pilot
    grams: np.ndarray
    along: np.ndarray
    rewards: np.ndarray
    value: np.ndarray
    predicted: np.ndarray
    norm: float
    others: int

    def critic_square(self) -> np.ndarray:
        """[P] mean of ‖S‖²(Z − V̂)²."""
        norms = np.array([np.diag(gram) for gram in self.grams])
        return (norms * (self.rewards - self.predicted[:, None]) ** 2).mean(1)

    def moments(self, counts: np.ndarray | None = None) -> ErrorMoments:
        """Unbiased moments with the critic's; counts [P]: how often each problem counts."""
        n = np.ones(len(self.grams)) if counts is None else counts
        critic = float((n * self.critic_square()).sum() / n.sum())
        return replace(error_moments(self.pilot, counts), critic=critic)

    def measured(self, estimator: str, size: int) -> np.ndarray:
        """[P] mean over the problem's disjoint groups of `size` completions: ‖ĝ(x) − g‖²."""
        return np.array([self._distance(b, estimator, size) for b in range(len(self.grams))])

    def _distance(self, problem: int, estimator: str, size: int) -> float:
        kind = "value" if estimator in ("oracle", "critic") else estimator
        baseline = (self.predicted if estimator == "critic" else self.value)[problem]
        out = []
        for start in range(0, self.rewards.shape[1] - size + 1, size):
            rows = slice(start, start + size)
            w = baseline_weights(self.rewards[problem, rows], kind, float(baseline))
            square = w @ self.grams[problem][rows, rows] @ w
            out.append(square - 2 * w @ self.along[problem, rows] + self.norm)
        return float(np.mean(out))


def kept_or_made(path: Path, make: Callable[[], Examined]) -> Examined:
    """What the file holds, or else what `make` gives, which is then kept there."""
    if not path.exists():
        seen = make()
        arrays = {f.name: getattr(seen, f.name) for f in fields(Examined) if f.name != "pilot"}
        unfinished = path.with_suffix(".part.npz")
        np.savez(unfinished, **arrays, cross=seen.pilot.cross)
        unfinished.replace(path)
    with np.load(path) as file:
        kept = dict(file)
    pilot = Pilot(
        [prompt_moments(k, z) for k, z in zip(kept["grams"], kept["rewards"], strict=True)], kept.pop("cross")
    )
    norm, others = float(kept.pop("norm")), int(kept.pop("others"))
    return Examined(pilot, norm=norm, others=others, **kept)


def examine(
    config: RunConfig, folder: Path, problems: int, completions: int, others: int, note: Callable[[str], None]
) -> Examined:
    """`completions` scored completions of each problem, and `others` more for V, the critic and the reference gradient.

    Raises:
        UserError: a reward is not finite.
    """
    groups: list[Rollouts] = []
    grams: list[np.ndarray] = []

    def keep(part: Rollouts, scores: GroupScores) -> None:
        groups.append(part)
        grams.append(scores.gram)
        if len(groups) % (25 if problems > 100 else 5) == 0:
            note(f"scored {len(groups)} of {problems} problems")

    gradient = config.train.model_copy(update={"optimizer": "sgd"})  # the errors are the gradient's, not Adam's step's
    config = config.model_copy(update={"train": gradient})
    measured = run_pilot(config, folder, problems, completions, lambda _: None, keep)
    parts = build_parts(config, folder)
    extra = _others(parts, groups, others)
    if not np.isfinite(extra.reward).all():
        raise UserError("reproduce: a reward is not finite; the errors need all of them")
    note("reference gradient")
    rewards = extra.reward.reshape(len(groups), others)
    weights = np.concatenate([baseline_weights(row, "loo") for row in rewards]) / len(groups)
    temperature, budget = config.sampling.temperature, config.train.token_budget
    reference = weighted_gradient(parts.policy, extra, weights, temperature, budget)
    norm = float(sum(v.double().square().sum() for v in reference.values()))
    along = slopes(parts.policy, Rollouts.concat(groups), reference, temperature, budget)
    states = prompt_states(parts.policy, [g.prompt_tokens[0] for g in groups], TOKEN_BUDGET).double().numpy()
    value = rewards.mean(1)
    return Examined(
        measured.plain,
        np.array(grams),
        along.reshape(len(groups), completions),
        measured.rewards,
        value,
        predict_apart(states, value),
        norm,
        others,
    )


def _others(parts: Parts, groups: list[Rollouts], count: int) -> Rollouts:
    """`count` other completions of the problems of the groups, which are found by their prompts."""
    source = parts.source
    assert isinstance(source, Generator)
    by_prompt = {source.sampler.encode(p.prompt, p.tools).tobytes(): p for p in source.task.train}
    problems = [by_prompt[group.prompt_tokens[0].tobytes()] for group in groups]
    rows = np.arange(len(problems) * count)
    return rollout(source.sampler, source.rewards, problems, count, Purpose.ORACLE_SAMPLE, 0, rows)


def weighted_gradient(
    policy: Policy, rollouts: Rollouts, weights_N: np.ndarray, temperature: float, token_budget: int
) -> dict[str, torch.Tensor]:
    """Σ w_i ∇ log π(y_i), by parameter."""
    parameters = policy.parameters()
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    used = np.flatnonzero(weights_N)
    for rows in micro_batches(policy, rollouts, used, token_budget):
        part = rollouts.select(rows)
        logp = score(policy, part.prompt_tokens, part.tokens, temperature).logp
        (torch.from_numpy(weights_N[rows]).to(logp) @ logp.sum(1)).backward()
    return {name: p.grad.detach().clone() for name, p in parameters.items() if p.grad is not None}


@torch.no_grad()
def slopes(
    policy: Policy, rollouts: Rollouts, direction: Mapping[str, torch.Tensor], temperature: float, token_budget: int
) -> np.ndarray:
    """[N] S_i · v: the central difference of log π(y_i) over a step of length SHIFT along v."""
    length = float(sum(v.double().square().sum() for v in direction.values())) ** 0.5
    if length == 0:
        return np.zeros(len(rollouts))
    parameters = policy.parameters()
    kept = {name: parameters[name].detach().clone() for name in direction}
    ends = []
    for sign in (1, -1):
        for name, vector in direction.items():
            parameters[name].copy_(kept[name] + (sign * SHIFT / length) * vector)
        ends.append(np.array([x.sum(dtype=np.float64) for x in score_all(policy, rollouts, temperature, token_budget)]))
    for name, value in kept.items():
        parameters[name].copy_(value)
    return (ends[0] - ends[1]) * length / (2 * SHIFT)


def predict_apart(states_PD: np.ndarray, value_P: np.ndarray) -> np.ndarray:
    """[P] V̂ of each problem by ridge regression of V on the prompt's state, fitted on the problems of the other folds.

    The penalty is the one of the least generalised cross-validation error on those (Golub, Heath and Wahba 1979).
    """
    folds = np.arange(len(value_P)) % min(FOLDS, len(value_P))
    out = np.zeros(len(value_P))
    for fold in np.unique(folds):
        inside, left = folds != fold, folds == fold
        mean, centre, scale = value_P[inside].mean(), states_PD[inside].mean(0), states_PD[inside].std() + 1e-12
        u, s, vt = np.linalg.svd((states_PD[inside] - centre) / scale, full_matrices=False)
        target = u.T @ (value_P[inside] - mean)
        rest = float(((value_P[inside] - mean) ** 2).sum() - (target**2).sum())

        penalties = 10.0 ** np.arange(-2, 7)
        shrunk = s**2 / (s**2 + penalties[:, None])
        residual = (((1 - shrunk) * target) ** 2).sum(1) + max(rest, 0.0)
        penalty = penalties[np.argmin(residual / (inside.sum() - 1 - shrunk.sum(1)) ** 2)]
        coefficient = vt.T @ (s / (s**2 + penalty) * target)
        out[left] = mean + (states_PD[left] - centre) / scale @ coefficient
    return out
