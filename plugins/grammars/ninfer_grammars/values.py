"""How the value of an argument may be written: a string as it is, anything else as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from ninfer_core.api import RequestError, UnsupportedError
from ninfer_core.text.arguments import typed_value
from ninfer_core.text.schema_types import admitted_types, resolve_reference
from ninfer_grammars.lark import Lark, quoted
from ninfer_grammars.schema import MAX_STEPS, check_shape, prepare

_NOTES = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
          "$comment"}
_LENGTHS = {"minLength", "maxLength"}
_ANY = "(?s:.)"
_SCALARS = {
    "null": "null", "boolean": "true|false", "integer": r"-?(0|[1-9][0-9]*)",
    "number": r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?",
}


@frozen
class Text:
    """Text of a terminal's body. :ivar is_limited: whether it is not any text."""

    body: str
    is_limited: bool = True


@frozen
class Json:
    """JSON of a schema."""

    schema: Mapping[str, Any]


Value = Text | Json


def exact_value(schema: Any, root: Any, reserved: tuple[str, ...], lark: Lark) -> Value:
    """Exactly the values of a schema, as `typed_value` reads them.

    :param root: the schema that references point into. :param reserved: tags that end a string.
    :raises RequestError: naming what cannot be written so.
    """
    types = admitted_types(schema, root)
    if types is not None and "string" not in types:
        return Json(prepare(_rooted(schema, root)))
    found = [*_Alternatives(schema, root, lark, reserved).of(schema)]
    if None in found:
        return Text(lark.text_without(reserved), is_limited=False)
    return Text(" | ".join(body for body in found if body))


def loose_value(schema: Any, root: Any, reserved: tuple[str, ...], lark: Lark) -> Value:
    """Values of the types that a schema admits."""
    types = admitted_types(schema, root)
    if types is None or "string" in types:
        return Text(lark.text_without(reserved), is_limited=False)
    return Json({"type": sorted(types)})


class _Alternatives:
    """Bodies of terminals, one of which a text must be; None is any text.

    :param whole: the schema of the text. :param root: that references point into.
    :param reserved: tags that a text does not have.
    """

    def __init__(self, whole: Any, root: Any, lark: Lark, reserved: tuple[str, ...]) -> None:
        self._whole, self._root, self._steps = whole, root, 0
        self._lark, self._reserved = lark, reserved

    def of(self, schema: Any, open_: frozenset[str] = frozenset()) -> Iterator[str | None]:
        """:param open_: references on the way here."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise RequestError("the JSON schema is too complex", why="it refers too often")
        if schema is False:
            raise _unsupported("what allows nothing", "false")
        schema = schema if isinstance(schema, Mapping) else {}
        check_shape(schema)
        limits = {name: each for name, each in schema.items() if name not in _NOTES}
        if isinstance(reference := limits.get("$ref"), str):
            _refuse_beside("$ref", limits)
            if reference in open_:
                raise _unsupported("a reference to itself", "$ref")
            yield from self.of(resolve_reference(self._root, reference), open_ | {reference})
        elif union := limits.keys() & {"anyOf", "oneOf"}:
            [keyword] = union if len(union) == 1 else ["anyOf"]
            _refuse_beside(keyword, limits)
            for each in limits[keyword]:
                yield from self.of(each, open_)
        elif named := limits.keys() & {"enum", "const"}:
            [keyword] = named if len(named) == 1 else ["enum"]
            _refuse_beside(keyword, {key: each for key, each in limits.items() if key != "type"})
            yield from self._named(limits)
        else:
            yield from self._of_types(limits)

    def _named(self, limits: Mapping[str, Any]) -> Iterator[str]:
        """Values that are listed, but for those that would be read as others."""
        for each in limits.get("enum", [limits.get("const")]):
            text = each if isinstance(each, str) else json.dumps(each, ensure_ascii=False)
            read = typed_value(text, self._whole, self._root)
            is_same = type(read) is type(each) and read == each
            if is_same and not any(tag in text for tag in self._reserved):
                yield quoted(text)

    def _of_types(self, limits: Mapping[str, Any]) -> Iterator[str | None]:
        found = limits.get("type", "string")
        types = found if isinstance(found, list) else [found]
        if types == ["string"]:
            yield self._string(limits)
            return
        others = limits.keys() - {"type"}
        for name in types:
            if name == "string":
                yield self._string({key: limits[key] for key in others})
            elif name in _SCALARS and not others:
                yield self._lark.pattern(_SCALARS[name])
            else:
                raise _unsupported(f"a string or {name} that is limited", "type")

    def _string(self, limits: Mapping[str, Any]) -> str | None:
        if unknown := limits.keys() - {"type", "pattern", *_LENGTHS}:
            raise _unsupported("a keyword of a string", min(unknown))
        body = self._lark.text_without(self._reserved)
        if limited := limits.keys() & _LENGTHS:
            least, most = limits.get("minLength", 0), limits.get("maxLength", "")
            body = self._both(f"/{_ANY}{{{least},{most}}}/", body, min(limited))
        if "pattern" in limits:
            body = self._both(
                self._lark.pattern(_whole_match(limits["pattern"])), body, "pattern")
        return body if limits.keys() & {"pattern", *_LENGTHS} else None

    def _both(self, body: str, other: str, keyword: str) -> str:
        try:
            return self._lark.both(body, other)
        except UnsupportedError as error:
            raise _unsupported("it", keyword) from error


def _whole_match(regex: str) -> str:
    """A pattern that may match anywhere, as one of the whole text."""
    body = regex.removeprefix("^")
    begins, ends = body != regex, bool(re.search(r"(?<!\\)(\\\\)*\$$", body))
    body = body[:-1] if ends else body
    bare = re.sub(r"\\.|\[\^?\]?(\\.|[^\]\\])*\]", "", body)
    if re.search(r"[$^]", bare) or ((begins or ends) and _has_open_bar(bare)):
        raise _unsupported("an anchor", "pattern")
    return f"{'' if begins else f'{_ANY}*'}({body}){'' if ends else f'{_ANY}*'}"


def _has_open_bar(regex: str) -> bool:
    """Whether an alternation is in no group."""
    depth = 0
    for char in regex:
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            return True
    return False


def _refuse_beside(keyword: str, limits: Mapping[str, Any]) -> None:
    if others := limits.keys() - {keyword}:
        raise _unsupported(f"a keyword beside {keyword}", min(others))


def _unsupported(what: str, keyword: str) -> RequestError:
    return RequestError("the JSON schema cannot be held to", where=keyword,
                        why=f"{what} is not supported in an argument that is no JSON")


def _rooted(schema: Any, root: Any) -> Any:
    """The schema of a part, with what its references point to."""
    if '"$ref"' not in json.dumps(schema):
        return schema
    return {**_moved(schema), "$defs": {"root": _moved(root)}}


def _moved(schema: Any) -> Any:
    """References into the root lead into its new place."""
    if isinstance(schema, list):
        return [*map(_moved, schema)]
    if not isinstance(schema, Mapping):
        return schema
    made = {name: _moved(each) for name, each in schema.items()}
    if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#"):
        made["$ref"] = f"#/$defs/root{reference[1:]}"
    return made
