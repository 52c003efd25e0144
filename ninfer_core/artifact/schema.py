"""Strict JSON for hostile files: attrs classes are the schema, and refusals say where."""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from attrs import NOTHING, fields, has

from ninfer_core.api import ArtifactError

MAX_U64 = 2**64 - 1
MAX_LAYERS = 10_000
"""Of a model: no list is as long as a damaged config says."""
_MAX_WHY = 1000
_UNWANTED = re.compile("[\0\ud800-\udfff]")
_WANTED: dict[Any, str] = {
    str: "a text", int: "an unsigned 64-bit integer", float: "a finite number",
    bool: "true or false", Any: "an open value",
}
T = TypeVar("T")
_origin, _kinds, _has = cache(get_origin), cache(get_args), cache(has)


def malformed(where: object, why: str) -> ArtifactError:
    """The error for whatever a damaged file or a faulty writer brings about; long ones are cut."""
    why = why if len(why) <= _MAX_WHY else f"{why[:_MAX_WHY]}..."
    fix = "fetch or convert the model again; if that does not help, its writer is at fault"
    return ArtifactError("not a valid .ninfer set", where=str(where), why=why, fix=fix)


def parse(raw: bytes, cls: type, where: Path) -> Any:
    """Read JSON into an attrs class, exactly as its type hints say; raises `ArtifactError`.

    No member may be missing (unless it has a default), unknown, named twice, null or coerced.
    """
    try:
        return _read(json.loads(raw.decode(), object_pairs_hook=_unique), cls, "")
    except (ValueError, RecursionError) as error:
        raise malformed(f"{where}: catalogue", str(error).lstrip("/: ")) from error


def read_config(cls: type[T], config: Mapping[str, Any], model: str) -> T:
    """Read an attrs class from the config of a model; keys that it does not have are ignored.

    No value is coerced, but integers count as numbers.

    :param model: what the class describes, for the error.
    :raises ArtifactError: naming every key that is missing or odd.
    """
    hints, required = _members(cast(Any, cls))
    values = {name: config[name] for name in hints if name in config}
    faults = [f"{name} is missing" for name in sorted(required - values.keys())]
    for name, value in values.items():
        try:
            values[name] = _read(value, hints[name], name)
        except ValueError as error:
            faults.append(str(error).lstrip("/"))
    try:
        if not faults:
            return cls(**values)
    except ValueError as error:
        faults.append(str(error))
    raise ArtifactError(f"the model's config is not that of a {model}", why="; ".join(faults))


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError(f"a name occurs twice in {reprlib.repr([name for name, _ in pairs])}")
    return members


@cache
def _members(cls: Any) -> tuple[dict[str, Any], set[str]]:
    """Names and hints of all members; names of those that are required."""
    return get_type_hints(cls), {each.name for each in fields(cls) if each.default is NOTHING}


def _record(node: dict[str, Any], cls: Any) -> Any:
    hints, required = _members(cls)
    if not required <= node.keys() <= hints.keys():
        raise ValueError(f" has members {[*node]} of {[*hints]}, needs {sorted(required)}")
    values = {name: _read(child, hints[name], name) for name, child in node.items()}
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f": {error}") from error


def _read(node: Any, hint: Any, place: object) -> Any:
    """Build what a hint says; an error takes along every place it passes."""
    try:
        if hint not in _WANTED:
            if _origin(hint) in (Union, UnionType):
                hint = _choose(node, _kinds(hint))
            origin, kinds = _origin(hint), _kinds(hint)
            if type(node) is dict and _has(hint):
                return _record(node, hint)
            if type(node) is list and origin is tuple:
                return tuple(_read(child, kinds[0], index) for index, child in enumerate(node))
            if type(node) is dict and origin is Mapping:
                return {_read(n, str, n): _read(child, kinds[1], n) for n, child in node.items()}
        if not _is_scalar(node, hint):
            raise ValueError(f": {_WANTED.get(hint, hint)} cannot be {reprlib.repr(node)}")
        return node
    except ValueError as error:
        raise ValueError(f"/{place}{error}") from error


def _choose(node: Any, kinds: Sequence[Any]) -> Any:
    """Of records the one with these members; of X and None always X, since null is no value."""
    names = node.keys() if type(node) is dict else None
    return next((k for k in kinds if _has(k) and _members(k)[0].keys() == names), kinds[0])


def _is_scalar(node: Any, hint: Any) -> bool:
    if hint is int:
        return type(node) is int and 0 <= node <= MAX_U64
    if hint is float:
        return type(node) in (int, float) and _is_plain(node)
    if hint is bool:
        return type(node) is bool
    if hint is Any:
        return _is_plain(node)
    text = type(node) is str and node != "" and not _UNWANTED.search(node)
    return text and (hint is str or (_origin(hint) is Literal and node in _kinds(hint)))


def _is_plain(node: Any, depth: int = 64) -> bool:
    """Whether an open value is Unicode text, finite 64-bit numbers, and not nested deeply."""
    if type(node) in (dict, list):
        children = [*node, *node.values()] if type(node) is dict else node
        return depth > 0 and all(_is_plain(child, depth - 1) for child in children)
    if type(node) is str:
        return not _UNWANTED.search(node)
    return node is None or (math.isfinite(node) if type(node) is float else abs(node) <= MAX_U64)
