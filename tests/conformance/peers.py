"""The peers' own code, loaded on a CPU without what their loss functions do not use.

verl and Trinity-RFT import ray, vllm, omegaconf and more on the way to a loss function of twenty lines of torch. Here
a package's `__init__` is passed over, and a dependency that is not installed is stood in for, while the import
lasts, by an empty module: the loss functions and advantages are the peers' own, from their own files.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

UNUSED = ("ray", "omegaconf", "tensordict", "hydra", "codetiming", "orjson")


class StandIn(types.ModuleType):
    """A module whose every name is an empty class: enough for `from x import Y`, a base class or an annotation."""

    __path__: list[str] = []  # noqa: RUF012 (a package: its submodules are looked for, and found to be stand-ins too)

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class StandInFinder(MetaPathFinder, Loader):
    """Asked last, so only for what is not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in UNUSED else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


@contextmanager
def stand_ins() -> Iterator[None]:
    """Gone afterwards, so that no other library takes a stand-in for the real thing."""
    finder = StandInFinder()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, StandIn)]:
            del sys.modules[name]


def without_init(package: str) -> types.ModuleType:
    """The package as a bare folder: its submodules can be imported, its `__init__` does not run."""
    if package in sys.modules:
        return sys.modules[package]
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    module = types.ModuleType(package)
    module.__spec__, module.__path__ = spec, list(spec.submodule_search_locations)
    sys.modules[package] = module
    return module


def need(distribution: str) -> None:
    """Skips where the peer is not installed."""
    try:
        version(distribution)
    except PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed; see docs/conformance.md", allow_module_level=True)


@cache
def verl() -> Any:
    """verl's `core_algos`."""
    need("verl")
    with stand_ins():
        without_init("verl")
        return importlib.import_module("verl.trainer.ppo.core_algos")


@cache
def trinity(module: str) -> Any:
    """A module of Trinity-RFT's `trinity.algorithm`, such as `policy_loss_fn.rec_policy_loss`."""
    need("trinity-rft")
    with stand_ins():
        without_init("trinity.algorithm")
        return importlib.import_module(f"trinity.algorithm.{module}")


@cache
def trinity_common(module: str) -> Any:
    """A module of `trinity.common`, such as `experience`."""
    need("trinity-rft")
    with stand_ins():
        return importlib.import_module(f"trinity.common.{module}")
