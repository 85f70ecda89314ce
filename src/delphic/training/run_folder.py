"""The run's folder: what is written where, and how a crash at any moment leaves it resumable.

config.json          the whole configuration, defaults included, and its fingerprint
metrics.jsonl        one row a step; the same bits whether or not the run was interrupted
timing.jsonl         wall-clock figures, kept apart because they never repeat
rollouts/            step_000001.parquet, …: what each step learned from
checkpoints/         step_000025/, …: a model folder, optimiser state, state.json; best.json names the best
halted/              the rollout that caused a non-finite loss or gradient
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from safetensors import SafetensorError

from delphic import __version__
from delphic.config import RunConfig
from delphic.errors import UserError
from delphic.rollouts import Rollouts, sync_to_disk


@dataclass(frozen=True)
class Checkpoint:
    folder: Path
    step: int
    state: dict[str, Any]


class RunFolder:
    """A run's folder, locked until the process ends. A new one is made by `begin` only: a look writes nothing.

    Raises:
        UserError: the folder holds a run and `resume` is false; the run there has another configuration (names the
            first differing key); another process is writing to it.

    Args:
        writes: False for a process of the same run that only reads along.
    """

    def __init__(self, path: Path, config: RunConfig, resume: bool, writes: bool = True) -> None:
        self.path, self.config, self.writes = path, config, writes
        self._lock: TextIO | None = None
        if not writes:
            return
        if path.exists() and not path.is_dir():
            raise UserError(f"output: {path} is a file; name a folder")
        # what a process leaves that dies before its config.json is there, is no run yet
        exists = path.exists() and any(item.name not in (".lock", ".config.json.part") for item in path.iterdir())
        if exists and not (path / "config.json").exists():
            raise UserError(f"output: {path} is not empty and holds no delphic run; nothing was written there")
        if exists and not resume:
            raise UserError(
                f"output: {path} already holds a run; add --resume to continue it, or choose another --output"
            )
        if exists:
            self._same_config()
            self._take_lock()

    def begin(self) -> None:
        """Make what is missing, and clear what a crash left.

        Raises:
            UserError: there can be no such folder, or another process is writing to it.
        """
        if not self.writes:
            return
        if self._lock is None:
            self._take_lock()
        if not (self.path / "config.json").exists():
            content = {
                "delphic": __version__,
                "fingerprint": self.config.fingerprint(),
                "config": self.config.model_dump(mode="json"),
            }
            write_json(self.path / "config.json", content)
        for folder in (self.rollouts, self.checkpoints):
            folder.mkdir(exist_ok=True)
        for stale in self.checkpoints.glob(".*.part"):
            shutil.rmtree(stale) if stale.is_dir() else stale.unlink()

    def _take_lock(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("w")
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            raise UserError(f"output: {self.path} cannot be made or written to ({error.strerror})") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"output: another process is writing to {self.path}") from None

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def _same_config(self) -> None:
        saved = read_json(self.path / "config.json").get("config", {})
        for key, old, new in _differences(saved, self.config.model_dump(mode="json"), ""):
            if key in ("output", "trackers"):
                continue
            raise UserError(
                f"{self.path} was trained with {key} = {old!r}, the config now says {new!r}; "
                "resume with the old value, or choose another --output"
            )

    # -- rollouts ----------------------------------------------------------------------------------------------

    def rollout_path(self, step: int) -> Path:
        return self.rollouts / f"step_{step:06d}.parquet"

    def read_rollouts(self, step: int) -> tuple[Rollouts, dict[str, Any]] | None:
        """The recorded rollouts of a step, or None where there are none."""
        path = self.rollout_path(step)
        return Rollouts.read(path) if path.exists() else None

    def write_rollouts(self, step: int, rollouts: Rollouts, meta: Mapping[str, Any]) -> None:
        if self.writes:
            rollouts.write(self.rollout_path(step), meta)

    def write_halted(self, step: int, rollout: Rollouts) -> None:
        """The rollout that ended the run."""
        if self.writes:
            (self.path / "halted").mkdir(exist_ok=True)
            rollout.write(self.path / "halted" / f"step_{step:06d}.parquet")

    # -- logs --------------------------------------------------------------------------------------------------

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        """One JSON line, on disk before this returns."""
        if not self.writes:
            return
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def cut_logs(self, last_step: int) -> None:
        """Drop the rows after `last_step` and a half-written last line: those steps are learned again."""
        for name in ("metrics.jsonl", "timing.jsonl") if self.writes else ():
            path = self.path / name
            if not path.exists():
                continue
            kept = []
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:
                    break
                if row["step"] <= last_step:
                    kept.append(line + "\n")
            write_text(path, "".join(kept))

    def rows(self, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
        path = self.path / name
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    # -- checkpoints -------------------------------------------------------------------------------------------

    def save_checkpoint(self, step: int, write: Callable[[Path], None], state: Mapping[str, Any]) -> None:
        """`write(folder)` into a temporary folder, then one rename; older checkpoints beyond `keep` go, the best stays."""
        if not self.writes:
            return
        final = self.checkpoints / f"step_{step:06d}"
        temporary = self.checkpoints / f".step_{step:06d}.part"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            write(temporary)
        except SafetensorError as error:  # what a full disk is to safetensors; the system's number is in its text
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]) if number else 0, str(error)) from error
        write_json(temporary / "state.json", {"step": step, "fingerprint": self.config.fingerprint(), **state})
        for file in temporary.iterdir():
            sync_to_disk(file)
        if final.exists():  # learned again after a crash: the same bits, but the old one is already safe
            shutil.rmtree(temporary)
        else:
            os.replace(temporary, final)
            sync_to_disk(self.checkpoints)
        best = state.get("best")
        kept: set[str] = set()
        if best and best["step"] > 0:  # step 0 is the model that the run began from; it has no checkpoint
            write_json(self.checkpoints / "best.json", best)
            kept.add(f"step_{best['step']:06d}")
        for old in sorted(self.checkpoints.glob("step_*"))[: -self.config.checkpoint.keep]:
            if old.name not in kept:
                shutil.rmtree(old)

    def latest_checkpoint(self) -> Checkpoint | None:
        """The newest complete checkpoint.

        Raises:
            UserError: it belongs to another configuration.
        """
        folders = sorted(self.checkpoints.glob("step_*"))
        if not folders:
            return None
        state = read_json(folders[-1] / "state.json")
        if state.get("fingerprint") != self.config.fingerprint():
            raise UserError(f"{folders[-1]} was written by a run with another configuration")
        return Checkpoint(folders[-1], int(state["step"]), state)


def is_run(path: Path) -> bool:
    return (path / "config.json").is_file() and (path / "checkpoints").is_dir()


def find_checkpoint(run: Path, which: str | None) -> Path:
    """The model folder of a run's `best`, `last` or numbered checkpoint; None: the best, or the last where none is best.

    Looks and writes nothing, so a run may be under way.

    Raises:
        UserError: there is no such checkpoint (names those that there are).
    """
    folders = {int(f.name.removeprefix("step_")): f for f in sorted((run / "checkpoints").glob("step_*"))}
    if not folders:
        raise UserError(f"{run} holds no checkpoint yet")
    best = run / "checkpoints" / "best.json"
    if which in (None, "best") and best.exists():
        step = int(read_json(best)["step"])
    elif which == "best":
        raise UserError(
            f"{run} has no best checkpoint: no evaluation was better than the one before training; take --checkpoint last"
        )
    elif which in (None, "last"):
        step = max(folders)
    elif which.isdecimal():
        step = int(which)
    else:
        raise UserError(f'--checkpoint must be "last", "best" or the number of a step, got "{which}"')
    if step not in folders:
        raise UserError(f"{run} has no checkpoint of step {step}; valid: {', '.join(map(str, folders))}, best, last")
    return folders[step]


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object")
    return content


def write_text(path: Path, text: str) -> None:
    """Write beside, then rename: a crash leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(text, encoding="utf-8")
    sync_to_disk(temporary)
    os.replace(temporary, path)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def _differences(old: Any, new: Any, path: str) -> list[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(set(old) | set(new))
        return [d for k in keys for d in _differences(old.get(k), new.get(k), f"{path}.{k}" if path else k)]
    return [] if old == new else [(path, old, new)]
