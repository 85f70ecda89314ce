"""The training loop. It sees a sampler, a learner, a source of rollouts and a folder, and nothing else of them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from delphic.config import RunConfig, locate
from delphic.errors import UserError
from delphic.policy.load import load_policy, resolve
from delphic.policy.model import Policy
from delphic.policy.scores import check_layers
from delphic.rollouts import Rollouts
from delphic.tasks import load_rewards, make_task
from delphic.training.estimate import estimate
from delphic.training.evaluate import Evaluation, evaluate_policy
from delphic.training.generate import Generated, Generator, Recorded, add_batch
from delphic.training.learner import LocalLearner, NonFiniteError
from delphic.training.metrics import Meter
from delphic.training.noise import noise_figures
from delphic.training.outlook import Outlook
from delphic.training.prompts import Fitting, fitting
from delphic.training.protocols import Display, Learner, Mute, Sampler
from delphic.training.run_folder import RunFolder
from delphic.training.sampler import LocalSampler
from delphic.training.team import join, leave


@dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended; a run that stopped at its plateau was not interrupted."""

    finished: int  # steps done
    interrupted: bool
    rows: list[dict[str, Any]]  # metrics.jsonl


@dataclass
class Parts:
    """Everything a loop is made of; `build_parts` makes the ones of a single process.

    statistics: `statistics/…` of a step's rollouts, sampled by the policy as it is.
    """

    config: RunConfig
    policy: Policy
    learner: Learner
    sampler: Sampler
    source: Generator | Recorded
    evaluate: Callable[[], Evaluation | None]
    statistics: Callable[[Rollouts], dict[str, float]]


def build_parts(config: RunConfig, folder: Path, weights: Path | None = None) -> Parts:
    """Model, task, sampler and learner in this process; the sampler shares the learner's weights.

    Args:
        folder: the config file's, where its paths are looked up first. weights: a checkpoint to start from.
    """
    if config.model.threads:
        torch.set_num_threads(config.model.threads)
    task = make_task(config.task, config.evaluation.problems, config.seed, folder)
    rewards = load_rewards(task, config.task.rewards, config.task.reward_weights, folder)
    model = resolve(config.model.path, folder)
    adapters = weights if config.model.lora_rank else None
    team = join()
    policy = load_policy(model if adapters or not weights else str(weights), config.model, adapters, config.seed)
    if config.train.offline is None:
        task = fitting(task, policy, config.sampling)
    learner = LocalLearner(policy, config, lambda: load_policy(model, config.model), team)
    if weights:
        learner.load(weights)
    sampler = LocalSampler(policy, config, team)
    source: Generator | Recorded
    if config.train.offline is None:
        source = Generator(config, task, rewards, sampler)
    else:
        source = Recorded(config, locate(config.train.offline, folder), policy.vocabulary)
    if config.train.statistics_every:
        check_layers(policy)
    return Parts(
        config,
        policy,
        learner,
        sampler,
        source,
        lambda: evaluate_policy(config, task, rewards, sampler),
        lambda rollouts: noise_figures(policy, rollouts, config, learner.optimiser.second_moments(), team),
    )


