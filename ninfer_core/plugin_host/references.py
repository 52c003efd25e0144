"""Checks that lazy references lead somewhere, without importing what they name."""

from __future__ import annotations

import symtable
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from typing import Any

import attrs

from ninfer_core.api import LazyRef

_DYNAMIC = ("import *", "globals()", "global ", "__getattr__", "sys.modules")
"""Source with one of these may bind names that its symbol table does not show."""


def references(value: Any) -> Iterator[LazyRef]:
    """Every lazy reference inside a spec, nested records and tuples included."""
    if isinstance(value, LazyRef):
        yield value
    elif attrs.has(type(value)):
        yield from references(tuple(getattr(value, a.name) for a in attrs.fields(type(value))))
    elif isinstance(value, tuple):
        for item in value:
            yield from references(item)


BoundNames = Callable[[str], frozenset[str] | None]


def dead_end(reference: LazyRef, bound: BoundNames) -> str | None:
    """Why a reference cannot be loaded, as far as its module's source shows; None if it may be.

    :param bound: `bound_names`, or a cache of it.
    """
    module, _, attribute = reference.path.partition(":")
    try:
        names = bound(module)
    except ModuleNotFoundError:
        return f"{reference}: there is no module {module!r}"
    name = attribute.partition(".")[0]
    known = names is None or name in names
    return None if known else f"{reference}: {module} has no {name!r}"


def bound_names(module: str) -> frozenset[str] | None:
    """Names that a module's source binds; None if it may bind any.

    :raises ModuleNotFoundError: if there is no such module.
    """
    spec = _locate(module)
    if spec is None:
        raise ModuleNotFoundError(module)
    get_source = getattr(spec.loader, "get_source", None)
    source = get_source(module) if get_source else None
    if source is None or any(word in source for word in _DYNAMIC):
        return None
    symbols = symtable.symtable(source, module, "exec").get_symbols()
    return frozenset(s.get_name() for s in symbols if s.is_assigned() or s.is_imported())


def _locate(module: str) -> ModuleSpec | None:
    """The module's spec; unlike `importlib.util.find_spec`, this imports no parent."""
    spec, path, name = None, None, ""
    for part in module.split("."):
        if name and path is None:
            return None
        name = f"{name}.{part}".lstrip(".")
        found = (finder.find_spec(name, path) for finder in sys.meta_path)
        spec = next((each for each in found if each is not None), None)
        path = spec.submodule_search_locations if spec else None
    return spec
