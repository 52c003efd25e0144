"""Calls with a tag for the function and one for each parameter, as Qwen's models write them::

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

Values are not escaped, so that a closing tag may also be part of one: it counts only where the
structure goes on behind it, the last one where its line ends. What is read all the same, because
models write it: a call without ``<tool_call>``, or without the tags that close it; a value without
``</parameter>`` before the next parameter that the tool has, or before ``</function>``. A call that
lacks one of its closing tags is one only where another follows or the answer ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any

from ninfer_core.api import CallSyntax
from ninfer_core.text.arguments import arguments_json
from ninfer_core.text.calls import Verdict
from ninfer_core.text.schema_types import declared_properties
from ninfer_core.text.tags import ends_line

CALL, END_CALL = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
TAGS = (CALL, END_CALL, FUNCTION, END_FUNCTION, PARAMETER, END_PARAMETER)
SYNTAX = CallSyntax(
    opening=f"{CALL}\n{FUNCTION}", named=">\n", parameter=PARAMETER, keyed=">\n",
    valued=f"\n{END_PARAMETER}\n", closing=f"{END_FUNCTION}\n{END_CALL}", separator="\n",
    begins=(CALL, FUNCTION), reserved=(FUNCTION, END_FUNCTION, PARAMETER, END_PARAMETER),
)
"""Calls as the templates write them."""


class FunctionCalls:
    """The grammar, for these tools.

    :param tools: declarations in OpenAI's shape; calls of others are no calls.
    """

    tags, wrapper = TAGS, (CALL, END_CALL)

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        functions = [tool["function"] for tool in tools]
        self._schemas = {each["name"]: each.get("parameters") for each in functions}

    def begin(self, tag: str, *, line_start: bool) -> FunctionCallMatcher | None:
        if tag == CALL or (tag == FUNCTION and line_start):
            return FunctionCallMatcher(self._schemas, wrapped=tag == CALL)
        return None


class FunctionCallMatcher:
    """Reads a call after its first tag; each state is the method for the next atom."""

    def __init__(
        self, schemas: Mapping[str, Any], *, wrapped: bool, knows_examples: bool = True
    ) -> None:
        self._schemas, self._wrapped, self._knows_examples = schemas, wrapped, knows_examples
        self.closing = END_CALL if wrapped else END_FUNCTION
        self._state: Callable[[str], Verdict] = self._wrapper if wrapped else self._function_name
        self._name: list[str] = []
        self._function = self._parameter = ""
        self._declared: Collection[str] = ()
        self._values: dict[str, str] = {}
        self._value: list[str] = []
        self._doubtful: list[str] = []  # after the value, or part of it
        self._line_start = False
        self._nested = 0
        self._atoms: list[str] = []

    def feed(self, atom: str) -> Verdict:
        self._atoms.append(atom)
        return self._state(atom)

    def finish(self) -> Verdict:
        if self._state in (self._after_function, self._after_call):
            return self._end_value(Verdict.ENDED_BEFORE)
        return self._finish_without_examples() if self._nested else Verdict.NO_CALL

    def call(self) -> tuple[str, str]:
        return self._function, arguments_json(self._values, self._schemas[self._function])

    def _wrapper(self, atom: str) -> Verdict:
        if atom == FUNCTION:
            return self._go(self._function_name)
        return Verdict.GOES_ON if atom.isspace() else Verdict.NO_CALL

    def _function_name(self, atom: str) -> Verdict:
        name, rest = self._read_name(atom)
        if name is None:
            return Verdict.GOES_ON
        if name not in self._schemas:
            return Verdict.BROKEN if self._wrapped else Verdict.NO_CALL
        self._function, self._declared = name, declared_properties(self._schemas[name])
        return self._go(self._no_parameter, rest)

    def _no_parameter(self, atom: str) -> Verdict:
        if atom == PARAMETER:
            return self._go(self._parameter_name)
        if atom == END_FUNCTION or (atom == END_CALL and self._wrapped):
            return Verdict.ENDS
        return Verdict.GOES_ON if atom.isspace() else Verdict.BROKEN

    def _parameter_name(self, atom: str) -> Verdict:
        name, rest = self._read_name(atom)
        if name is None:
            return Verdict.GOES_ON
        if not name or name in self._values:
            return Verdict.BROKEN
        return self._begin_value(name, rest)

    def _in_value(self, atom: str) -> Verdict:
        if atom == END_FUNCTION and self._nested:
            self._nested -= 1
        elif atom == FUNCTION and self._line_start and self._knows_examples:
            self._nested += 1  # an example of a call: its closing tags are its own
        elif not self._nested:
            if atom == END_PARAMETER:
                return self._doubt(atom, self._after_parameter)
            if atom == END_FUNCTION:
                return self._doubt(atom, self._after_function)
            if atom == PARAMETER and self._line_start:
                return self._doubt(atom, self._next_name)
        self._extend_value(atom)
        return Verdict.GOES_ON

    def _after_parameter(self, atom: str) -> Verdict:
        if atom == PARAMETER:
            return self._end_value(self._go(self._parameter_name))
        if atom == END_FUNCTION or (atom == END_CALL and self._wrapped):
            return self._doubt(atom, self._after_function)
        return self._doubt(atom, self._after_parameter) if atom.isspace() else self._resume(atom)

    def _after_function(self, atom: str) -> Verdict:
        """All tags that close a call, or some: then only the next call or the end proves it."""
        if atom == END_CALL and {*self._doubtful} >= {END_PARAMETER, END_FUNCTION}:
            return self._doubt(atom, self._after_call)
        if atom in (CALL, FUNCTION):
            return self._end_value(Verdict.ENDED_BEFORE)
        goes_on = atom == END_CALL or atom.isspace()
        return self._doubt(atom, self._after_function) if goes_on else self._resume(atom)

    def _after_call(self, atom: str) -> Verdict:
        """Behind a whole closing sequence: text in its line, or a tag from inside a call, shows
        that it was quoted."""
        if atom.isspace():
            return self._doubt(atom, self._after_call)
        space = [*takewhile(str.isspace, reversed(self._doubtful)), atom[: -len(atom.lstrip())]]
        is_next_line = atom not in TAGS and any("\n" in each for each in space)
        if is_next_line or atom in (CALL, FUNCTION, END_CALL):
            return self._end_value(Verdict.ENDED_BEFORE)
        return self._resume(atom)

    def _finish_without_examples(self) -> Verdict:
        """What begins an example of a call may have been all of it: then the call is one if its
        closing sequence ends the output, and not before."""
        again = FunctionCallMatcher(self._schemas, wrapped=self._wrapped, knows_examples=False)
        atoms = self._atoms
        while atoms[-1].isspace():
            atoms.pop()
        if any(again.feed(atom) is not Verdict.GOES_ON for atom in atoms) or (
                again._state != again._after_call):
            return Verdict.NO_CALL
        self._values = again._values
        return again.finish()

    def _next_name(self, atom: str) -> Verdict:
        """The name behind ``<parameter=`` in a value that is not closed."""
        name, rest = self._read_name(atom)
        if name is None:
            return self._doubt(atom, self._next_name)
        if not name or name not in self._declared or name in {*self._values, self._parameter}:
            return self._resume(atom)
        verdict = self._end_value(Verdict.GOES_ON)
        return verdict if verdict is Verdict.BROKEN else self._begin_value(name, rest)

    def _go(self, state: Callable[[str], Verdict], rest: str = "") -> Verdict:
        self._state = state
        return state(rest) if rest else Verdict.GOES_ON

    def _read_name(self, atom: str) -> tuple[str | None, str]:
        """A name up to ``>`` and the text behind it; None while it goes on, "" if it is none."""
        before, found, rest = atom.partition(">")
        self._name.append(before)
        if atom not in TAGS and "\n" not in before and not found:
            return None, ""
        name, self._name = "".join(self._name), []
        return ("", "") if atom in TAGS or "\n" in before else (name, rest)

    def _begin_value(self, name: str, rest: str) -> Verdict:
        self._parameter, self._line_start = name, False
        return self._go(self._in_value, rest)

    def _extend_value(self, atom: str) -> None:
        self._value.append(atom)
        self._line_start = ends_line(atom, at_start=self._line_start)

    def _end_value(self, verdict: Verdict) -> Verdict:
        """``verdict``, unless a value without its closing tag holds such a tag: then something
        stands behind that which belongs nowhere."""
        value, doubtful, self._value, self._doubtful = self._value, self._doubtful, [], []
        text = "".join(value).removeprefix("\n").removesuffix("\n")
        self._values[self._parameter] = text
        unclosed = doubtful[0] != END_PARAMETER
        return Verdict.BROKEN if unclosed and END_PARAMETER in value else verdict

    def _doubt(self, atom: str, state: Callable[[str], Verdict]) -> Verdict:
        """The value may have ended before ``atom``."""
        self._doubtful.append(atom)
        return self._go(state)

    def _resume(self, atom: str) -> Verdict:
        """The value goes on: what was doubtful is part of it."""
        for each in self._doubtful:
            self._extend_value(each)
        self._doubtful = []
        return self._go(self._in_value, atom)
