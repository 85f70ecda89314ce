"""Which framework wrote a log: the one with the most of its own keys in it."""

from __future__ import annotations

from fnmatch import fnmatchcase

from delphic.runs.frameworks import FRAMEWORKS
from delphic.runs.keys import Framework, bare
from delphic.runs.synonyms import GENERIC

FORMS = {"trainer_state": "trl", "transformers-console": "trl", "verl-console": "verl", "areal-console": "areal"}


def recognise(keys: list[str], form: str = "") -> Framework:
    """The framework with the most marks among the keys (two at least, or one of one's own), else the one that writes this form of
    file, else the generic one."""
    names = [bare(key) for key in keys]
    best, most = Framework("generic", (), GENERIC), 1
    for framework in FRAMEWORKS:
        count = sum(any(fnmatchcase(name, mark) for name in names) for mark in framework.marks)
        if count > most or (count == 1 and most == 1 and best.name == "generic" and _own(framework, names)):
            best, most = framework, max(count, 1)
    if best.name == "generic" and form in FORMS:
        return next(framework for framework in FRAMEWORKS if framework.name == FORMS[form])
    return best


def _own(framework: Framework, names: list[str]) -> bool:
    """Whether a mark with a slash, which nobody else uses, is there."""
    return any("/" in mark and fnmatchcase(name, mark) for mark in framework.marks for name in names)
