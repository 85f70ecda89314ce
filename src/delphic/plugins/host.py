"""What every host trainer shares: which versions were tested, and what a host cannot serve."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import metadata

from delphic.errors import UserError
from delphic.objective import Objective

VERL_AGGREGATION = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "sequence_sum": "seq-mean-token-sum",
    "constant": "seq-mean-token-sum-norm",
}
NEEDS = {
    "critic": ("baseline", "critic", "a value head"),
    "oracle": ("baseline", "oracle", "V(x) of every prompt"),
    "score norms": ("baseline", "score_norm_mean", "the norm of every completion's score"),
}


def missing_pieces(objective: Objective) -> dict[str, str]:
    """Piece that the objective needs beyond rewards, group ids and behaviour log-probs → what it is."""
    out = {name: what for name, (key, value, what) in NEEDS.items() if getattr(objective, key) == value}
    if objective.pairwise > 0:
        out["scored log-probs"] = "every completion's log-prob under the current policy before the update"
    if objective.uses_kl_reward:
        out["KL in the reward"] = "the reference's log-probs before the advantages"
    if objective.entropy_bonus > 0:
        out["entropy"] = "the entropy of every token with its graph"
    if objective.reward_normalization == "per_reward":
        out["reward components"] = "each reward function's values"
    return out


def refuse_missing(objective: Objective, host: str, served: Mapping[str, str] | None = None) -> None:
    """Raise UserError naming the first piece that the host does not pass; `served` maps pieces to nothing to do."""
    for name, what in missing_pieces(objective).items():
        if name not in (served or {}):
            raise UserError(
                f'{host} cannot serve objective "{objective.name}": it needs {name} ({what}), which {host} does not pass'
            )


def warn_untested(package: str, tested: str) -> None:
    """Say which version was tested when another is installed, and go on."""
    found = metadata.version(package)
    if found != tested:
        warnings.warn(
            f"delphic's {package} plugin was tested with {package} {tested}; {found} is installed", stacklevel=3
        )
