"""Which problems a step trains on: independent draws or reshuffled epochs, both functions of the seed."""

from __future__ import annotations

import numpy as np

from delphic.randomness import Purpose, stream


class PromptOrder:
    """Draws problem indices. `cursor` counts problems drawn so far: it is all the state there is.

    Args:
        size: number of problems; order: "independent" or "epochs".
    """

    def __init__(self, size: int, order: str, seed: int) -> None:
        self.size, self.order, self.seed = size, order, seed

    def draw(self, cursor: int, count: int) -> np.ndarray:
        """[count] the problems number cursor, cursor + 1, … of the sequence."""
        places = np.arange(cursor, cursor + count)
        if self.order == "independent":
            return np.array(
                [stream(self.seed, Purpose.PROMPT_INDEPENDENT, int(i)).integers(self.size) for i in places],
                dtype=np.int64,
            )
        epochs = {
            int(e): stream(self.seed, Purpose.PROMPT_EPOCH, int(e)).permutation(self.size)
            for e in np.unique(places // self.size)
        }
        return np.array([epochs[int(i) // self.size][int(i) % self.size] for i in places], dtype=np.int64)
