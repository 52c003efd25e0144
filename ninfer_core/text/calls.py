"""Tool calls in a stream of text, whatever their grammar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import takewhile
from typing import Protocol

from attrs import frozen

from ninfer_core.api import AnswerPart, OutputPart, ToolCall
from ninfer_core.text.tags import TagLexer, ends_line


class Verdict(Enum):
    """What an atom says of a call under way."""

    GOES_ON = "the atom may belong to a call"
    ENDS = "the atom completes the call"
    ENDED_BEFORE = "the call is complete without the atom"
    NO_CALL = "this never was a call"
    BROKEN = "a call whose end is to be found, and not to be made"


class CallMatcher(Protocol):
    """Reads one call, atom by atom, after the tag that it began with."""

    @property
    def closing(self) -> str:
        """The tag that ends it, also when it is broken."""
        ...

    def feed(self, atom: str) -> Verdict: ...

    def finish(self) -> Verdict:
        """``ENDED_BEFORE`` if the end of the output completes the call."""
        ...

    def call(self) -> tuple[str, str]:
        """Name and arguments (a JSON object) of the complete call."""
        ...


class CallGrammar(Protocol):
    """How a model writes calls."""

    @property
    def tags(self) -> Sequence[str]:
        """All tags of the grammar."""
        ...

    @property
    def wrapper(self) -> tuple[str, str]:
        """The opening and the closing tag of a call."""
        ...

    def begin(self, tag: str, *, line_start: bool) -> CallMatcher | None:
        """A matcher if a call may begin with this tag."""
        ...


@frozen
class FoundCall:
    """A complete call. :ivar text: as the model wrote it, to its last tag."""

    name: str
    arguments: str
    text: str


class CallScanner:
    """Finds calls in a stream; the result does not depend on how it is cut. All text that is not
    part of a call comes back, in order; what may become one is withheld until that is known.

    A broken call is text up to its closing tag, whatever calls it may contain.

    :param in_prose: text that tells of calls: one must begin a line, with its wrapper.
    """

    def __init__(self, grammar: CallGrammar, *, in_prose: bool = False) -> None:
        self._grammar, self._in_prose = grammar, in_prose
        self._lexer, self._line_start = TagLexer(grammar.tags), True
        self._matcher: CallMatcher | None = None
        self._held: list[str] = []
        self._broken_until = ""

    def feed(self, text: str) -> Iterator[str | FoundCall]:
        """Calls, and pieces of text: a tag is a piece of its own."""
        for atom in self._lexer.feed(text):
            yield from self._take(atom)

    def finish(self) -> Iterator[str | FoundCall]:
        """What was withheld: a call that the end completes, else text."""
        for atom in self._lexer.finish():
            yield from self._take(atom)
        if self._matcher:
            yield from self._settle(self._matcher, self._matcher.finish())

    def _take(self, atom: str) -> Iterator[str | FoundCall]:
        if matcher := self._matcher:
            verdict = matcher.feed(atom)
            if verdict in (Verdict.GOES_ON, Verdict.ENDS):
                self._held.append(atom)
            if verdict is Verdict.GOES_ON:
                return
            yield from self._settle(matcher, verdict)
            if verdict is Verdict.ENDS:
                return
        if self._broken_until or not self._begins(atom):
            self._broken_until = "" if atom == self._broken_until else self._broken_until
            self._line_start = ends_line(atom, at_start=self._line_start)
            yield atom

    def _begins(self, atom: str) -> bool:
        if atom not in self._grammar.tags:
            return False
        if not self._in_prose or (self._line_start and atom == self._grammar.wrapper[0]):
            self._matcher = self._grammar.begin(atom, line_start=self._line_start)
        if self._matcher:
            self._held = [atom]
        return self._matcher is not None

    def _settle(self, matcher: CallMatcher, verdict: Verdict) -> Iterator[str | FoundCall]:
        held, self._held, self._matcher = self._held, [], None
        if verdict in (Verdict.ENDS, Verdict.ENDED_BEFORE):
            self._line_start = True
            space = [*takewhile(str.isspace, reversed(held))]
            yield FoundCall(*matcher.call(), "".join(held[: len(held) - len(space)]))
            yield from reversed(space)
            return
        for atom in held:
            self._line_start = ends_line(atom, at_start=self._line_start)
        if verdict is Verdict.BROKEN:
            self._broken_until = matcher.closing
        yield from held


class ToolCallParser:
    """Content and the calls in it; white space and stray closing tags beside a call are dropped.

    Without a call the content is the text as it is.
    """

    def __init__(self, grammar: CallGrammar) -> None:
        self._scanner, self._closing = CallScanner(grammar), grammar.wrapper[1]
        self._space: list[str] = []
        self._calls, self._after_call = 0, False

    def feed(self, text: str) -> Sequence[AnswerPart]:
        """What ``text`` adds."""
        return [part for piece in self._scanner.feed(text) for part in self._parts(piece)]

    def finish(self) -> Sequence[AnswerPart]:
        """What was withheld."""
        parts = [part for piece in self._scanner.finish() for part in self._parts(piece)]
        space = "".join(self._space)
        return [*parts, OutputPart("content", space)] if space else parts

    def _parts(self, piece: str | FoundCall) -> Iterator[AnswerPart]:
        if isinstance(piece, FoundCall):
            yield ToolCall(self._calls, piece.name, piece.arguments)
            self._calls, self._after_call, self._space = self._calls + 1, True, []
            return
        if self._after_call:
            piece = "" if piece == self._closing else piece.lstrip()
        body = piece.rstrip()
        if body:
            yield OutputPart("content", "".join([*self._space, body]))
            self._space, self._after_call = [], False
        if len(body) < len(piece):
            self._space.append(piece[len(body) :])
