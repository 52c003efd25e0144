"""Calls with a pair of tags for each key and each value, as GLM models write them::

    <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>

Values of strings are not escaped; they may hold any text but a closing tag with the structure
behind it. What is read all the same, because models write it: white space beside tags; a value
without ``</arg_value>`` before the next key and value, or before a ``</tool_call>`` that ends the
answer; a call without ``</tool_call>`` where another follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ninfer_core.api import CallSyntax
from ninfer_core.text.arguments import arguments_json
from ninfer_core.text.calls import Verdict
from ninfer_core.text.schema_types import TYPES, admitted_types, declared_properties

CALL, END_CALL = "<tool_call>", "</tool_call>"
KEY, END_KEY = "<arg_key>", "</arg_key>"
VALUE, END_VALUE = "<arg_value>", "</arg_value>"
TAGS = (CALL, END_CALL, KEY, END_KEY, VALUE, END_VALUE)
SYNTAX = CallSyntax(
    opening=CALL, named="", parameter=KEY, keyed=f"{END_KEY}{VALUE}", valued=END_VALUE,
    closing=END_CALL, separator="", begins=(CALL,), reserved=(KEY, END_VALUE, END_CALL),
)
"""Calls as the templates write them."""
_NAME = re.compile(r"[\w.:/-]{1,200}")
_ANY_TYPE = {"type": [*TYPES]}


class KeyValueCalls:
    """The grammar, for these tools.

    :param tools: declarations in OpenAI's shape; calls of others are no calls.
    """

    tags, wrapper = TAGS, (CALL, END_CALL)

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        functions = [tool["function"] for tool in tools]
        self._schemas = {each["name"]: each.get("parameters") for each in functions}

    def begin(self, tag: str, *, line_start: bool) -> KeyValueCallMatcher | None:
        return KeyValueCallMatcher(self._schemas) if tag == CALL else None


class KeyValueCallMatcher:
    """Reads a call after its first tag; each state is the method for the next atom."""

    closing = END_CALL

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._state: Callable[[str], Verdict] = self._in_name
        self._text: list[str] = []  # of a name or a key
        self._function = self._key = self._next = ""
        self._declared: Collection[str] = ()
        self._values: dict[str, str] = {}
        self._value: list[str] = []
        self._doubtful: list[str] = []  # after the value, or part of it
        self._nested = 0

    def feed(self, atom: str) -> Verdict:
        return self._state(atom)

    def finish(self) -> Verdict:
        if self._state == self._after_call:
            return self._end_value(Verdict.ENDED_BEFORE)
        return Verdict.NO_CALL

    def call(self) -> tuple[str, str]:
        return self._function, _arguments(self._values, self._schemas[self._function])

    def _in_name(self, atom: str) -> Verdict:
        if atom not in TAGS:
            self._text.append(atom)
            goes_on = atom.isspace() or self._may_be_name()
            return Verdict.GOES_ON if goes_on else Verdict.NO_CALL
        name = self._take_text()
        if name not in self._schemas:
            return Verdict.BROKEN if _NAME.fullmatch(name) else Verdict.NO_CALL
        self._function, self._declared = name, declared_properties(self._schemas[name])
        return self._go(self._between, atom)

    def _may_be_name(self) -> bool:
        """Whether a name may have begun so: prose about calls is not withheld."""
        text = "".join(self._text).lstrip()
        known = any(name.startswith(text.rstrip()) for name in self._schemas)
        return known or _NAME.fullmatch(text.rstrip()) is not None

    def _between(self, atom: str) -> Verdict:
        """Before a key, or the end."""
        if atom == KEY:
            return self._go(self._in_key)
        if atom == END_CALL:
            return Verdict.ENDS
        if atom == CALL:
            return Verdict.ENDED_BEFORE
        return Verdict.GOES_ON if atom.isspace() else Verdict.BROKEN

    def _in_key(self, atom: str) -> Verdict:
        if atom not in TAGS:
            self._text.append(atom)
            return Verdict.GOES_ON
        self._key = self._take_text()
        is_new = bool(self._key) and self._key not in self._values
        return self._go(self._before_value) if atom == END_KEY and is_new else Verdict.BROKEN

    def _before_value(self, atom: str) -> Verdict:
        if atom == VALUE:
            return self._go(self._in_value)
        return Verdict.GOES_ON if atom.isspace() else Verdict.BROKEN

    def _in_value(self, atom: str) -> Verdict:
        if atom == END_VALUE:
            return self._doubt(atom, self._after_value)
        if atom == KEY:
            return self._doubt(atom, self._next_key)
        if atom == END_CALL and not self._nested:
            return self._doubt(atom, self._after_call)
        self._nested += (atom == CALL) - (atom == END_CALL)
        self._value.append(atom)
        return Verdict.GOES_ON

    def _after_value(self, atom: str) -> Verdict:
        """The tag that ends a value, if the call goes on behind it."""
        if atom.isspace():
            return self._doubt(atom, self._after_value)
        if atom in (KEY, END_CALL, CALL):
            return self._end_value(self._between(atom))
        return self._resume(atom)

    def _after_call(self, atom: str) -> Verdict:
        """The end of a call whose value has none, if nothing follows."""
        return self._doubt(atom, self._after_call) if atom.isspace() else self._resume(atom)

    def _next_key(self, atom: str) -> Verdict:
        """A key of the tool in a value that has no end."""
        if atom not in TAGS:
            self._text.append(atom)
            return self._doubt(atom, self._next_key)
        self._next = self._take_text()
        known = self._next in self._declared and self._next not in {*self._values, self._key}
        is_key = atom == END_KEY and known
        return self._doubt(atom, self._next_value) if is_key else self._resume(atom)

    def _next_value(self, atom: str) -> Verdict:
        """What must follow such a key."""
        if atom != VALUE:
            return self._doubt(atom, self._next_value) if atom.isspace() else self._resume(atom)
        self._end_value(Verdict.GOES_ON)
        self._key = self._next
        return self._go(self._in_value)

    def _go(self, state: Callable[[str], Verdict], atom: str = "") -> Verdict:
        self._state = state
        return state(atom) if atom else Verdict.GOES_ON

    def _take_text(self) -> str:
        text, self._text = "".join(self._text).strip(), []
        return text

    def _end_value(self, verdict: Verdict) -> Verdict:
        self._values[self._key] = "".join(self._value)
        self._value, self._doubtful, self._nested = [], [], 0
        return verdict

    def _doubt(self, atom: str, state: Callable[[str], Verdict]) -> Verdict:
        """The value may have ended before ``atom``."""
        self._doubtful.append(atom)
        return self._go(state)

    def _resume(self, atom: str) -> Verdict:
        """The value goes on: what was doubtful is part of it."""
        self._value += self._doubtful
        self._doubtful = []
        return self._go(self._in_value, atom)


def _arguments(values: Mapping[str, str], schema: Any) -> str:
    """The JSON object of a call's arguments. Where the tool does not say that a value is a string,
    it is JSON if it can be read as such."""
    declared = declared_properties(schema)
    known = {
        name: each for name, each in declared.items()
        if name in values and admitted_types(each, schema) is not None
    }
    root = schema if isinstance(schema, Mapping) else {}
    return arguments_json(values, {**root, "properties": dict.fromkeys(values, _ANY_TYPE) | known})
