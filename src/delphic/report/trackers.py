"""A run's figures to wandb, TensorBoard, trackio and whatever else accelerate can track to, beside the display."""

from __future__ import annotations

from typing import Any

from delphic.config import RunConfig
from delphic.errors import UserError, nearest


class Tracked:
    """A display that also logs every row; `inner` shows it."""

    def __init__(self, inner: Any, names: tuple[str, ...]) -> None:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, LoggerType, get_available_trackers

        known = {str(getattr(kind, "value", kind)): made for kind, made in LOGGER_TYPE_TO_CLASS.items()}
        missing = {str(kind.value) for kind in LoggerType} - {str(kind.value) for kind in get_available_trackers()}
        for name in names:
            if name not in known:
                raise UserError(f'trackers: there is no tracker "{name}"{nearest(name, known)}')
            if name in missing:
                raise UserError(f'trackers: "{name}" needs its package: pip install {name}')
        self.inner, self.names = inner, names
        self.trackers: list[Any] = []
        self._classes = {name: known[name] for name in names}

    def start(self, config: RunConfig, done: int) -> None:
        self.inner.start(config, done)
        for name, kind in self._classes.items():
            try:
                where = {"logging_dir": f"{config.output}/trackers"} if kind.requires_logging_directory else {}
                tracker = kind("delphic", **where)
                if hasattr(tracker, "start"):
                    tracker.start()
                tracker.store_init_configuration(_flat(config.model_dump(mode="json")))
            except ImportError as error:
                raise UserError(f'trackers: "{name}" needs a package: pip install {error.name or name}') from None
            except Exception as error:  # each tracker has its own ways to fail; none may take the run with it later
                raise UserError(f'trackers: "{name}" did not start: {str(error).splitlines()[0]}') from None
            self.trackers.append(tracker)

    def step(self, row: dict[str, float], timing: dict[str, float]) -> None:
        self.inner.step(row, timing)
        values = {k: v for k, v in {**row, **timing}.items() if k != "step"}
        for tracker in self.trackers:
            tracker.log(values, step=int(row["step"]))

    def message(self, text: str) -> None:
        self.inner.message(text)

    def close(self) -> None:
        for tracker in self.trackers:
            tracker.finish()
        self.trackers = []
        self.inner.close()


def _flat(content: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Nested settings as dotted names, with values that every tracker takes."""
    out: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            out |= _flat(value, name)
        else:
            out[name] = value if isinstance(value, (int, float, str, bool)) else str(value)
    return out