def train(config: RunConfig, output: Path, folder: Path, resume: bool, display: Display) -> Outcome:
    """Run a config to its end, or on from its last checkpoint.

    Raises:
        UserError: anything wrong with what the user gave, before or during the run; nothing is overwritten.
        NonFiniteError: a loss or gradient is not finite; the rollout is in `halted/`, the last checkpoint untouched.
    """
    team = join()
    run = RunFolder(output, config, resume, writes=team.first)
    display = display if team.first else Mute()
    try:
        checkpoint = run.latest_checkpoint()
        done = checkpoint.step if checkpoint else 0
        parts = build_parts(config, folder, checkpoint.folder if checkpoint else None)
        state = checkpoint.state if checkpoint else {"cursor": 0, "best": None}
        expected = None
        task = parts.source.task if isinstance(parts.source, Generator) else None
        if config.train.estimate and isinstance(task, Fitting) and team.size == 1:
            assert isinstance(parts.source, Generator)
            expected = estimate(parts.policy, config, parts.source, done, task.longest)
        run.begin()  # nothing is written before all that the config names has been found good
        run.cut_logs(done if checkpoint else -1)
        display.start(config, done)
        if isinstance(task, Fitting) and task.left_out:
            display.message(
                f"left out: {task.left_out} problems with more than {config.sampling.max_prompt_tokens} tokens"
            )
        if expected is not None:
            display.message(expected.sentence())
        with interruptible() as interrupted:
            outlook = Outlook(config, team.same(run.rows), output, team.same)
            loop = Loop(parts, run, display, done, state, outlook)
            while not loop.over and not team.agree(interrupted.is_set()):
                loop.step()
            loop.save()  # an interruption may have come after the last step decided whether to save
        return Outcome(loop.done, not loop.over, run.rows())
    finally:
        display.close()
        run.close()
        leave()


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event, so that the step can finish and be saved; the second one interrupts."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def first(_signal: int, _frame: object) -> None:
        event.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    old = signal.signal(signal.SIGINT, first)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, old)


