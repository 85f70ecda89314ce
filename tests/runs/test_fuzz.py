"""Damage of any kind: a log is read, or refused in one sentence. DELPHIC_FUZZ says how many inputs (600)."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from framework_rows import ROWS

from delphic.diagnosis.verdict import diagnose
from delphic.errors import UserError
from delphic.runs.read import read_run

DIAGNOSED = 50  # one log of as many that were read is diagnosed, too: that takes longer than reading
COUNT = int(os.environ.get("DELPHIC_FUZZ", "600"))


def samples() -> list[tuple[str, bytes]]:
    """A small log of every text format and framework."""
    out = []
    for name, (keys, _) in ROWS.items():
        rows = [{"step": i, **keys} for i in range(1, 25)]
        out.append((f"{name}.jsonl", "\n".join(map(json.dumps, rows)).encode()))
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        out.append((f"{name}.csv", "\r\n".join(lines).encode()))
    history = [{"step": i, **ROWS["trl"][0]} for i in range(1, 25)]
    out.append(("trainer_state.json", json.dumps({"log_history": history}, indent=1).encode()))
    out.append(
        (
            "verl.log",
            b"".join(
                b"\x1b[36mx\x1b[0m step:%d - critic/score/mean:np.float64(0.5) - actor/lr:1e-6\n" % i for i in range(24)
            ),
        )
    )
    out.append(
        ("trl.log", b"".join(b" 3%%| {'loss': 0.1, 'reward': 0.%d, 'reward_std': 0.1}\n" % i for i in range(24)))
    )
    out.append(("trainer_state.json.gz", gzip.compress(out[-3][1])))
    chart = ["Step,a - reward,b - reward", *(f"{i},0.{i},0.5" for i in range(24))]
    out.append(("chart.csv", "\n".join(chart).encode()))
    axes = [{"rollout/step": i, "rollout/raw_reward": 0.5, "rollout/response_len/mean": 0.9} for i in range(24)]
    axes += [{"train/step": i, "train/lr-pg_0": 0.1} for i in range(48)]
    out.append(("slime.jsonl", "\n".join(map(json.dumps, axes)).encode()))
    swift = [{"global_step/max_steps": f"{i}/50", **ROWS["ms-swift"][0]} for i in range(24)]
    out.append(("swift.jsonl", "\n".join(map(json.dumps, swift)).encode()))
    table = "INFO Train step %d/24 done.\n│ rollout/reward │ 0.5 │ grpo_actor/entropy/avg │ 0.4 │\n"
    out.append(("areal.txt", "".join(table % i for i in range(24)).encode()))
    out.append(("wide.csv", "step;reward\n1;0.5\n2;0.25\n".encode("utf-16")))
    out.append(("verl.jsonl", b"\n".join(json.dumps({"step": i, "data": ROWS["verl"][0]}).encode() for i in range(24))))
    return out


def cut(rng: np.random.Generator, content: bytes) -> bytes:
    return content[: rng.integers(len(content) + 1)]


def flip(rng: np.random.Generator, content: bytes) -> bytes:
    out = bytearray(content)
    for at in rng.integers(len(out), size=rng.integers(1, 30)):
        out[at] = rng.integers(256)
    return bytes(out)


def huge(rng: np.random.Generator, content: bytes) -> bytes:
    at = rng.integers(len(content))
    return content[:at] + bytes([rng.choice(list(b'a{["9,'))]) * int(rng.integers(2000, 60_000)) + content[at:]


def strange(rng: np.random.Generator, content: bytes) -> bytes:
    """Values of the wrong type in the place of numbers."""
    words = [b"null", b'"x"', b"[1, 2]", b'{"a": 1}', b"1e999", b"-0", b"NaN", b"true", b"", b"9" * 400, b'"\\ud800"']
    parts = content.split(b"0.")
    joined = [parts[0]]
    for part in parts[1:]:
        joined.append((words[rng.integers(len(words))] + b" " if rng.random() < 0.1 else b"0.") + part)
    return b"".join(joined)


def doubled(rng: np.random.Generator, content: bytes) -> bytes:
    lines = content.split(b"\n")
    return b"\n".join(line for line in lines for _ in range(int(rng.integers(3)))).replace(
        b'"reward"', b'"reward": 3, "reward"'
    )


def shuffled(rng: np.random.Generator, content: bytes) -> bytes:
    lines = content.split(b"\n")
    return b"\n".join(lines[i] for i in rng.permutation(len(lines)))


DAMAGE: tuple[Callable[[np.random.Generator, bytes], bytes], ...] = (cut, flip, huge, strange, doubled, shuffled)


def test_no_damage_ends_in_a_trace(tmp_path: Path) -> None:
    rng, known = np.random.default_rng(0), samples()
    read = refused = 0
    for number in range(COUNT):
        name, content = known[rng.integers(len(known))]
        for _ in range(int(rng.integers(1, 3))):
            content = DAMAGE[rng.integers(len(DAMAGE))](rng, content) or b" "
        path = tmp_path / name
        path.write_bytes(content)
        try:
            log = read_run(path)
            if number % DIAGNOSED == 0:
                assert diagnose(log, ahead=number % (10 * DIAGNOSED) == 0).verdict
        except UserError as error:
            refused += 1
            if "\n" in str(error):
                pytest.fail(f"input {number}: more than a sentence: {error}")
            continue
        except Exception as error:
            (tmp_path / "damaged").write_bytes(content)
            pytest.fail(f"input {number} ({name}, {content[:200]!r}): {type(error).__name__}: {error}")
        read += 1
        assert log.has("reward_mean")
        assert (np.diff(log.steps) > 0).all()
        for column in log.columns:
            assert log.series(column.canonical)[1].dtype == np.float64
            assert np.isfinite(log.series(column.canonical)[1]).all()
    assert read > COUNT // 4
    assert refused > COUNT // 20
