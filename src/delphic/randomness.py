"""Randomness as a function of (seed, purpose, numbers), never of history: resuming at any step draws the same bits."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """One number for each use of randomness, so that no two uses share a stream."""

    TRAIN_SAMPLE = 1
    EVALUATE = 2
    ORACLE_SAMPLE = 3
    PROMPT_INDEPENDENT = 4
    PROMPT_EPOCH = 5
    MINIBATCH = 6
    DROP = 7
    PILOT = 8
    PROBE = 9


def stream(seed: int, purpose: Purpose, number: int, row: int = 0) -> np.random.Generator:
    """A counter-based generator keyed by (seed, purpose, number, row); each below 2^32 (seed below 2^48)."""
    key = np.array([(seed << 16) + int(purpose), (number << 32) + row], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def row_uniforms(seed: int, purpose: Purpose, step: int, rows: np.ndarray, count: int) -> np.ndarray:
    """[N, count] uniforms in [0, 1): each row's own stream, whatever else is in its batch."""
    return np.stack([stream(seed, purpose, step, int(row)).random(count) for row in rows])
