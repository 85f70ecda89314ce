"""Gram matrices of scores, and a whole pilot of `delphic plan`, against what they replace; in turn within one run.

    make bench                                                # the built-in model
    python benchmarks/bench_scores.py --model FOLDER          # and a real one, once; minutes and some GB

Writes "scores" of benchmarks/results.json and docs/performance-scores.md. One thread, float32.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from delphic.config import make_config
from delphic.planning.pilot import take_pilot
from delphic.policy.load import load_policy
from delphic.policy.logprobs import plain_rows
from delphic.policy.model import Policy
from delphic.policy.scores import group_scores
from delphic.rollouts import Rollouts
from delphic.training.loop import Parts, build_parts
from delphic.training.metrics import Meter

PROMPT, COMPLETION, GROUPS, SIZE = 100, 32, 16, 16  # the real model's batch: tokens, tokens, prompts, completions


def seconds(work: Callable[[], Any]) -> float:
    """CPU time: with one thread it is the time on a machine that does nothing else."""
    began = time.process_time()
    work()
    return time.process_time() - began


def log_probs(policy: Policy, prompts: Sequence[np.ndarray], tokens: Sequence[np.ndarray]) -> torch.Tensor:
    """Σ log π of plain rows, with graph."""
    ids, chosen = plain_rows(prompts, tokens)
    logits = policy.logits(policy.states(ids)[chosen])
    return (logits.gather(-1, torch.roll(ids, -1, 1)[chosen][:, None])[:, 0] - logits.logsumexp(-1)).sum()


def plain_pass(policy: Policy, part: Rollouts) -> None:
    log_probs(policy, part.prompt_tokens, part.tokens).backward()
    policy.model.zero_grad(set_to_none=True)


def loop_gram(policy: Policy, prompts: Sequence[np.ndarray], tokens: Sequence[np.ndarray]) -> torch.Tensor:
    """The Gram matrix by a backward pass a completion, all gradients of the group stored."""
    parameters = list(policy.parameters().values())
    scores = torch.empty(len(tokens), sum(p.numel() for p in parameters))
    for i, (prompt, completion) in enumerate(zip(prompts, tokens, strict=True)):
        found = torch.autograd.grad(log_probs(policy, [prompt], [completion]), parameters)
        torch.cat([g.flatten() for g in found], out=scores[i])
    return scores @ scores.T


def in_turn(rounds: int, work: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Seconds of each, round by round; a first round warms up."""
    for each in work.values():
        each()
    out: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, each in work.items():
            out[name].append(seconds(each))
    return out


def ratios(took: dict[str, list[float]], over: str, under: str) -> dict[str, Any]:
    found = [a / b for a, b in zip(took[over], took[under], strict=True)]
    return {"median": statistics.median(found), "rounds": found}


def built_in(rounds: int) -> dict[str, Any]:
    """8 × 16 completions of the arithmetic task."""
    parts = _parts("sgd", prompts=8)
    policy, rollouts = parts.policy, parts.source.generate(1, 0).rollouts
    groups = [rollouts.select(np.flatnonzero(rollouts.group == g)) for g in np.unique(rollouts.group)]
    work: dict[str, Callable[[], Any]] = {
        "scores": lambda: [group_scores(policy, g.prompt_tokens[0], g.tokens, g.loss_mask, 1.0) for g in groups],
        "whole": lambda: plain_pass(policy, rollouts),
        "by_group": lambda: [plain_pass(policy, g) for g in groups],
        "loop": lambda: [loop_gram(policy, g.prompt_tokens, g.tokens) for g in groups],
    }
    took = in_turn(rounds, work)
    return {
        "seconds": {name: statistics.median(times) for name, times in took.items()},
        "over_plain_pass": ratios(took, "scores", "whole"),
        "over_plain_passes_by_group": ratios(took, "scores", "by_group"),
        "loop_over_scores": ratios(took, "loop", "scores"),
    }


def _parts(optimizer: str, prompts: int) -> Parts:
    config = {
        "sampling": {"prompts": prompts, "completions": SIZE, "max_new_tokens": 6},
        "train": {"optimizer": optimizer, "reference_every": 0, "learning_rate": 1e-6},
        "evaluation": {"problems": 0},
    }
    return build_parts(make_config(config, "bench"), Path())


def pilot(optimizer: str, rounds: int, prompts: int = 16) -> dict[str, Any]:
    """A pilot (sampling, rewards, scores; adamw: its second moments, too) and a training step of as many prompts that
    shares none in learning. The step learns as any: silent groups are skipped, which the pilot scores."""
    piloted, trained = _parts(optimizer, prompts), _parts(optimizer, prompts)
    trained.policy.shares_prefix = False

    def step() -> None:
        trained.sampler.sync(trained.learner)
        trained.learner.learn(trained.source.generate(1, 0).rollouts, 1, Meter(), Meter())

    took = in_turn(
        rounds, {"pilot": lambda: take_pilot(piloted, Path(), np.arange(prompts), SIZE, lambda _: None), "step": step}
    )
    return {
        "optimizer": optimizer,
        "seconds": {name: statistics.median(times) for name, times in took.items()},
        "pilot_over_step": ratios(took, "pilot", "step"),
    }


