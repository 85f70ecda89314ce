"""A worker process that judges answers: `python -P worker_main.py KIND`, requests pickled on stdin, replies as JSON.

It runs as a script of its own and imports nothing of delphic, so it starts quickly, in its own main thread, and never
runs the caller's `__main__` again. It judges text that a policy wrote: what that text does to it (a loop, a memory
bomb) ends with this process. Replies are JSON because the parent must not unpickle what comes from here.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import re
import signal
import struct
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

MEMORY = 8 << 30  # bytes of address space; 9**9**9**9 must not take the machine with it


def math_judge(_: Any) -> Callable[[Any], Any]:
    """Requests ("parse", gold) → bool, and ("verify", gold, completion) → float."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)  # it warns that its own time limits are off; ours is the parent's
    targets = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]

    # 4.5e33 would be read as 4.5 times Euler's number times 33
    exponent = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([+-]?\d{1,3})(?![\w.]\w)(?!\w)")

    def read(text: str) -> list[Any]:
        return parse(exponent.sub(r"\1 \\times 10^{\2}", text), targets, parsing_timeout=None)

    @lru_cache(maxsize=4096)
    def gold_of(text: str) -> list[Any]:
        # in a box, as the completion's answer is: bare LaTeX is not found at all, and a bare 14,16 is read as 14.16
        return read(text if "\\boxed" in text else f"$\\boxed{{{text}}}$")

    def judge(request: Any) -> Any:
        if request[0] == "parse":
            return any(not isinstance(found, str) for found in gold_of(request[1]))
        gold = gold_of(request[1])
        found = read(request[2])
        # verify([], []) and the like must never count as right
        return float(bool(gold) and bool(found) and verify(gold, found, timeout_seconds=None))

    return judge


def reasoning_gym_judge(_: Any) -> Callable[[Any], Any]:
    """Requests (generator, parameters, answer, entry) → the generator's own score; 0 where its scorer raises."""
    from reasoning_gym import create_dataset

    datasets: dict[str, Any] = {}

    def judge(request: Any) -> Any:
        generator, parameters, answer, entry = request
        key = f"{generator} {sorted(parameters.items())}"
        if key not in datasets:
            datasets[key] = create_dataset(generator, **parameters)
        try:
            return float(datasets[key].score_answer(answer, entry))
        except Exception:  # prime_factorization raises on text
            return 0.0

    return judge


def sleep_judge(setup: Any) -> Callable[[Any], Any]:
    """For tests: sleeps, dies or answers, as asked."""
    import time

    def judge(request: Any) -> Any:
        if request[0] == "sleep":
            time.sleep(request[1])
        if request[0] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if request[0] == "raise":
            raise RuntimeError("as asked")
        return request[1]

    return judge


JUDGES = {"math": math_judge, "reasoning_gym": reasoning_gym_judge, "sleep": sleep_judge}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which finishes its step first
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not look like a reply
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    def reply(content: Any) -> None:
        replies.write(json.dumps(content) + "\n")
        replies.flush()

    def receive() -> Any:
        size = sys.stdin.buffer.read(8)
        return pickle.loads(sys.stdin.buffer.read(struct.unpack("<Q", size)[0])) if len(size) == 8 else None

    try:
        limit, setup = receive()
        judge = JUDGES[sys.argv[1]](setup)
    except Exception as error:
        reply({"failed": f"{type(error).__name__}: {error}"})
        return
    reply({"ready": True})
    while (request := receive()) is not None:
        # where the parent is gone and cannot end this process, the alarm does: its default action is to terminate
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 2 * limit + 10)
        try:
            reply({"value": judge(request)})
        except Exception as error:
            reply({"raised": f"{type(error).__name__}: {error}"[:300]})
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main()
