"""`delphic diagnose` on long logs: 50,000 steps × 40 keys as JSONL and CSV, and 20,000 steps against rldoctor, in turn.

    python benchmarks/bench_diagnose.py [--rounds 3]

Wall seconds and peak memory of the whole process, one thread. rldoctor is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

OURS, PEER = "delphic, 20,000 steps, jsonl", "rldoctor, 20,000 steps, jsonl"
KEYS = ("reward", "reward_std", "frac_reward_zero_std", "entropy", "kl", "grad_norm", "learning_rate", "loss", "completions/mean_length", "completions/clipped_ratio")  # fmt: skip


def write(path: Path, steps: int) -> None:
    """A healthy TRL-like log of 40 keys."""
    rng, t = np.random.default_rng(0), np.arange(steps)
    columns = {key: rng.random(steps) for key in (*KEYS, *(f"other/{k}" for k in range(29)))}
    columns["reward"] = np.clip(0.2 + 0.6 * (1 - np.exp(-5 * t / steps)) + rng.normal(0, 0.03, steps), 0, 1)
    for key, size in (("frac_reward_zero_std", 0.3), ("completions/clipped_ratio", 0.1), ("kl", 0.1)):
        columns[key] = size * columns[key]
    names, table = list(columns), np.stack(list(columns.values()), 1).round(6).tolist()
    with path.open("w") as file:
        if path.suffix == ".csv":
            file.write(",".join(["step", *names]) + "\n")
            file.writelines(",".join(map(str, [k + 1, *row])) + "\n" for k, row in enumerate(table))
        else:
            file.writelines(
                json.dumps({"step": k + 1, **dict(zip(names, row, strict=True))}) + "\n" for k, row in enumerate(table)
            )


def measure(command: list[str]) -> tuple[float, float]:
    """(seconds, megabytes at the peak) of a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if os.waitstatus_to_exitcode(status) not in (0, 1, 3):
        raise SystemExit(f"{' '.join(command)} failed: {process.stderr.read().decode() if process.stderr else ''}")
    scale = 1 if sys.platform == "darwin" else 1024
    return seconds, usage.ru_maxrss * scale / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    ours = [sys.executable, "-m", "delphic", "diagnose"]
    peer = Path(sys.executable).with_name("rl-doctor")
    there = importlib.util.find_spec("rl_doctor") is not None and peer.exists()
    if not there:
        print("rldoctor is not installed; left out")
    with tempfile.TemporaryDirectory() as folder:
        jobs: dict[str, list[str]] = {}
        for name, steps in (("long.jsonl", 50_000), ("long.csv", 50_000), ("log.jsonl", 20_000)):
            write(Path(folder) / name, steps)
            jobs[f"delphic, {steps:,} steps, {Path(name).suffix[1:]}"] = [*ours, str(Path(folder) / name)]
        if there:
            jobs[PEER] = [str(peer), "diagnose", str(Path(folder) / "log.jsonl")]
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
        for _ in range(rounds):
            for name, command in jobs.items():
                found[name].append(measure(command))
    text = page(found)
    print(text)
    (Path(__file__).resolve().parent.parent / "docs" / "performance-diagnose.md").write_text(text, encoding="utf-8")


def page(found: dict[str, list[tuple[float, float]]]) -> str:
    """docs/performance-diagnose.md."""
    lines = [
        "# Performance of a diagnosis",
        "",
        "*Written by `benchmarks/bench_diagnose.py`; edit it, not this page.*",
        "",
        "A clean log from the command line to the verdict: wall seconds and peak memory of the whole process, one thread, in turn within",
        f"one run, {len(next(iter(found.values())))} rounds.",
        "",
        "| log, keys | seconds, median (range) | peak memory |",
        "|---|---|---|",
    ]
    for name, values in found.items():
        seconds, memory = zip(*values, strict=True)
        lines.append(
            f"| {name}, 40 keys | **{statistics.median(seconds):.2f}** ({min(seconds):.2f} – {max(seconds):.2f}) | {max(memory):.0f} MB |"
        )
    theirs = found.get(PEER)
    if theirs:
        pairs = list(zip(found[OURS], theirs, strict=True))
        ratios = [sorted(b[k] / a[k] for a, b in pairs) for k in (0, 1)]
        time_, memory_ = (f"**{r[len(r) // 2]:.1f}** × ({r[0]:.1f} – {r[-1]:.1f})" for r in ratios)
        lines += ["", f"rldoctor 0.2 over delphic, the same 20,000 steps: {time_} the time, {memory_} the memory."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
