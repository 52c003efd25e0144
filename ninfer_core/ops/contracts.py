"""Op contracts of a package: those of every module called ``contract`` or ``..._contract``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType

from ninfer_core.api import OpContract


def contracts_in(package: ModuleType) -> list[OpContract]:
    """All of them, by folder."""
    return list(_contracts(package))


def _contracts(package: ModuleType) -> Iterator[OpContract]:
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        if module.name.endswith("contract"):
            members = vars(import_module(module.name)).values()
            yield from (each for each in members if isinstance(each, OpContract))
