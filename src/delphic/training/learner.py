"""The learner in this process: scoring, the objective's coefficients, the optimiser."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from delphic.config import RunConfig
from delphic.errors import UserError
from delphic.objective import Prepared, StepInputs, Totals, coefficients, prepare, token_weights
from delphic.objective.penalty import kl_value
from delphic.policy.logprobs import micro_batches, pad_rows, score, score_all
from delphic.policy.model import Policy
from delphic.policy.scores import score_norms
from delphic.randomness import Purpose, stream
from delphic.rollouts import Rollouts
from delphic.training.critic import Critic
from delphic.training.metrics import Meter
from delphic.training.optimiser import Optimiser
from delphic.training.team import Team


class NonFiniteError(Exception):
    """A loss or gradient that is not a number. `row` is the rollout that caused it."""

    def __init__(self, what: str, rollouts: Rollouts, row: int) -> None:
        super().__init__(what)
        self.rollout = rollouts.select([row])


@dataclass(frozen=True)
class _Scores:
    """What is known of a batch before its updates; lists of [T_n] arrays, or [N]."""

    behaviour: list[np.ndarray] | None
    reference: list[np.ndarray] | None
    values: np.ndarray | None
    norms: np.ndarray | None


class LocalLearner:
    """Trains a policy of this process. See `protocols.Learner`."""

    def __init__(
        self, policy: Policy, config: RunConfig, load_reference: Callable[[], Policy], team: Team | None = None
    ) -> None:
        self.team = team or Team()
        self.policy, self.config, self.version = policy, config, 0
        self._load_reference = load_reference
        self.optimiser = Optimiser(policy.parameters(), config.train)
        self.critic = (
            Critic(policy, config.train.value_learning_rate) if config.objective.baseline == "critic" else None
        )
        self._reference: Policy | None = None

    # -- one step ----------------------------------------------------------------------------------------------

    def learn(self, rollouts: Rollouts, step: int, meter: Meter, timing: Meter) -> None:
        """All updates of one step. The advantages are those of the whole batch, however it is cut.

        Raises:
            UserError: the rollouts lack what the objective needs.
            NonFiniteError: a loss or gradient is not finite; no update was made with it.
        """
        started = time.perf_counter()
        scores = self._score(rollouts, step, meter)
        timing.add("seconds_score", time.perf_counter() - started)
        started = time.perf_counter()
        prepared = self._prepare(rollouts, scores, step)
        kept = prepared.advantage[prepared.kept]
        if kept.size > 1:
            meter.add("advantage_variance", float(kept.var(ddof=1)))
        meter.add("left_out_share", float((~prepared.kept).sum()), len(rollouts))
        if self.critic is not None and scores.values is not None:
            self.critic.update(rollouts, meter)
        for number, rows in enumerate(self._minibatches(rollouts, step)):
            if self.config.objective.pairwise > 0 and number > 0:  # its advantages move with the policy
                prepared = self._prepare(rollouts, scores, step)
            lags = self.version - rollouts.version[rows]
            meter.add("lag", float(lags.sum()), len(rows))
            meter.add("lag_max", max(float(lags.max(initial=0)), meter.sums.get("lag_max", -math.inf)))
            self._update(rollouts, rows, prepared, scores, meter)
        meter.add("version", self.version)
        timing.add("seconds_learn", time.perf_counter() - started)

    def _score(self, rollouts: Rollouts, step: int, meter: Meter) -> _Scores:
        """Forward passes without a graph: only those that the objective or a due measurement needs."""
        goal, train = self.config.objective, self.config.train
        if goal.needs_behaviour and not rollouts.has_behaviour:
            raise UserError(f'objective "{goal.name}" needs behaviour_logp, which these rollouts do not have')
        due = train.reference_every > 0 and (step - 1) % train.reference_every == 0
        reference = values = norms = None
        if goal.needs_reference or (due and rollouts.has_behaviour):
            reference = self._reference_scores(rollouts)
            if rollouts.has_behaviour:
                for b, r, mask in zip(rollouts.behaviour_logp, reference, rollouts.loss_mask, strict=True):
                    k3 = kl_value((b - r)[mask], "k3")
                    meter.add("kl_reference", float(np.sum(k3, dtype=np.float64)), int(mask.sum()))
        if self.critic is not None:
            values = self.critic.values(rollouts)
        elif goal.baseline == "oracle":
            values = rollouts.value
            if np.isnan(values).any():
                raise UserError(
                    'objective baseline "oracle" needs V(x) of every prompt, which these rollouts do not have'
                )
        if goal.baseline == "score_norm_mean":
            norms = score_norms(self.policy, rollouts, self.config.sampling.temperature)
        return _Scores(rollouts.behaviour_logp if rollouts.has_behaviour else None, reference, values, norms)

    def _prepare(self, rollouts: Rollouts, scores: _Scores, step: int) -> Prepared:
        goal, sampling, task = self.config.objective, self.config.sampling, self.config.task
        moved = kl = priority = None
        if goal.pairwise > 0:
            now = self._score_with(self.policy, rollouts)
            moved = _sequence_sums(now, rollouts.behaviour_logp, rollouts.loss_mask)
        if goal.uses_kl_reward and scores.reference is not None:
            pairs = zip(rollouts.behaviour_logp, scores.reference, rollouts.loss_mask, strict=True)
            kl = np.array([float(np.sum(kl_value((b - r)[m], goal.kl), dtype=np.float64)) for b, r, m in pairs])
        if goal.selection == "balance":
            priority = np.array(
                [stream(self.config.seed, Purpose.DROP, step, int(row)).random() for row in rollouts.row]
            )
        return prepare(
            goal,
            StepInputs(
                rewards=rollouts.reward,
                groups=rollouts.group,
                lengths=rollouts.lengths,
                truncated=rollouts.truncated,
                max_length=sampling.max_new_tokens,
                values=scores.values,
                score_norms=scores.norms,
                priority=priority,
                components=np.stack(list(rollouts.components.values())) if rollouts.components else None,
                component_weights=np.array(task.reward_weights) if task.reward_weights else None,
                sequence_log_ratio=moved,
                sequence_kl=kl,
            ),
        )

    def _minibatches(self, rollouts: Rollouts, step: int) -> Iterator[np.ndarray]:
        """Row numbers of each update: whole groups, split at random, once a pass."""
        train = self.config.train
        ids = np.unique(rollouts.group)
        for number in range(train.passes):
            if train.minibatches == 1:
                yield np.arange(len(rollouts))
                continue
            shuffled = stream(self.config.seed, Purpose.MINIBATCH, step, number).permutation(ids)
            for part in np.array_split(shuffled, train.minibatches):
                # an empty part (a short step of dynamic sampling) is still an update: versions count by schedule
                yield np.flatnonzero(np.isin(rollouts.group, part))

    def _update(self, rollouts: Rollouts, rows: np.ndarray, prepared: Prepared, scores: _Scores, meter: Meter) -> None:
        goal = self.config.objective
        totals = Totals(int(prepared.kept[rows].sum()), int(rollouts.lengths[rows][prepared.kept[rows]].sum()))
        moves = prepared.coefficient != 0
        if goal.has_penalty:
            moves = moves | prepared.penalised
        learned = rows[moves[rows]]
        meter.add("learned_share", len(learned), len(rows))
        self.optimiser.zero()
        mine, own = learned[np.isin(rollouts.group[learned], self._share(rollouts.group[learned]))], Meter()
        for batch in micro_batches(self.policy, rollouts, mine, self.config.train.token_budget):
            loss = self._loss(rollouts, batch, prepared, scores, totals, own)
            if self.team.size == 1 and not bool(torch.isfinite(loss)):
                raise self._blame("the loss is not finite", rollouts, batch, prepared, scores, totals)
            loss.backward()
        self.team.add_meter(own, meter)
        self.team.add_gradients(list(self.policy.parameters().values()))
        norm = self.optimiser.clip()
        if not math.isfinite(norm):
            raise self._blame("the gradient is not finite", rollouts, learned, prepared, scores, totals)
        change, rate = self.optimiser.step(self.version)
        self.version += 1
        meter.add("gradient_norm", norm)
        meter.add("update_norm", change)
        meter.add("learning_rate", rate)

    def _share(self, groups: np.ndarray) -> np.ndarray:
        """The groups that this process learns: whole ones, because they share a prompt."""
        distinct = np.unique(groups)
        return distinct[self.team.share(len(distinct))]

    def _loss(
        self,
        rollouts: Rollouts,
        batch: np.ndarray,
        prepared: Prepared,
        scores: _Scores,
        totals: Totals,
        meter: Meter | None,
    ) -> torch.Tensor:
        """−Σ weight · sg(coefficient) · log π over the batch's tokens: its gradient is the objective's."""
        goal = self.config.objective
        part = rollouts.select(batch)
        bonus = goal.entropy_bonus
        scored = score(self.policy, part.prompt_tokens, part.tokens, self.config.sampling.temperature, bonus > 0)
        now = scored.logp.detach()
        width = now.shape[1]
        mask = pad_rows(part.loss_mask, width, torch.float32)
        behaviour = (
            now if scores.behaviour is None else pad_rows([scores.behaviour[i] for i in batch], width, torch.float32)
        )
        zero = torch.zeros_like(now)
        log_ratio = torch.where(mask > 0, now - behaviour, zero)
        to_reference = None
        if goal.uses_kl_loss and scores.reference is not None:
            to_reference = torch.where(
                mask > 0, now - pad_rows([scores.reference[i] for i in batch], width, torch.float32), zero
            )

        def column(x: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(x[batch]).to(torch.float32)[:, None]

        penalised = column(prepared.penalised)
        c = coefficients(goal, column(prepared.coefficient), penalised, log_ratio, mask, to_reference)
        max_length = self.config.sampling.max_new_tokens
        weight = token_weights(mask, column(prepared.kept), goal.aggregation, totals, max_length)
        total = c.policy + c.penalty
        loss = -(weight * total * scored.logp).sum()
        if scored.entropy is not None:
            loss = loss - bonus * (weight * penalised * scored.entropy).sum()
        if meter is not None:
            meter.add("objective_learned", float((weight * total).sum()))
            if scores.behaviour is not None:
                _ratio_metrics(column(prepared.coefficient), c.ratio, c.learns, log_ratio, mask > 0, meter)
        return loss

    def _blame(
        self, what: str, rollouts: Rollouts, rows: np.ndarray, prepared: Prepared, scores: _Scores, totals: Totals
    ) -> NonFiniteError:
        """Find the first row whose own loss or gradient is not finite."""
        parameters = list(self.policy.parameters().values())
        for row in rows:
            loss = self._loss(rollouts, np.array([row]), prepared, scores, totals, None)
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            if not bool(torch.isfinite(loss)) or any(
                g is not None and not bool(torch.isfinite(g).all()) for g in gradients
            ):
                return NonFiniteError(what, rollouts, int(row))
        return NonFiniteError(f"{what} (only in sum)", rollouts, int(rows[0]))

    # -- helpers -----------------------------------------------------------------------------------------------

    def _score_with(self, policy: Policy, rollouts: Rollouts) -> list[np.ndarray]:
        def work(rows: np.ndarray) -> list[np.ndarray]:
            part = rollouts.select(rows)
            return score_all(policy, part, self.config.sampling.temperature, self.config.train.token_budget)

        return self.team.spread(rollouts.tokens, work)

    def _reference_scores(self, rollouts: Rollouts) -> list[np.ndarray]:
        """Log-probs under the initial policy: without the adapters, or a second model, loaded when first needed."""
        if self.policy.adapted is not None:
            with self.policy.without_adapters():
                return self._score_with(self.policy, rollouts)
        if self._reference is None:
            self._reference = self._load_reference()
            self._reference.model.requires_grad_(False)
        return self._score_with(self._reference, rollouts)

    def scale_learning_rate(self, factor: float) -> None:
        self.optimiser.scale = factor

    # -- weights and state -------------------------------------------------------------------------------------

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: p.detach() for name, p in self.policy.parameters().items()}

    def fingerprint(self) -> int:
        return self.policy.fingerprint()

    def save(self, folder: Path) -> None:
        """A model folder that transformers loads, and `optimizer.safetensors` beside the weights."""
        self.policy.save(folder)
        state = {"version": torch.tensor(self.version), **self.optimiser.state()}
        if self.critic is not None:
            state.update(self.critic.state())
        save_file(state, folder / "optimizer.safetensors")

    def load(self, folder: Path) -> None:
        """Restore the optimiser; the policy must already be loaded from the same folder."""
        state = load_file(folder / "optimizer.safetensors")
        self.version = int(state.pop("version"))
        self.optimiser.restore(self.critic.restore(state) if self.critic is not None else state)


def _sequence_sums(now: list[np.ndarray], then: list[np.ndarray], masks: list[np.ndarray]) -> np.ndarray:
    return np.array([float(np.sum((a - b)[m], dtype=np.float64)) for a, b, m in zip(now, then, masks, strict=True)])


def _ratio_metrics(
    coefficient: torch.Tensor,
    ratio: torch.Tensor,
    learns: torch.Tensor,
    log_ratio: torch.Tensor,
    mask: torch.Tensor,
    meter: Meter,
) -> None:
    """Ratios and mask shares by the sign of the advantage, over the tokens in the loss mask."""
    for sign, rows in (("positive", coefficient >= 0), ("negative", coefficient < 0)):
        where = mask & rows
        count = int(where.sum())
        meter.add(f"ratio_{sign}_learned", float(ratio[where].double().sum()), count)
        meter.add(f"masked_{sign}_learned", float((~learns)[where].sum()), count)
    if bool(mask.any()):
        meter.add("ratio_max_learned", float(ratio[mask].max()))
    # KL(now‖behaviour) is estimated on behaviour's samples: k3 of the swapped pair, E_b[ρ − 1 − log ρ] = KL(b‖now)
    # would be the other direction, so weight by the ratio: E_b[ρ log ρ − ρ + 1]
    x = log_ratio[mask].double()
    meter.add("kl_behaviour_learned", float((x.exp() * x - x.exp() + 1).sum()), len(x))
