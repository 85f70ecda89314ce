"""Whole optimiser steps (sampling, rewarding, learning) against TRL's GRPOTrainer, in turn within one run.

    make bench                       # writes benchmarks/results.json and docs/performance.md
    python benchmarks/bench_step.py --case natural --rounds 3
    python benchmarks/bench_step.py --case real --model FOLDER --rounds 2         # or real_natural

Both train the same model in float32 with the same prompts per step, G, length limit and number of threads;
each round gives every contestant the same number of steps, so that a machine whose speed drifts drifts for all.
Ratios are quoted round by round. Peak memory comes from a process of its own for each contestant.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

from delphic.config import make_config
from delphic.policy.load import load_policy
from delphic.training.loop import build_parts
from delphic.training.metrics import Meter

MODEL = Path(str(resources.files("delphic") / "assets" / "arithmetic"))
BUDGET = {False: 16384, True: 2048}  # tokens a micro-batch, by Case.real


@dataclass(frozen=True)
class Case:
    """One workload. `fixed`: every completion has max_new_tokens tokens and a reward of its own (no silent group)."""

    about: str
    prompts: int
    completions: int
    max_new_tokens: int
    fixed: bool
    real: bool = False  # the model of --model, prompts of about 200 tokens
    stop: str = ""  # a token that holds it ends a completion
    steps: int = 3  # of a process that is measured whole


CASES = {
    "natural": Case("the arithmetic task as it is: natural stops, silent groups", 16, 16, 6, False),
    "fixed": Case("every completion 32 tokens, no silent group", 8, 16, 32, True),
    "real": Case(
        "SmolLM2-135M, prompts of about 200 tokens, every completion 64 tokens", 2, 16, 64, True, real=True, steps=1
    ),
    "real_natural": Case(
        "SmolLM2-135M, the same prompts, two-digit sums as they are: until a new line, at most 64 tokens",
        2,
        16,
        64,
        False,
        real=True,
        stop="\n",
    ),
}


def reward_of(prompt: str, completion: str, answer: str, fixed: bool) -> float:
    if fixed:  # any number that differs within a group
        return (hash(completion) % 1000) / 1000
    return float(completion.strip() == answer)


def delphic_contestant(case: Case, objective: Any) -> Callable[[], dict[str, float]]:
    """A function that does one step and returns its time split."""
    config = make_config(
        {
            "objective": objective,
            "sampling": {
                k: v for k, v in asdict(case).items() if k in ("prompts", "completions", "max_new_tokens", "stop")
            },
            "train": {"steps": 10_000, "learning_rate": 1e-6, "reference_every": 0, "token_budget": BUDGET[case.real]},
            "evaluation": {"problems": 0},
            "model": {"path": str(MODEL)},
            "task": {"name": "file", "path": str(long_prompts()), "answer_column": "answer", "rewards": ["exact_match"]}
            if case.real
            else {},
        },
        "bench",
    )
    parts = build_parts(config, Path())
    if case.fixed:
        parts.sampler.policy.eos = set()  # type: ignore[attr-defined]
        fixed = [type(r)(r.name, r.weight, _fixed_reward) for r in parts.source.rewards]  # type: ignore[union-attr]
        parts.source.rewards = fixed  # type: ignore[union-attr]
    state = {"step": 0, "cursor": 0}

    def step() -> dict[str, float]:
        state["step"] += 1
        began = time.perf_counter()
        parts.sampler.sync(parts.learner)
        generated = parts.source.generate(state["step"], state["cursor"])
        state["cursor"] = generated.cursor
        sampled = time.perf_counter()
        meter = Meter()
        parts.learner.learn(generated.rollouts, state["step"], meter, Meter())
        ended = time.perf_counter()
        values = meter.values()
        rows = generated.rollouts
        prompts = {p.tobytes(): len(p) for p in rows.prompt_tokens}
        tokens = sum(prompts.values()) + sum(len(t) - 1 for t in rows.tokens)
        return {
            "total": ended - began,
            "sample": sampled - began,
            "learn": ended - sampled,
            "learned_tokens": tokens * values["learned_share"],
        }

    return step


def long_prompts() -> Path:
    """A file of sums after many worked examples: prompts of about 200 tokens for a tokenizer that splits numbers."""
    rng = np.random.default_rng(0)
    path = Path(tempfile.gettempdir()) / f"delphic-bench-{os.getpid()}.jsonl"
    rows = []
    for _ in range(64):
        pairs = rng.integers(10, 99, size=(17, 2)).tolist()
        head = "".join(f"{a} + {b} = {a + b}\n" for a, b in pairs[:-1])
        rows.append({"prompt": f"{head}{pairs[-1][0]} + {pairs[-1][1]} =", "answer": str(sum(pairs[-1]))})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _fixed_reward(completions: list[str], **_: Any) -> list[float]:
    return [reward_of("", text, "", True) for text in completions]


def trl_contestant(case: Case) -> Callable[[int], list[float]]:
    """A function that does n steps of TRL's GRPOTrainer and returns their times."""
    warnings.filterwarnings("ignore")
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from delphic.tasks import Arithmetic

    ends = sorted(load_policy(str(MODEL)).tokens_containing(case.stop)) if case.stop else []

    problems = [(p.prompt, p.columns["answer"]) for p in Arithmetic().train]
    if case.real:
        rows = [json.loads(line) for line in long_prompts().read_text().splitlines()]
        problems = [(row["prompt"], row["answer"]) for row in rows]

    def reward(prompts: list[str], completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [reward_of(p, c, a, case.fixed) for p, c, a in zip(prompts, completions, answer, strict=True)]

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.times: list[float] = []

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.times.append(time.perf_counter() - self.began)

    def run(steps: int) -> list[float]:
        arguments = GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=case.prompts * case.completions,
            num_generations=case.completions,
            max_completion_length=case.max_new_tokens,
            generation_kwargs={"min_new_tokens": case.max_new_tokens} if case.fixed else None,
            max_steps=steps,
            learning_rate=1e-6,
            beta=0.0,
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            disable_dropout=True,
            gradient_checkpointing=False,
        )
        clock = Clock()
        model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        if ends:
            model.generation_config.eos_token_id = [model.generation_config.eos_token_id, *ends]
        trainer = GRPOTrainer(
            model=model,
            processing_class=AutoTokenizer.from_pretrained(MODEL),
            reward_funcs=reward,
            train_dataset=Dataset.from_dict(
                {"prompt": [prompt for prompt, _ in problems], "answer": [answer for _, answer in problems]}
            ),
            args=arguments,
            callbacks=[clock],
        )
        trainer.remove_callback(__import__("transformers").PrinterCallback)
        # a step of this trainer samples in _prepare_inputs, which on_step_begin precedes
        trainer.train()
        return clock.times

    return run


