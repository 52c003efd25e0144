"""All op contracts of the core by name: those of every module called ``contract`` or
``..._contract`` in a folder of this package. What else plugins have kernels for has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import walk_packages

from ninfer_core import ops
from ninfer_core.ops.contract import OpContract


def _contracts() -> Iterator[OpContract]:
    for module in walk_packages(ops.__path__, f"{ops.__name__}."):
        if module.name.endswith("contract"):
            members = vars(import_module(module.name)).values()
            yield from (each for each in members if isinstance(each, OpContract))


CONTRACTS: Mapping[str, OpContract] = {contract.name: contract for contract in _contracts()}
