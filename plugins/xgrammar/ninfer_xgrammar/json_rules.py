"""JSON schemas as rules: exactly the values of a schema, or a refusal that names the keyword."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from ninfer_core.api import RequestError
from ninfer_core.text.schema_types import resolve_reference
from ninfer_grammars.lark import quoted
from ninfer_grammars.schema import Path, pointer
from ninfer_xgrammar.regex import (
    anywhere,
    json_char,
    json_text,
    plain_char_but,
    repeated,
)

TYPES = ("object", "array", "string", "number", "boolean", "null")
FORMATS = {"date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "hostname", "duration",
           "uri"}
NOTES = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
         "$comment", "$schema", "$id", "$defs", "definitions"}
KEYWORDS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "boolean": set(), "null": set(),
}
KEYWORDS["integer"] = KEYWORDS["number"]
BLANK = r"/[\u0020\u000a\u000d\u0009]{0,8}/"
"""A model that prefers blanks has to go on after eight of them."""
PLAIN_CHAR = plain_char_but("")
ESCAPE = (
    r'"\\" /["\\\/bfnrt]/ | "\\u" '
    r"(/[0-9a-cefA-CEF]/ /[0-9a-fA-F]/ | /[dD]/ /[0-7]/) /[0-9a-fA-F]/ /[0-9a-fA-F]/"
)
INTEGER = r"/-?(0|[1-9][0-9]*)/"
NUMBER = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/"


class Rules(Protocol):
    """Where the rules go."""

    def rule(self, body: str) -> str: ...

    def reserve(self) -> str: ...

    def define(self, name: str, body: str) -> None: ...


class JsonRules:
    """The rules of a prepared schema and all that it refers to."""

    def __init__(self, rules: Rules, root: Mapping[str, Any]) -> None:
        self._rules, self._root = rules, root
        self._known: dict[str, str] = {}

    def start(self) -> str:
        """The rule of a value."""
        return self._value(self._root, ())

    def _value(self, schema: Any, path: Path) -> str:
        """The rule of a subschema; equal ones share it."""
        key = json.dumps(schema)
        if key not in self._known:
            name = self._known[key] = self._rules.reserve()
            self._rules.define(name, self._body(schema, path))
        return self._known[key]

    def _body(self, schema: Any, path: Path) -> str:
        if schema is False:
            _refuse(path, "what allows nothing")
        given = schema if isinstance(schema, Mapping) else {}
        limits = {name: each for name, each in given.items()
                  if name not in NOTES and not name.startswith("x-")}
        for keyword, body in (
            ("$ref", self._reference), ("anyOf", self._any), ("oneOf", self._one),
            ("allOf", self._all),
        ):
            if keyword in limits:
                _refuse_beside(keyword, limits, path)
                return body(limits[keyword], (*path, keyword))
        if "const" in limits or "enum" in limits:
            return _literals(limits, path)
        return self._of_types(limits, path)

    def _reference(self, reference: str, path: Path) -> str:
        if (found := resolve_reference(self._root, reference)) is None:
            _refuse(path, f"the reference {reference!r}")
        return self._value(found, path)

    def _any(self, members: Sequence[Any], path: Path) -> str:
        found = [self._value(each, (*path, str(i))) for i, each in enumerate(members)
                 if each is not False]
        return " | ".join(found) or _refuse(path, "what allows nothing")

    def _one(self, members: Sequence[Any], path: Path) -> str:
        if not (_exclude_each_other(members) or _are_told_apart(members)):
            _refuse(path, "oneOf of members that may share values")
        return self._any(members, path)

    def _all(self, members: Sequence[Any], path: Path) -> str:
        if len(members) != 1:
            _refuse(path, "allOf of several")
        return self._value(members[0], (*path, "0"))

    def _of_types(self, limits: Mapping[str, Any], path: Path) -> str:
        given = limits.get("type", TYPES)
        types = [given] if isinstance(given, str) else [*dict.fromkeys(given)]
        known = {"type"}.union(*(KEYWORDS.get(name, set()) for name in types))
        if others := [name for name in limits if name not in known]:
            _refuse((*path, others[0]), others[0])
        return " | ".join(self._of_type(name, limits, path) for name in types)

    def _of_type(self, name: str, limits: Mapping[str, Any], path: Path) -> str:
        match name:
            case "object":
                return self._object(limits, path)
            case "array":
                return self._array(limits, path)
            case "string":
                return self._string(limits, path)
            case "integer" | "number":
                return self._number(name, limits)
            case "boolean":
                return '"true" | "false"'
            case "null":
                return '"null"'
        return _refuse((*path, "type"), f"type {name!r}")

    def _number(self, name: str, limits: Mapping[str, Any]) -> str:
        """With limits by XGrammar's own reader, which is exact there."""
        own = {key: limits[key] for key in limits if key in KEYWORDS["number"]}
        if own:
            return "%json " + json.dumps({"type": name, **own})
        return INTEGER if name == "integer" else NUMBER

    def _string(self, limits: Mapping[str, Any], path: Path) -> str:
        given = [key for key in limits if key in KEYWORDS["string"]]
        lengths = [key for key in given if key in ("minLength", "maxLength")]
        if lengths != given and len(given) > 1:
            _refuse((*path, given[-1]), f"{given[-1]} beside {given[0]}")
        if "format" in limits:
            if limits["format"] not in FORMATS:
                _refuse((*path, "format"), f"format {limits['format']!r}")
            return "%json " + json.dumps({"type": "string", "format": limits["format"]})
        if "pattern" in limits:
            around = f"{PLAIN_CHAR}*"
            return rf'"\"" {anywhere(limits["pattern"], json_char, around)} "\""'
        if lengths:  # of characters that need no escape: masks would take 0.1 s otherwise
            least, most = limits.get("minLength", 0), limits.get("maxLength", "")
            return rf'"\"" {PLAIN_CHAR}{{{least},{most}}} "\""'
        return rf'"\"" {PLAIN_CHAR}* ({self._shared(ESCAPE)} {PLAIN_CHAR}*)* "\""'

    def _array(self, limits: Mapping[str, Any], path: Path) -> str:
        first = limits.get("prefixItems", ())
        least, most = limits.get("minItems", 0), limits.get("maxItems")
        items = limits.get("items", True)
        if items is False and (most is None or most > len(first)):
            most = len(first)
        if most is not None and most < least:
            _refuse((*path, "maxItems"), "what allows nothing")
        blank, sep = self._shared(BLANK), self._separator()
        body = '""'
        if most is None or most > len(first):
            item = self._value(items, (*path, "items"))
            low = max(0, least - len(first))
            high = None if most is None else most - len(first)
            body = self._several(item, low, high, is_first=not first)
        for place in range(min(len(first), len(first) if most is None else most) - 1, -1, -1):
            lead = f"{sep} " if place else ""
            name = self._value(first[place], (*path, "prefixItems", str(place)))
            rest = self._rules.rule(f"{lead}{name} {body}")
            body = f"{rest}{'?' if place >= least else ''}"
        return f'"[" {blank} {body} {blank} "]"'

    def _several(self, item: str, least: int, most: int | None, *, is_first: bool) -> str:
        """From ``least`` to ``most`` items, the first of which may have no separator before it."""
        sep = self._separator()
        if not is_first:
            return self._rules.rule(repeated(f"({sep} {item})", least, most))
        if most == 0:
            return '""'
        others = repeated(
            f"({sep} {item})", max(0, least - 1), None if most is None else most - 1)
        return self._rules.rule(f"{item} {others}" + (' | ""' if not least else ""))

    def _object(self, limits: Mapping[str, Any], path: Path) -> str:
        properties, required = limits.get("properties", {}), [*limits.get("required", ())]
        more = limits.get("additionalProperties", True)
        declared = {**properties, **{name: more for name in required if name not in properties}}
        members = list[tuple[str, bool]]()
        for name, schema in declared.items():
            place = (*path, "properties", name)
            if schema is False and name in required:
                _refuse(place, "what allows nothing")
            if schema is not False:
                value = self._value(schema, place)
                members.append((self._member(json_text(name), value), name in required))
        other = ""
        if more is not False:
            value = self._value(more, (*path, "additionalProperties"))
            other = self._member(self._other_name(declared), value)
        blank = self._shared(BLANK)
        return f'"{{" {blank} {self._members(members, other)} {blank} "}}"'

    def _member(self, name: str, value: str) -> str:
        blank = self._shared(BLANK)
        return self._rules.rule(rf'"\"" {name} "\"" {blank} ":" {blank} {value}')

    def _members(self, members: Sequence[tuple[str, bool]], other: str) -> str:
        """In their order, and any others behind them."""
        sep = self._separator()
        later = self._rules.rule(f"({sep} {other})*") if other else '""'
        sooner = self._rules.rule(f'{other} {later} | ""') if other else '""'
        for member, needed in reversed(members):
            with_it, without = f"{member} {later}", "" if needed else f" | {sooner}"
            sooner = self._rules.rule(f"{with_it}{without}")
            later = self._rules.rule(f"{sep} {with_it}" + ("" if needed else f" | {later}"))
        return sooner

    def _other_name(self, names: Iterable[str]) -> str:
        """The rule of a name that is none of these. Escapes, by which one could be spelt, are not
        among its characters."""
        tree: dict[str, Any] = {}
        for name in names:
            branch = tree
            for char in name:
                branch = branch.setdefault(char, {})
            branch[""] = {}
        return self._unlike(tree)

    def _unlike(self, tree: Mapping[str, Any]) -> str:
        chars = "".join(char for char in tree if char and char >= " " and char not in '"\\')
        options = [] if "" in tree else ['""']
        options += [f"{quoted(char)} {self._unlike(tree[char])}" for char in chars]
        options.append(f"{plain_char_but(chars)} {PLAIN_CHAR}*")
        return self._rules.rule(" | ".join(options))

    def _separator(self) -> str:
        blank = self._shared(BLANK)
        return self._shared(f'{blank} "," {blank}')

    def _shared(self, body: str) -> str:
        """One rule for all that have this body."""
        key = f"={body}"
        if key not in self._known:
            self._known[key] = self._rules.rule(body)
        return self._known[key]


