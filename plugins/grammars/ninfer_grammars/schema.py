"""What a JSON schema must be so that text of it is valid, and ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from ninfer_core.api import RequestError
from ninfer_core.text.schema_types import resolve_reference

MAX_STEPS = 20_000
"""Subschemas visited of one schema; references multiply them."""
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_TABLES = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE = ("items", "additionalProperties")
_SHAPES: tuple[tuple[type | tuple[type, ...], str, tuple[str, ...]], ...] = (
    (list, "an array", (*_LISTS, "enum", "required")),
    (Mapping, "an object", ("properties", "patternProperties")),
    (str, "a string", ("$ref", "pattern", "format")),
    ((str, list), "a string or an array of such", ("type",)),
)
Path = tuple[str, ...]


def prepare(schema: Any) -> Mapping[str, Any]:
    """The schema without what means nothing.

    :raises RequestError: naming the place of what text could not be held to, or of what no finite
        text can be.
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise RequestError("malformed JSON schema", why="it must be an object")
    made = _cleaned(schema)
    for path, each in subschemas(made):
        check_shape(each, path)
        if reason := _unreliable(each):
            raise RequestError("the JSON schema cannot be held to", where=pointer(path), why=reason)
    try:
        is_finite = _Endings(made).has_one(made, frozenset())
    except RecursionError as error:
        raise RequestError("the JSON schema is too complex", why="it refers too deeply") from error
    if not is_finite:
        raise RequestError("the JSON schema has no finite value",
                           why="what it requires contains itself")
    return made


def check_shape(schema: Mapping[str, Any], path: Path = ()) -> None:
    """Refuse keywords of a schema whose values are of another kind than theirs.

    :raises RequestError: naming the place.
    """
    for kind, wanted, keywords in _SHAPES:
        for keyword in keywords:
            if keyword in schema and not isinstance(schema[keyword], kind):
                _refuse_shape((*path, keyword), wanted)
    for keyword in ("required", "type"):
        names = schema.get(keyword)
        if isinstance(names, list) and not all(isinstance(each, str) for each in names):
            _refuse_shape((*path, keyword), "an array of strings")


def find_keyword(schema: Any, keyword: str) -> str:
    """Where a keyword is first used, or "" if nowhere."""
    places = (path for path, each in subschemas(schema) if keyword in each)
    found = next(places, None)
    return "" if found is None else pointer((*found, keyword))


def subschemas(schema: Any, path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """A schema and all within it that are objects, with their places."""
    if not isinstance(schema, Mapping):
        return
    yield path, schema
    for name, each in _children(schema):
        yield from subschemas(each, (*path, *name))


def pointer(path: Iterable[str]) -> str:
    """A place as a JSON pointer."""
    return "".join("/" + each.replace("~", "~0").replace("/", "~1") for each in path) or "/"


def _refuse_shape(path: Path, wanted: str) -> NoReturn:
    raise RequestError("malformed JSON schema", where=pointer(path), why=f"it must be {wanted}")


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    for keyword in _TABLES:
        if isinstance(table := schema.get(keyword), Mapping):
            yield from (((keyword, name), each) for name, each in table.items())
    for keyword in _LISTS:
        if isinstance(members := schema.get(keyword), list):
            yield from (((keyword, str(i)), each) for i, each in enumerate(members))
    for keyword in _SINGLE:
        if keyword in schema:
            yield (keyword,), schema[keyword]


def _cleaned(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Without options of the compiler, which are not the client's, and ``uniqueItems: false``."""
    made = {name: each for name, each in schema.items() if name != "x-guidance"}
    if made.get("uniqueItems") is False:
        del made["uniqueItems"]
    for path, each in _children(schema):
        if not isinstance(each, Mapping):
            continue
        if len(path) == 1:
            made[path[0]] = _cleaned(each)
            continue
        keyword, name = path
        if made[keyword] is schema[keyword]:
            made[keyword] = schema[keyword].copy()
        made[keyword][int(name) if keyword in _LISTS else name] = _cleaned(each)
    return made


def _unreliable(schema: Mapping[str, Any]) -> str:
    """Why text that a grammar allows might not be valid: a name may come twice among those that are
    not declared, and counts once."""
    least, required = schema.get("minProperties"), schema.get("required")
    if not isinstance(least, int) or least < 2:
        return ""
    names = {*required} if isinstance(required, list) else set()
    return "" if len(names) >= least else "minProperties beyond the required ones is not supported"


class _Endings:
    """Whether there is a finite value."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._steps = root, 0
        self._known: set[str] = set()  # references that have one

    def has_one(self, schema: Any, open_: frozenset[str]) -> bool:
        """:param open_: references on the way here, which must not be needed again."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise RequestError("the JSON schema is too complex", why="it refers too often")
        if not isinstance(schema, Mapping):
            return True
        return all((
            self._reference(schema.get("$ref"), open_),
            all(self.has_one(each, open_) for each in _listed(schema, "allOf")),
            *(any(self.has_one(each, open_) for each in members)
              for key in ("anyOf", "oneOf") if (members := _listed(schema, key))),
            self._own(schema, open_),
        ))

    def _reference(self, reference: Any, open_: frozenset[str]) -> bool:
        if not isinstance(reference, str) or reference in self._known:
            return True
        if reference in open_:
            return False
        found = self.has_one(resolve_reference(self._root, reference), open_ | {reference})
        if found:
            self._known.add(reference)
        return found

    def _own(self, schema: Mapping[str, Any], open_: frozenset[str]) -> bool:
        types = schema.get("type", "null")
        if "const" in schema or "enum" in schema:
            return True
        for name in types if isinstance(types, list) else [types]:
            if name not in ("object", "array"):
                return True
            needed = self._members(schema) if name == "object" else self._items(schema)
            if all(self.has_one(each, open_) for each in needed):
                return True
        return False

    def _members(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        properties, required = schema.get("properties"), schema.get("required")
        declared = properties if isinstance(properties, Mapping) else {}
        for name in required if isinstance(required, list) else ():
            yield declared.get(name, schema.get("additionalProperties"))

    def _items(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        least, first = schema.get("minItems"), _listed(schema, "prefixItems")
        if isinstance(least, int) and least > 0:
            yield from first[:least]
            if least > len(first):
                yield schema.get("items")


def _listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else []
