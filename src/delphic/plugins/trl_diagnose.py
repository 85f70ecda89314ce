"""delphic's diagnosis as a callback of TRL's trainers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from delphic.plugins.live import LiveDiagnosis


class DelphicDiagnoseCallback(TrainerCallback):
    """`trainer.add_callback(DelphicDiagnoseCallback())` with any trainer that logs a reward: says what is wrong while it runs.

    Args:
        every: logged rows between two looks. stop: end the training at the first error (a checkpoint is saved as usual).
        say: gets the sentences.
    """

    def __init__(self, every: int = 10, stop: bool = False, say: Callable[[str], None] = print) -> None:
        self.live, self.stop = LiveDiagnosis(every, say), stop

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not logs or not state.is_world_process_zero:
            return
        new = self.live.add(state.global_step, logs)
        if self.stop and any(finding.severity == "error" for finding in new):
            control.should_training_stop = control.should_save = True
