"""Tool calls in a model's own syntax, as rules of a grammar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ninfer_core.api import CallRules, CallSyntax, RequestError
from ninfer_core.text.schema_types import declared_properties
from ninfer_grammars.lark import Fault, Lark, quoted
from ninfer_grammars.schema import check_shape, find_keyword
from ninfer_grammars.values import Json, Value, exact_value, loose_value

_OBJECT = {"type", "properties", "required", "additionalProperties", "$defs", "definitions",
           "title", "description", "$schema", "$id", "$comment", "default", "examples"}
Try = Callable[[str], Fault | None]
"""From a grammar to why it is none, if so."""


class CallGrammar:
    """Adds the calls of some tools to a grammar.

    :param why_not: says of a grammar why it cannot be used.
    """

    def __init__(self, lark: Lark, syntax: CallSyntax, why_not: Try) -> None:
        self._lark, self._syntax, self._why_not = lark, syntax, why_not

    def calls(self, tools: Sequence[Mapping[str, Any]], rules: CallRules) -> str:
        """The rule of one or more calls, if there may be several."""
        lead, rest = self._opening()
        return self._several(f"{lead} {rest}", self._call(tools, rules, rest), rules)

    def text_and_calls(self, tools: Sequence[Mapping[str, Any]], rules: CallRules) -> str:
        """The body of any text, with or without calls behind it."""
        lead, rest = self._opening()
        text, call = self.text(), self._call(tools, rules, rest)
        if self._lark.is_control(self._syntax.begins[0]):
            return f"{text} {self._several(f'{lead} {rest}', call, rules)}?"
        head = self._lark.text_then(text, lead)
        return f"{text} | {self._several(f'{head} {rest}', call, rules)}"

    def text(self) -> str:
        """The terminal of text without calls."""
        return self._lark.terminal(self._lark.text_without(self._syntax.begins))

    def _opening(self) -> tuple[str, str]:
        """What a call begins with: the tag, and what follows it."""
        tag = self._syntax.begins[0]
        rest = self._syntax.opening.removeprefix(tag)
        return self._lark.spelt(tag), self._lark.spelt(rest)

    def _several(self, first: str, call: str, rules: CallRules) -> str:
        begin = f"{first} {call}"
        if not rules.parallel:
            return self._lark.rule(begin)
        again = self._lark.spelt(self._syntax.separator + self._syntax.opening)
        return self._lark.rule(f"{begin} ({again} {call})*")

    def _call(self, tools: Sequence[Mapping[str, Any]], rules: CallRules, rest: str) -> str:
        """The rule of a call behind its opening."""
        end = self._lark.spelt(self._syntax.closing)
        functions = [tool["function"] for tool in tools]
        bodies = [
            self._function(each, is_strict=each["name"] in rules.strict) for each in functions
            if rules.names is None or each["name"] in rules.names
        ]
        return self._lark.rule(" | ".join(f"{body} {end}" for body in bodies))

    def _function(self, function: Mapping[str, Any], *, is_strict: bool) -> str:
        name, schema = function["name"], function.get("parameters")
        if is_strict:
            _check_object(schema, name)
        begin, declared = quoted(name + self._syntax.named), declared_properties(schema)
        listed = schema.get("required") if isinstance(schema, Mapping) else None
        required = {each for each in declared if isinstance(listed, list) and each in listed}
        if not declared:
            return begin
        keys = sorted(declared, key=lambda each: each not in required)
        parts = [
            self._argument(key, self._value(declared[key], schema, f"{name}.{key}", is_strict))
            for key in keys
        ]
        if len(keys) > self._lark.most_in_any_order:
            order = [*map(keys.index, declared)]
            return " ".join([begin, *(parts[i] + "?" * (i >= len(required)) for i in order)])
        return f"{begin} {self._lark.any_order(parts, len(required))}"

    def _argument(self, key: str, value: Value) -> str:
        syntax, spelt = self._syntax, self._lark.spelt
        begin = spelt(syntax.parameter) + " " + quoted(key) + " " + spelt(syntax.keyed)
        if isinstance(value, Json):
            json = self._lark.json_value(value.schema)
            return self._lark.rule(f"{begin} {json} {spelt(syntax.valued)}")
        text = self._lark.terminal(value.body)
        if not self._lark.is_control(syntax.valued):
            return self._lark.rule(f"{begin} {self._lark.until(text, syntax.valued)}")
        return self._lark.rule(f"{begin} {text} {spelt(syntax.valued)}")

    def _value(self, schema: Any, root: Any, where: str, is_strict: bool) -> Value:
        """Exactly what a schema says; where that is too hard and not insisted on, of its types."""
        try:
            value = exact_value(schema, root, self._syntax.reserved, self._lark)
            if fault := self._fault(value):
                where = f"{where} {find_keyword(schema, fault.keyword)}".strip()
                raise RequestError("the JSON schema cannot be held to", why=fault.why)
            return value
        except RequestError as error:
            if is_strict:
                raise RequestError(error.what, where=f"{where} {error.where}".strip(),
                                   why=error.why, fix="do not ask for a strict tool") from error
            return loose_value(schema, root, self._syntax.reserved, self._lark)

    def _fault(self, value: Value) -> Fault | None:
        """Why a value alone is no grammar."""
        if isinstance(value, Json):
            return self._why_not(f"start: {self._lark.json_value(value.schema)}")
        return self._why_not(f"start: T\nT: {value.body}") if value.is_limited else None


def _check_object(schema: Any, name: str) -> None:
    """Refuse what arguments, each of which stands for itself, cannot be held to."""
    if schema is not None and not isinstance(schema, Mapping):
        raise RequestError("malformed JSON schema", where=name, why="it must be an object")
    given = schema or {}
    try:
        check_shape(given)
    except RequestError as error:
        raise RequestError(error.what, where=f"{name} {error.where}", why=error.why) from error
    declared = given.get("properties", {})
    missing = [each for each in given.get("required", ()) if each not in declared]
    if missing:
        raise RequestError("the JSON schema cannot be held to", where=f"{name} required",
                           why=f"{missing[0]!r} is not declared")
    if others := [key for key in given if key not in _OBJECT and not key.startswith("x-")]:
        raise RequestError("the JSON schema cannot be held to", where=f"{name} {others[0]}",
                           why="the keyword is not supported there",
                           fix="do not ask for a strict tool")
