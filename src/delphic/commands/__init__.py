"""What each command does, one file a command, between the command line's words and the packages' functions."""

from __future__ import annotations

from delphic.errors import UserError


def need_torch(command: str) -> None:
    """Raises UserError, with what to install, where torch or transformers is missing."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise UserError(f"{command} needs {error.name}: pip install 'delphic[train]'") from None