def matmul_peak() -> float:
    """GFLOP/s of a large float32 matrix product with the current threads, best of five."""
    a = torch.randn(1024, 1024)
    best = 0.0
    for _ in range(5):
        began = time.perf_counter()
        a @ a
        best = max(best, 2 * 1024**3 / (time.perf_counter() - began) / 1e9)
    return best


def peak_memory(case: str, who: str) -> float:
    """MB, of a process that does the case's steps."""
    command = [sys.executable, __file__, "--case", case, "--memory-of", who, "--model", str(MODEL)]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(out.stdout.strip().splitlines()[-1])


def compare(name: str, rounds: int, steps: int) -> dict[str, Any]:
    """Times of delphic and TRL, round by round; the first step of each round warms up and is not counted."""
    case = CASES[name]
    ours, theirs = delphic_contestant(case, "grpo"), trl_contestant(case)
    ours()
    theirs(2)
    ratios, ours_s, theirs_s, split = [], [], [], []
    for _ in range(rounds):
        trl_times = theirs(steps + 1)[1:]
        own = [ours() for _ in range(steps)]
        split += own
        a, b = statistics.median(trl_times), statistics.median(x["total"] for x in own)
        theirs_s.append(a)
        ours_s.append(b)
        ratios.append(a / b)
    completions = case.prompts * case.completions
    parameters = sum(p.numel() for p in load_policy(str(MODEL)).parameters().values())
    peak = matmul_peak()
    learn = sum(x["learn"] for x in split)
    flops = 6 * parameters * sum(x["learned_tokens"] for x in split)
    return {
        "case": name,
        "about": case.about,
        "shape": f"{case.prompts} × {case.completions}, at most {case.max_new_tokens} tokens",
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "steps_per_round": steps,
        "ratio_median": statistics.median(ratios),
        "ratios": ratios,
        "delphic_seconds": statistics.median(ours_s),
        "trl_seconds": statistics.median(theirs_s),
        "delphic_samples_per_second": completions / statistics.median(ours_s),
        "trl_samples_per_second": completions / statistics.median(theirs_s),
        "delphic_share_sampling": sum(x["sample"] for x in split) / sum(x["total"] for x in split),
        "matmul_peak_gflops": peak,
        "learning_gflops": flops / learn / 1e9,
        "learning_share_of_peak": flops / learn / 1e9 / peak,
        "delphic_peak_mb": peak_memory(name, "delphic"),
        "trl_peak_mb": peak_memory(name, "trl"),
    }