def real(folder: Path, rows: int) -> dict[str, Any]:
    """The real model, once: every group's Gram matrix, and the loop on `rows` completions of one group, scaled to all.
    Random tokens: the time does not depend on which. Each in a process of its own, for its peak memory."""
    out: dict[str, Any] = {"shape": [GROUPS, SIZE, PROMPT, COMPLETION], "loop_completions": rows}
    for who, groups, size in (("scores", GROUPS, SIZE), ("loop", 1, rows)):
        command = [sys.executable, __file__, "--model", str(folder), "--only", who]
        command += ["--groups", str(groups), "--completions", str(size)]
        done = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()
        out[f"{who}_seconds_a_group"] = float(done[-2]) / groups * SIZE / size
        out[f"{who}_peak_gb"] = float(done[-1])
        print(who, out, flush=True)
    return out


def real_alone(folder: Path, who: str, count: int, size: int) -> None:
    """Print seconds and peak GB of one contestant."""
    policy, rng = load_policy(str(folder)), np.random.default_rng(0)
    limit = policy.vocabulary

    def group() -> tuple[np.ndarray, list[np.ndarray]]:
        prompt = rng.integers(limit, size=PROMPT).astype(np.int32)
        return prompt, [rng.integers(limit, size=COMPLETION).astype(np.int32) for _ in range(size)]

    def score(prompt: np.ndarray, tokens: list[np.ndarray]) -> Any:
        if who == "loop":
            return loop_gram(policy, [prompt] * size, tokens)
        return group_scores(policy, prompt, tokens, [np.ones(COMPLETION, dtype=bool)] * size, 1.0)

    groups = [group() for _ in range(count)]
    print(seconds(lambda: [score(*each) for each in groups]))
    status = Path("/proc/self/status").read_text()
    print(int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e9)


PAGE = """# Performance of scores

*Written by `benchmarks/bench_scores.py`; edit it, not this page.*

Gram matrices of a model's scores (`policy/scores.py`), and a whole pilot of `delphic plan`: one thread, float32, CPU time,
in turn within one run, medians (rounds).

| built-in model, 8 groups × 16 completions | ratio |
|---|---|
| Gram matrices over one plain forward and backward pass of the whole batch | {whole} |
| over plain passes group by group, which pad less | {by_group} |
| a loop of backward passes that stores every gradient, over the Gram matrices | {loop} |

| built-in model, 16 prompts × 16 completions | ratio |
|---|---|
{pilots}

{real}"""

REAL = """{model}, {groups} × {size} completions, prompts of {prompt} tokens, completions of {completion} (random ones), measured once:
{ours:.1f} s a group and {peak:.2f} GB at most. The loop, measured on {rows} completions of one group and scaled to {size},
takes {theirs:.1f} s a group (**{ratio:.2f}** ×), and a group's gradients alone take it {stored:.1f} GB.
"""


def write_page(scores: dict[str, Any], path: Path) -> None:
    def shown(ratio: dict[str, Any]) -> str:
        return f"**{ratio['median']:.2f}** ({', '.join(f'{r:.2f}' for r in ratio['rounds'])})"

    built, alone = scores["built_in"], scores.get("real")
    about = {"sgd": "", "adamw": " in Adam's units, its second moments from the pilot,"}
    path.write_text(
        PAGE.format(
            whole=shown(built["over_plain_pass"]),
            by_group=shown(built["over_plain_passes_by_group"]),
            loop=shown(built["loop_over_scores"]),
            pilots="\n".join(
                f"| a pilot (sampling, rewards, scores){about[p['optimizer']]} over a training step without shared prompts "
                f"({p['optimizer']}) | {shown(p['pilot_over_step'])} |"
                for p in scores["pilot"]
            ),
            real=REAL.format(
                model=alone["model"],
                **dict(zip(("groups", "size", "prompt", "completion"), alone["shape"], strict=True)),
                ours=alone["scores_seconds_a_group"],
                theirs=alone["loop_seconds_a_group"],
                ratio=alone["loop_seconds_a_group"] / alone["scores_seconds_a_group"],
                peak=alone["scores_peak_gb"],
                rows=alone["loop_completions"],
                stored=4 * alone["parameters"] * SIZE / 1e9,
            )
            if alone
            else "",
        ),
        encoding="utf-8",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", type=Path, help="folder of a real model, measured instead of the built-in one")
    parser.add_argument("--name", default="SmolLM2-135M", help="what the page calls it")
    parser.add_argument("--loop-completions", type=int, default=4, help="of the real model, on which the loop is timed")
    parser.add_argument("--only", choices=("scores", "loop"), help=argparse.SUPPRESS)
    parser.add_argument("--groups", type=int, default=GROUPS, help=argparse.SUPPRESS)
    parser.add_argument("--completions", type=int, default=SIZE, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only:
        real_alone(options.model, options.only, options.groups, options.completions)
        return
    here = Path(__file__).resolve().parent
    result = json.loads((here / "results.json").read_text())
    scores = result.setdefault("scores", {})
    if options.model:
        scores["real"] = real(options.model, options.loop_completions) | {"model": options.name}
        scores["real"]["parameters"] = sum(p.numel() for p in load_policy(str(options.model)).parameters().values())
    else:
        scores["built_in"] = built_in(options.rounds)
        scores["pilot"] = [pilot(name, options.rounds) for name in ("sgd", "adamw")]
    print(json.dumps(scores, indent=1))
    (here / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    write_page(scores, here.parent / "docs" / "performance-scores.md")


if __name__ == "__main__":
    main()