class Loop:
    """Sample, learn, sync, log, save; one `step` at a time. All its state is in the checkpoint and the rollout files."""

    def __init__(
        self, parts: Parts, run: RunFolder, display: Display, done: int, state: dict[str, Any], outlook: Outlook
    ) -> None:
        self.outlook = outlook
        self.parts, self.run, self.display, self.config = parts, run, display, parts.config
        self.done = self.saved = done
        self.cursor = int(state["cursor"])
        self.best: dict[str, Any] | None = state["best"]
        self.waiting: dict[int, Generated] = {}  # rollouts sampled for later steps (the lag's queue)
        self.recorded = self.config.train.offline is not None
        self.parts.sampler.sync(parts.learner)
        if done == 0:
            self._log_evaluation(0)
        if outlook.ended:
            display.message(outlook.ended)

    @property
    def over(self) -> bool:
        return self.done >= self.config.train.steps or bool(self.outlook.ended)

    def step(self) -> None:
        """One rollout batch learned."""
        started = time.perf_counter()
        number = self.done + 1
        meter, timing = Meter(), Meter()
        self._sample(number, timing)
        generated = self._take(number)
        rollouts = generated.rollouts
        self._check_version(number, rollouts)
        self._check_finite(number, rollouts)
        self._measure(rollouts, generated, meter)
        if not np.isfinite(rollouts.reward).any():
            self.display.message(
                f"step {number}: no completion has a finite reward, so nothing was learned from rewards"
            )
        self.parts.learner.scale_learning_rate(self.outlook.rate_scale)
        every, moment = self.config.train.statistics_every, time.perf_counter()
        if every and number % every == 0:
            for name, value in self.parts.statistics(rollouts).items():
                meter.add(name, value)
            timing.add("seconds_statistics", time.perf_counter() - moment)
        try:
            self.parts.learner.learn(rollouts, number, meter, timing)
        except NonFiniteError as error:
            self._keep_halted(number, error.rollout)
            raise
        self.done = number
        moment = time.perf_counter()
        values = self.outlook.look(number, meter.values())
        timing.add("seconds_forecast", time.perf_counter() - moment)
        moment = time.perf_counter()
        if self.outlook.schedule.syncs(number) or self._evaluation_due(number):
            self.parts.sampler.sync(self.parts.learner)
        timing.add("seconds_sync", time.perf_counter() - moment)
        moment = time.perf_counter()
        evaluation = self.parts.evaluate() if self._evaluation_due(number) else None
        timing.add("seconds_evaluate", time.perf_counter() - moment)
        row = {"step": number, **values, **(evaluation.metrics() if evaluation else {})}
        self.run.append("metrics.jsonl", row)
        better = evaluation is not None and (self.best is None or evaluation.accuracy > self.best["eval_accuracy"])
        if better and evaluation is not None:
            self.best = {"step": number, "eval_accuracy": evaluation.accuracy}
        if better or self.over or number % self.config.checkpoint.every == 0:
            self.save()
        total = time.perf_counter() - started
        timing.add("seconds_total", total)
        timing.add("tokens_per_second", float(rollouts.lengths.sum()) / total)
        self.run.append("timing.jsonl", {"step": number, **timing.values()})
        self.display.step(row, timing.values())
        for text in self.outlook.news:
            self.display.message(text)

    def save(self) -> None:
        """A checkpoint of the last finished step, unless it has one."""
        if self.saved < self.done:
            state = {"cursor": self.cursor, "best": self.best}
            self.run.save_checkpoint(self.done, self.parts.learner.save, state)
            self.saved = self.done

    def _sample(self, number: int, timing: Meter) -> None:
        """Everything that the policy after `number − 1` steps samples, this step's rollouts or later ones'."""
        started = time.perf_counter()
        schedule, steps = self.outlook.schedule, self.config.train.steps
        due = [number] if self.recorded else schedule.consumers(number - 1, steps)
        for step in due:
            recorded = None if self.recorded or self.outlook.departs else self.run.read_rollouts(step)
            if recorded is not None:  # sampled before a crash: learn it again from the same bits
                self.waiting[step] = _from_file(*recorded)
            else:
                self.waiting[step] = self.parts.source.generate(step, self.cursor)
            generated = self.waiting[step]
            self.cursor = generated.cursor
            if recorded is None and not self.recorded:
                meta = {
                    "step": step,
                    "cursor": generated.cursor,
                    "refill_rounds": generated.refill_rounds,
                    "dropped_groups": generated.dropped_groups,
                    "fingerprint": self.config.fingerprint(),
                }
                self.run.write_rollouts(step, generated.rollouts, meta)
        timing.add("seconds_sample", time.perf_counter() - started)

    def _take(self, number: int) -> Generated:
        if number in self.waiting:
            return self.waiting.pop(number)
        recorded = self.run.read_rollouts(number)  # queued before the checkpoint that this process began from
        if recorded is None:
            raise UserError(f"{self.run.rollout_path(number)} is missing; the lag needs it to go on")
        return _from_file(*recorded)

    def _check_version(self, number: int, rollouts: Rollouts) -> None:
        """Lag is asserted, not assumed: the rollouts come from the very update that the schedule names."""
        expected = self.outlook.schedule.source_step(number) * self.config.train.updates_per_step
        if not self.recorded and bool((rollouts.version != expected).any()):
            raise RuntimeError(
                f"step {number} must learn from policy version {expected}, its rollouts say {set(rollouts.version.tolist())}"
            )

    def _check_finite(self, number: int, rollouts: Rollouts) -> None:
        """Halt on a policy that no longer has probabilities. Its garbage may earn equal rewards, and so no gradient
        that could tell."""
        if self.recorded:
            return
        for row, logp in enumerate(rollouts.behaviour_logp):
            if not np.isfinite(logp).all():
                error = NonFiniteError("the sampler's log-probs are not finite", rollouts, row)
                self._keep_halted(number, error.rollout)
                raise error

    def _keep_halted(self, number: int, rollout: Rollouts) -> None:
        self.run.write_halted(number, rollout)

    def _measure(self, rollouts: Rollouts, generated: Generated, meter: Meter) -> None:
        add_batch(meter, rollouts)
        if self.config.sampling.dynamic:
            meter.add("refill_rounds", generated.refill_rounds)
            meter.add("refill_dropped_groups", generated.dropped_groups)

    def _evaluation_due(self, number: int) -> bool:
        every = self.config.evaluation.every
        return self.over or (every > 0 and number % every == 0)

    def _log_evaluation(self, step: int) -> None:
        if self.config.evaluation.problems:
            self.display.message("evaluating on held-out problems before training …")
        evaluation = self.parts.evaluate()
        if evaluation is not None:
            row = {"step": step, **evaluation.metrics()}
            self.best = {"step": step, "eval_accuracy": evaluation.accuracy}
            self.run.append("metrics.jsonl", row)
            self.display.step(row, {})


def _from_file(rollouts: Rollouts, meta: dict[str, Any]) -> Generated:
    return Generated(rollouts, int(meta["cursor"]), int(meta["refill_rounds"]), int(meta["dropped_groups"]))
