"""A small pool of worker processes that judge answers under a time limit of ours.

math-verify's own limits use signals, which only a main thread may set, and without them it has none; a scorer may also
evaluate what the policy wrote. So judging happens in processes: one too slow is killed, one that dies is replaced, and
the rest of the batch goes on. Results come in the order of the requests, whoever judged them.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import selectors
import struct
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from delphic.errors import UserError

START_LIMIT = 180.0  # seconds until a worker has imported what it needs, on a machine that is busy
MAX_WORKERS = 4


class _Worker:
    """One process, which judges one request at a time."""

    def __init__(self, kind: str, limit: float, setup: Any) -> None:
        program = Path(__file__).with_name("worker_main.py")
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(program), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.ready = False
        self.buffer = b""
        self.index: int | None = None  # of the request it has
        self.deadline = time.monotonic() + START_LIMIT
        self.send((limit, setup))

    def send(self, content: Any) -> None:
        data = pickle.dumps(content)
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(struct.pack("<Q", len(data)) + data)
            self.process.stdin.flush()
        except OSError:
            pass  # it is dead: reading says so, and the request is judged as lost

    def receive(self) -> dict[str, Any] | None:
        """A reply if one is complete.

        Raises:
            EOFError: the process is gone, or wrote something else than replies.
        """
        assert self.process.stdout is not None
        data = self.process.stdout.read()
        if data == b"":
            raise EOFError
        self.buffer += data or b""
        line, newline, rest = self.buffer.partition(b"\n")
        if not newline:
            return None
        self.buffer = rest
        try:
            content = json.loads(line)
        except ValueError:
            raise EOFError from None
        return content if isinstance(content, dict) else None

    def close(self) -> None:
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            try:
                if stream is not None:
                    stream.close()
            except OSError:
                pass  # unsent bytes for a dead process
        self.process.wait()


class WorkerPool:
    """Judges requests in order, at most `limit` seconds each.

    Args:
        kind: which judge the workers load (a key of `worker_main.JUDGES`).
        setup: what that judge is made from; picklable.
        size: processes at most; they start with the first request.

    `timeouts` and `crashes` count the requests that were lost so far.
    """

    def __init__(self, kind: str, limit: float, setup: Any = None, size: int | None = None) -> None:
        self.kind, self.limit, self.setup = kind, limit, setup
        self.size = size or max(1, min(MAX_WORKERS, os.cpu_count() or 1))
        self.timeouts = self.crashes = 0
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()
        self._process = os.getpid()
        _POOLS.add(self)

    def map(self, requests: Sequence[Any]) -> list[Any]:
        """One result a request; None where it took too long, raised, or took its worker down.

        Raises:
            UserError: the workers do not start.
        """
        with self._lock:
            if self._process != os.getpid():  # a fork has the parent's pipes: leave those processes to the parent
                self._workers, self._process = [], os.getpid()
            before = self.timeouts, self.crashes
            try:
                results = self._run(requests)
            except BaseException:
                self.close()  # replies of an interrupted batch must not meet the next one
                raise
        slow, dead = self.timeouts - before[0], self.crashes - before[1]
        if slow or dead:
            warnings.warn(
                f"{self.kind}: of {len(requests)} answers, {slow} took longer than task.reward_timeout = "
                f"{self.limit:g} s and {dead} took their worker down; their reward is 0",
                RuntimeWarning,
                stacklevel=2,
            )
        return results

    def _run(self, requests: Sequence[Any]) -> list[Any]:
        results: list[Any] = [None] * len(requests)
        waiting = deque(range(len(requests)))
        left = len(requests)
        failures = 0
        while left:
            for worker in [w for w in self._workers if w.index is None and w.ready and w.process.poll() is not None]:
                self._workers.remove(worker)  # it died between two batches, and took nothing with it
                worker.close()
            while len(self._workers) < min(self.size, left):
                self._workers.append(_Worker(self.kind, self.limit, self.setup))
            for worker in self._workers:
                if worker.ready and worker.index is None and waiting:
                    worker.index = waiting.popleft()
                    worker.deadline = time.monotonic() + self.limit
                    worker.send(requests[worker.index])
            for worker in self._wait():
                lost = None
                try:
                    reply = worker.receive()
                    if reply is None:
                        lost = "timeouts" if time.monotonic() > worker.deadline else None
                    elif "failed" in reply:
                        raise UserError(f"task: the workers that judge answers do not start: {reply['failed']}")
                    elif not worker.ready:
                        worker.ready, worker.deadline = True, float("inf")
                    elif worker.index is not None:
                        results[worker.index] = reply.get("value")
                        worker.index, worker.deadline = None, float("inf")
                        left -= 1
                except EOFError:
                    lost = "crashes"
                if lost is None:
                    continue
                if worker.index is not None:
                    setattr(self, lost, getattr(self, lost) + 1)
                    left -= 1
                elif not worker.ready:
                    failures += 1
                    if failures > self.size:
                        raise UserError(
                            "task: the workers that judge answers do not start; is the machine out of memory?"
                        )
                self._workers.remove(worker)
                worker.close()
        return results

    def _wait(self) -> list[_Worker]:
        """Workers with something to read, or past their deadline."""
        busy = [worker for worker in self._workers if worker.index is not None or not worker.ready]
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                assert worker.process.stdout is not None
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            pause = max(0.0, min(worker.deadline for worker in busy) - time.monotonic()) if busy else 0.0
            woken = [key.data for key, _ in selector.select(pause + 0.001)]
        late = [worker for worker in busy if time.monotonic() > worker.deadline and worker not in woken]
        return woken + late

    def close(self) -> None:
        """End the processes; a later request starts new ones."""
        for worker in self._workers if self._process == os.getpid() else []:
            worker.close()
        self._workers = []


def shared_pool(kind: str, limit: float, size: int | None = None) -> WorkerPool:
    """The one pool of a kind and limit: tasks and rewards of a process use the same workers."""
    return _SHARED.setdefault((kind, limit), WorkerPool(kind, limit, size=size))


_SHARED: dict[tuple[str, float], WorkerPool] = {}
_POOLS: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_POOLS):
        pool.close()
