"""The types that a JSON schema admits, and the members that it declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

TYPES = ("null", "boolean", "number", "integer", "array", "object", "string")
_MAX_STEPS = 1000
"""Schemas visited for one answer; references can make them endless."""
_BY_VALUE: dict[type, str] = {
    type(None): "null", bool: "boolean", int: "integer", float: "number", list: "array",
    dict: "object", str: "string",
}
_BY_KEYWORD = {"properties": "object", "items": "array"}
_COMBINING = ("allOf", "anyOf", "oneOf")

Types = frozenset[str] | None
"""Names of `TYPES`; None if a schema does not say. With ``number`` there is always ``integer``."""


def admitted_types(schema: Any, root: Any) -> Types:
    """Flattens ``anyOf``, ``oneOf``, ``allOf`` and local ``$ref``s; odd schemas do not say.

    :param root: the schema that references point into.
    """
    try:
        return _Reader(root).types(schema)
    except RecursionError:
        return None


def declared_properties(schema: Any) -> Mapping[str, Any]:
    """Schemas of an object's members by name, also of members that `admitted_types`' keywords
    bring; of several for one name the first."""
    found: dict[str, Any] = {}
    parts = [schema]
    for part in parts:  # which grows
        if not isinstance(part, Mapping) or len(parts) > _MAX_STEPS:
            continue
        properties = part.get("properties")
        found = {**(properties if isinstance(properties, Mapping) else {}), **found}
        parts += [each for keyword in _COMBINING for each in _members(part, keyword)]
        if isinstance(reference := part.get("$ref"), str):
            parts.append(resolve_reference(schema, reference))
    return found


class _Reader:
    def __init__(self, root: Any) -> None:
        self._root, self._steps = root, 0

    def types(self, schema: Any) -> Types:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise RecursionError
        if not isinstance(schema, Mapping):
            return None
        conditions = [_own_types(schema), *map(self.types, _members(schema, "allOf"))]
        conditions += [self._union(_members(schema, key)) for key in ("anyOf", "oneOf")]
        if isinstance(reference := schema.get("$ref"), str):
            conditions.append(self.types(resolve_reference(self._root, reference)))
        said = [types for types in conditions if types is not None]
        return frozenset.intersection(*said) if said else None

    def _union(self, members: list[Any]) -> Types:
        said = [types for types in map(self.types, members) if types is not None]
        return frozenset().union(*said) if said and len(said) == len(members) else None


def resolve_reference(root: Any, reference: str) -> Any:
    """What a JSON pointer (``#/$defs/name``) points to; None if there is no such place."""
    place, *path = unquote(reference).split("/")
    found = root if place == "#" else None
    for step in path:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = {str(index): each for index, each in enumerate(found)}
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _members(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else []


def _own_types(schema: Mapping[str, Any]) -> Types:
    """By ``type``, else by the values or the structure that a schema names."""
    if "type" in schema:
        found = schema["type"]
        return _known(found if isinstance(found, list) else [found])
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return _known([_BY_VALUE.get(type(value)) for value in values])
    return _known([name for keyword, name in _BY_KEYWORD.items() if keyword in schema])


def _known(names: list[Any]) -> Types:
    known = frozenset(name for name in TYPES if name in names)
    return (known | {"integer"} if "number" in known else known) or None