def compare_real(name: str, rounds: int) -> dict[str, Any]:
    """The real model: each contestant in a process of its own, in turn, so that neither holds memory that the other
    needs. A step is long enough to contain its own warming up."""
    case, seen = CASES[name], {"trl": [], "delphic": []}  # type: ignore[var-annotated]
    for _ in range(rounds):
        for who in seen:
            command = [sys.executable, __file__, "--case", name, "--memory-of", who, "--model", str(MODEL)]
            command += ["--threads", str(torch.get_num_threads())]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()
            seen[who].append((float(out[-2]), float(out[-1])))
            print(who, *out[-2:], flush=True)
    theirs, ours = ([seconds for seconds, _ in seen[who]] for who in ("trl", "delphic"))
    ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
    completions = case.prompts * case.completions
    return {
        "case": name,
        "about": case.about,
        "shape": f"{case.prompts} × {case.completions}, at most {case.max_new_tokens} tokens",
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "steps_per_round": case.steps,
        "ratio_median": statistics.median(ratios),
        "ratios": ratios,
        "delphic_seconds": statistics.median(ours),
        "trl_seconds": statistics.median(theirs),
        "delphic_samples_per_second": completions / statistics.median(ours),
        "trl_samples_per_second": completions / statistics.median(theirs),
        "delphic_peak_mb": max(peak for _, peak in seen["delphic"]),
        "trl_peak_mb": max(peak for _, peak in seen["trl"]),
    }


def critic_cost(rounds: int, steps: int) -> dict[str, Any]:
    """A2C's learned value head against the leave-one-out baseline, in turn."""
    case = CASES["natural"]
    loo, a2c = delphic_contestant(case, "rloo"), delphic_contestant(case, "a2c")
    loo(), a2c()
    ratios = []
    for _ in range(rounds):
        a = statistics.median(a2c()["total"] for _ in range(steps))
        ratios.append(a / statistics.median(loo()["total"] for _ in range(steps)))
    return {
        "time_ratio_median": statistics.median(ratios),
        "time_ratios": ratios,
        "a2c_peak_mb": peak_memory("natural", "a2c"),
        "rloo_peak_mb": peak_memory("natural", "rloo"),
    }


