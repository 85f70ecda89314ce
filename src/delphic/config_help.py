"""The config's keys as command-line options, and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from delphic.config import RunConfig, Section, parse_value
from delphic.errors import UserError, nearest
from delphic.objective.objective import Objective


def keys() -> Iterator[tuple[str, Any]]:
    """Dotted key and pydantic field of everything that can be set."""
    for name, field in RunConfig.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, (Section, Objective)):
            if inner is Objective:
                yield name, field
            yield from ((f"{name}.{key}", child) for key, child in inner.model_fields.items())
        else:
            yield name, field


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """`--train.steps 50`, `--train.steps=50`, or `--steps 50` where only one section has that key.

    Raises:
        UserError: an option that is no key (with the nearest one), an ambiguous short form, or a missing value.
    """
    known = dict(keys())
    out: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--"):
            raise UserError(f'train: unexpected "{argument}"; options read --section.key value')
        name, equals, value = argument[2:].partition("=")
        key = name.replace("-", "_")
        if key not in known and key != "objective.preset":
            matches = [k for k in known if k.rpartition(".")[2] == key]
            if len(matches) > 1:
                raise UserError(f"train: --{name} could be any of {', '.join('--' + m for m in matches)}")
            if not matches:
                raise UserError(f"train: --{name}: no such key{nearest(key, known)}")
            key = matches[0]
        if not equals:
            if not rest:
                raise UserError(f"train: --{name} needs a value")
            value = rest.pop(0)
        parsed = parse_value(value)
        # --sampling.stop 7 means the text, whatever TOML would read there
        text = key in known and known[key].annotation in (str, str | None)
        out[key] = value if text and not isinstance(parsed, str) else parsed
    return out


def describe_fields() -> str:
    """Every key with its default and meaning, one a line."""
    lines, section = ["keys (as --section.key value, or in the TOML file):"], None
    for key, field in keys():
        head = key.rpartition(".")[0]
        if head != section:
            lines.append("")
            section = head
        default = field.get_default(call_default_factory=True)
        shown = default.name if isinstance(default, Objective) else default
        lines.append(f"  {key} = {shown!r}  {field.description or ''}")
    return "\n".join(lines)
