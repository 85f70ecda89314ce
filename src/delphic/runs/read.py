"""Anybody's log → `RunLog`: a file, or the folder of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from delphic.errors import UserError
from delphic.runs.file import read_file
from delphic.runs.folder import read_folder
from delphic.runs.log import RunLog


def read_run(
    path: Path,
    mapping: Mapping[str, str] | None = None,
    group_size: int | None = None,
    group_key: str | None = None,
) -> RunLog:
    """A file or a folder of any framework.

    Args:
        mapping: canonical column (or "step") → the source's key. group_size, group_key: of dumps of completions without ids.

    Raises:
        UserError: there is no such file, it is no log, or it has no rewards (with what there is).
    """
    path = Path(path)
    try:
        if not path.exists():
            raise UserError(f"{path}: there is no such file or folder")
        if path.is_dir():
            return read_folder(path, mapping, group_size, group_key)
        return read_file(path, mapping, group_size, group_key)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