def vllm_seconds(prompts: list[str], stop: str, rounds: int, python: str) -> list[float]:
    """Seconds a round of vLLM's CPU build on the same prompts, in its own environment and with as many threads."""
    threads = str(torch.get_num_threads())
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(prompts, file)
        file.flush()
        command = [python, str(Path(__file__).with_name("sample_vllm.py")), str(MODEL), file.name, str(rounds)]
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "VLLM_CPU_OMP_THREADS_BIND": f"0-{int(threads) - 1}"}
        done = subprocess.run([*command, *([stop] if stop else [])], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"vLLM failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def sampling_alone(fixed: bool, rounds: int, vllm_python: str | None) -> dict[str, Any]:
    """Completions per second of the sampler against transformers' generate: the real case's prompts, 4 × 16 rows, 64
    tokens each, or (natural) until a new line."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from delphic.policy.sampling import SamplingSettings, sample
    from delphic.randomness import Purpose

    policy = load_policy(str(MODEL))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(MODEL), AutoTokenizer.from_pretrained(MODEL)
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    prompts = [json.loads(line)["prompt"] for line in long_prompts().read_text().splitlines()[:4]]
    stops = sorted(policy.tokens_containing("\n") | policy.eos)
    if fixed:
        policy.eos = set()
    settings = SamplingSettings(1.0, 1.0, 64, "" if fixed else "\n", 512)
    inputs = tokenizer([p for p in prompts for _ in range(16)], return_tensors="pt", padding=True)
    ends = {"min_new_tokens": 64} if fixed else {"eos_token_id": stops}
    ratios, ours_s, theirs_s, lengths = [], [], [], []
    for number in range(rounds):
        began = time.perf_counter()
        with torch.inference_mode():
            model.generate(**inputs, max_new_tokens=64, do_sample=True, top_k=0, top_p=1.0, **ends)
        theirs = time.perf_counter() - began
        began = time.perf_counter()
        out = sample(policy, prompts, 16, settings, seed=0, purpose=Purpose.EVALUATE, step=number, rows=np.arange(64))
        ours = time.perf_counter() - began
        lengths += [len(t) for t in out.tokens]
        ratios.append(theirs / ours)
        ours_s.append(ours)
        theirs_s.append(theirs)
    vllm = vllm_seconds(prompts, "" if fixed else "\n", rounds, vllm_python) if vllm_python else []
    return {
        "vllm_seconds": statistics.median(vllm) if vllm else None,
        "stops": "fixed length" if fixed else "natural stops",
        "rows": 64,
        "mean_length": float(np.mean(lengths)),
        "ratio_median": statistics.median(ratios),
        "ratios": ratios,
        "delphic_seconds": statistics.median(ours_s),
        "generate_seconds": statistics.median(theirs_s),
    }


def memory_of(case: str, who: str) -> None:
    steps = CASES[case].steps
    if who == "trl":
        seconds = trl_contestant(CASES[case])(steps)
    else:
        step = delphic_contestant(CASES[case], "grpo" if who == "delphic" else who)
        seconds = [step()["total"] for _ in range(steps)]
    print(statistics.mean(seconds))
    # not getrusage: its maximum is inherited from the parent process; this one starts anew with the program
    status = Path("/proc/self/status").read_text()
    print(int(status.split("VmHWM:")[1].split()[0]) / 1024)


PAGE = """# Performance

*Written by `make bench`; edit `benchmarks/bench_step.py`, not this page.*

Whole optimiser steps (sampling, rewarding, learning) against TRL {trl}'s GRPOTrainer: the built-in model, and
SmolLM2-135M where the row says so; same prompts per step, G, length limit, float32, {threads} thread(s), in turn within
one run. A ratio above 1 means that delphic does more samples per second.

| case | shape | delphic s/step | TRL s/step | samples/s, ratio (rounds) | peak memory, delphic / TRL |
|---|---|---|---|---|---|
{rows}

Where a step's time goes, and how near learning comes to the machine's matrix-product peak:

| case | sampling | learning | learning, GFLOP/s | of the peak |
|---|---|---|---|---|
{split}

Learning counts 6 × parameters × the learned share of all tokens (a prompt once, no completion's last token).

A critic (`a2c`: a value head on the prompt's last hidden state) against the leave-one-out baseline (`rloo`), same
batch: {critic_time:.2f} × the time, {a2c_mb:.0f} against {rloo_mb:.0f} MB.

{sampling}What makes the difference: a group's prompt goes through the model once, in sampling and in learning (its keys and
values are repeated for the completions, and their gradients meet in it again), finished rows leave the batch, the cache
grows in place, rows whose every gradient term is zero are not learned, padding is kept small by micro-batches of similar
length, and no second forward pass where the ratio is 1 by construction. With fixed lengths, short prompts and no silent
group little but overhead can be saved; with the real model, what TRL does more is each prompt 16 times, in sampling and in
learning. Counting multiplications, that is 2.9 × at 64 tokens a completion, and far more where completions are short.
"""


def write_page(result: dict[str, Any], path: Path) -> None:
    rows, split = [], []
    for c in result["cases"]:
        if "delphic_share_sampling" in c:
            split.append(
                f"| {c['about']} | {100 * c['delphic_share_sampling']:.0f} % | "
                f"{100 - 100 * c['delphic_share_sampling']:.0f} % | {c['learning_gflops']:.1f} | "
                f"{100 * c['learning_share_of_peak']:.0f} % of {c['matmul_peak_gflops']:.0f} |"
            )
        rounds = ", ".join(f"{r:.2f}" for r in c["ratios"])
        rows.append(
            f"| {c['about']} | {c['shape']} | {c['delphic_seconds']:.3f} | {c['trl_seconds']:.3f} | "
            f"**{c['ratio_median']:.2f}** ({rounds}) | {c['delphic_peak_mb']:.0f} / {c['trl_peak_mb']:.0f} MB |"
        )
    critic = result["critic"]
    path.write_text(
        PAGE.format(
            trl=result["trl"],
            threads=result["cases"][0]["threads"],
            rows="\n".join(rows),
            split="\n".join(split),
            critic_time=critic["time_ratio_median"],
            a2c_mb=critic["a2c_peak_mb"],
            sampling="".join(
                f"Sampling alone against transformers' `generate`, real model, {s['rows']} rows, {s['stops']} "
                f"({s['mean_length']:.1f} tokens on average): **{s['ratio_median']:.2f}** × the completions per second "
                f"({', '.join(f'{r:.2f}' for r in s['ratios'])})"
                + (
                    f"; vLLM's CPU build, whole rounds after a warm-up: {s['vllm_seconds']:.1f} s against our "
                    f"{s['delphic_seconds']:.1f} s.\n\n"
                    if s.get("vllm_seconds")
                    else ".\n\n"
                )
                for s in result.get("sampling", [])
            ),
            rloo_mb=critic["rloo_peak_mb"],
        ),
        encoding="utf-8",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=[*CASES, "all"], default="all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", type=Path, help="folder of the real model; its case is left out without one")
    parser.add_argument(
        "--vllm", metavar="PYTHON", help="interpreter of an environment with vllm-cpu, to sample against"
    )
    parser.add_argument("--steps-only", action="store_true", help="no sampling alone beside the real case")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    global MODEL
    if options.case.startswith("real"):
        if options.model is None:
            parser.error(f"--case {options.case} needs --model FOLDER")
        MODEL = options.model
    torch.set_num_threads(options.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    np.random.seed(0)
    if options.memory_of:
        memory_of(options.case, options.memory_of)
        return
    from importlib.metadata import version

    names = ["natural", "fixed"] if options.case == "all" else [options.case]
    here = Path(__file__).resolve().parent
    result = json.loads((here / "results.json").read_text())  # what is not measured now stays as it was
    result |= {"trl": version("trl"), "torch": torch.__version__}
    for name in names:
        real = CASES[name].real
        measured = compare_real(name, options.rounds) if real else compare(name, options.rounds, options.steps)
        result["cases"] = [*(c for c in result["cases"] if c["case"] != name), measured]
        print(json.dumps(measured, indent=1))
    if "real" in names and not options.steps_only:
        result["sampling"] = [sampling_alone(fixed, options.rounds, options.vllm) for fixed in (True, False)]
        print(json.dumps(result["sampling"], indent=1))
    if "natural" in names:
        result["critic"] = critic_cost(options.rounds, options.steps)
    result["cases"].sort(key=lambda c: list(CASES).index(c["case"]))
    (here / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    write_page(result, here.parent / "docs" / "performance.md")


if __name__ == "__main__":
    main()
