"""From what requests want to constraints: what all engines do alike."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Generic, TypeVar

from attrs import asdict

from ninfer_core.api import (
    CallRules,
    ConstraintContext,
    Grammar,
    NewConstraint,
    RequestError,
    TokenConstraint,
)
from ninfer_core.text.strict_json import parse_json
from ninfer_grammars.cache import CompileCache
from ninfer_grammars.calls import CallGrammar
from ninfer_grammars.lark import Fault, Lark, quoted
from ninfer_grammars.schema import prepare

MAX_CHARS = 1 << 20
"""Of the grammar and the tools of a request."""
MAX_KEPT, MAX_AT_ONCE = 64, 2
CANNOT = "the answer cannot be held to the grammar"
L = TypeVar("L", bound=Lark)
T = TypeVar("T")


class GrammarCompiler(ABC, Generic[L, T]):
    """A `ConstraintCompiler` that keeps what it compiled, by an engine that reads Lark.

    ``L`` is the engine's Lark, ``T`` a compiled grammar.
    """

    def __init__(self, context: ConstraintContext) -> None:
        self._context = context
        self._cache = CompileCache[T](MAX_KEPT, MAX_AT_ONCE)

    def compile(
        self, grammar: Grammar | None, calls: CallRules, tools: Sequence[Mapping[str, Any]]
    ) -> NewConstraint:
        """See the protocol."""
        wanted = json.dumps(
            [grammar and asdict(grammar), asdict(calls), tools], default=sorted, sort_keys=False)
        if len(wanted) > MAX_CHARS:
            raise RequestError("the grammar is too large",
                               why=f"{len(wanted)} of at most {MAX_CHARS} characters, with tools")
        key = sha256(wanted.encode()).digest()
        made = self._cache.get(key, partial(self._made, grammar, calls, tools))
        return lambda end_ids: self.constraint(made, end_ids)

    @abstractmethod
    def lark(self) -> L:
        """Without rules."""

    @abstractmethod
    def compiled(self, lark: L, start: str, grammar: Grammar | None) -> T:
        """The grammar that begins with a rule's body.

        :raises RequestError: if there is none, naming the keyword to blame.
        """

    @abstractmethod
    def constraint(self, made: T, end_ids: frozenset[int]) -> TokenConstraint:
        """A constraint at its beginning."""

    @abstractmethod
    def own_notation(self, lark: L, source: str) -> str:
        """A client's grammar, for the body of a rule."""

    def why_not(self, source: str) -> Fault | None:
        """Why the engine cannot use a grammar, if it does not say so earlier."""
        return None

    def _made(
        self, grammar: Grammar | None, calls: CallRules, tools: Sequence[Mapping[str, Any]]
    ) -> T:
        lark = self.lark()
        return self.compiled(lark, self._start(lark, grammar, calls, tools), grammar)

    def _start(
        self, lark: L, grammar: Grammar | None, calls: CallRules,
        tools: Sequence[Mapping[str, Any]],
    ) -> str:
        """The body of the first rule."""
        content = None if grammar is None else lark.rule(self._content(lark, grammar))
        syntax = self._context.call_syntax
        if syntax is None or not tools or (content and calls.names == ()):
            assert content is not None
            return content
        made = CallGrammar(lark, syntax, self.why_not)
        if calls.names == ():
            return made.text()
        if calls.required:
            return made.calls(tools, calls)
        if content:
            return f"{content} | {made.calls(tools, calls)}"
        return made.text_and_calls(tools, calls)

    def _content(self, lark: L, grammar: Grammar) -> str:
        """The body of a rule of the content."""
        match grammar.kind:
            case "json":
                return lark.json_value({"type": "object"})
            case "json_schema":
                return lark.json_value(prepare(parsed(grammar.source)))
            case "regex":
                return lark.pattern(grammar.source)
            case "choice":
                return " | ".join(map(quoted, _choices(grammar.source)))
            case "grammar":
                return self.own_notation(lark, grammar.source)


def parsed(source: str) -> Any:
    """JSON of a schema."""
    try:
        return parse_json(source)
    except ValueError as error:
        raise RequestError("malformed JSON", where="json_schema", why=str(error)) from error


def _choices(source: str) -> list[str]:
    found = parsed(source)
    if not isinstance(found, list) or not found or not all(isinstance(e, str) for e in found):
        raise RequestError("malformed choice", why="it must be an array of texts, not empty")
    return found
