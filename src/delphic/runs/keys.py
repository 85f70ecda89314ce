"""What a key of a source can mean, and how keys are matched with what is known of a framework."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from delphic.runs.columns import COMPONENT

Change = Literal["", "percent", "complement", "percent complement"]


@dataclass(frozen=True)
class Key:
    """source: key or pattern. change: percent → share, complement → 1 − x, or one after the other."""

    source: str
    canonical: str
    kind: str = ""
    change: Change = ""


@dataclass(frozen=True)
class Framework:
    name: str
    marks: tuple[str, ...]
    keys: tuple[Key, ...]


def keys(*rows: str) -> tuple[Key, ...]:
    """ "source | canonical | kind | change", the last two optional."""
    out = []
    for row in rows:
        parts = [part.strip() for part in row.split("|")]
        source, canonical, kind, change = [*parts, "", ""][:4]
        out.append(Key(source, canonical, kind, change))  # type: ignore[arg-type]
    return tuple(out)


def bare(key: str) -> str:
    """A key without `train/` in front, as exports and trackers add it."""
    return key.removeprefix("train/")


def assign(framework: Framework, keys: list[str]) -> list[tuple[str, Key]]:
    """[(source key, its meaning)], in the order in which keys for one column are preferred; `reward/*` with the function's name."""
    names = {bare(key): key for key in reversed(keys)}
    out: list[tuple[str, Key]] = []
    taken: set[str] = set()
    for rule in framework.keys:
        for name, key in names.items():
            if key in taken or not (name == rule.source or ("*" in rule.source and fnmatchcase(name, rule.source))):
                continue
            taken.add(key)
            canonical = rule.canonical
            if canonical == COMPONENT + "*":
                head, _, tail = rule.source.partition("*")
                canonical = COMPONENT + name[len(head) : len(name) - len(tail) or None]
            if canonical != "-":
                out.append((key, Key(key, canonical, rule.kind, rule.change)))
    return out