def _literals(limits: Mapping[str, Any], path: Path) -> str:
    if others := [name for name in limits if name not in ("const", "enum", "type")]:
        _refuse((*path, others[0]), f"{others[0]} beside a choice")
    values = limits["enum"] if "enum" in limits else [limits["const"]]
    given = limits.get("type")
    types = [given] if isinstance(given, str) else given
    kept = [
        each for each in values
        if (types is None or any(_is_of(each, name) for name in types))
        and ("const" not in limits or _same(each, limits["const"]))
    ]
    if not kept:
        _refuse(path, "what allows nothing")
    return " | ".join(quoted(json.dumps(each, ensure_ascii=False)) for each in kept)


def _is_of(value: Any, name: str) -> bool:
    kinds: dict[str, Any] = {"object": dict, "array": list, "string": str, "null": type(None)}
    if name in kinds:
        return isinstance(value, kinds[name])
    if isinstance(value, bool) or name == "boolean":
        return isinstance(value, bool) and name == "boolean"
    if name == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return name == "number" and isinstance(value, int | float)


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _exclude_each_other(members: Sequence[Any]) -> bool:
    """Whether no value is of two of them, as far as their types or choices say so."""
    seen = set[str]()
    for each in members:
        given = each if isinstance(each, Mapping) else {}
        if "const" in given or "enum" in given:
            values = given.get("enum", [given.get("const")])
            kinds = {f"={json.dumps(value, sort_keys=True)}" for value in values}
        else:
            found = given.get("type", TYPES)
            names = [found] if isinstance(found, str) else found
            kinds = {"number" if name == "integer" else name for name in names}
        if kinds & seen or (seen and any(k[0] == "=" for k in kinds) != any(
                k[0] == "=" for k in seen)):
            return False
        seen |= kinds
    return True


def _are_told_apart(members: Sequence[Any]) -> bool:
    """Whether they are objects that all must have one member, with another constant in each."""
    objects = [each for each in members
               if isinstance(each, Mapping) and each.get("type") == "object"]
    marks = [
        {name: json.dumps(each["const"], sort_keys=True)
         for name, each in member.get("properties", {}).items()
         if isinstance(each, Mapping) and "const" in each and name in member.get("required", ())}
        for member in objects
    ]
    if len(objects) < len(members) or not marks:
        return False
    return any(len({mark.get(name) for mark in marks} - {None}) == len(members)
               for name in marks[0])


def _refuse_beside(keyword: str, limits: Mapping[str, Any], path: Path) -> None:
    if others := [name for name in limits if name != keyword]:
        _refuse((*path, others[0]), f"{others[0]} beside {keyword}")


def _refuse(path: Path, what: str) -> NoReturn:
    raise RequestError("the JSON schema cannot be held to", where=pointer(path),
                       why=f"{what} is not supported by XGrammar here")
