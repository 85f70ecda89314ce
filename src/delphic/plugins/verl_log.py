"""delphic's diagnosis inside verl's logging.

    from delphic.plugins.verl_log import watch_logging
    watch_logging()                    # before the trainer is made, in the process that runs it

Every row that verl's `Tracking` logs is then judged as well; nothing of what verl logs changes.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from delphic.plugins.live import LiveDiagnosis


def watch_logging(every: int = 10, say: Callable[[str], None] = print, tracking: Any = None) -> None:
    """Judge what `Tracking.log(data, step)` logs, from now on.

    Args:
        every: rows between two looks. say: gets the sentences. tracking: the class (verl's own).
    """
    cls = tracking or importlib.import_module("verl.utils.tracking").Tracking
    log = cls.log

    @functools.wraps(log)
    def judged(self: Any, data: Any, step: Any, *args: Any, **kwargs: Any) -> Any:
        out = log(self, data, step, *args, **kwargs)
        if not hasattr(self, "delphic"):
            self.delphic = LiveDiagnosis(every, say)
        self.delphic.add(int(step), data)
        return out

    cls.log = judged
