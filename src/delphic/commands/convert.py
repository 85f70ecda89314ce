"""Any model as a plain folder."""

from __future__ import annotations

import argparse

from delphic.commands import need_torch
from delphic.errors import UserError


def run_convert(options: argparse.Namespace) -> int:
    """Load any model and save it plain."""
    need_torch("convert")
    from delphic.config import ModelConfig
    from delphic.evaluation.run import model_folder
    from delphic.policy.load import load_policy

    if options.folder.exists():
        raise UserError(f"convert: {options.folder} is already there; name a new folder")
    policy = load_policy(model_folder(options.model, options.checkpoint), ModelConfig(dtype=options.dtype))
    try:
        policy.save(options.folder)
    except OSError as error:
        raise UserError(f"convert: cannot write to {options.folder}: {error}") from None
    numbers = sum(p.numel() for p in policy.model.parameters())
    print(f"{options.folder}: {numbers / 1e6:.1f} million parameters, {options.dtype}")
    return 0
