"""From what requests want to constraints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from threading import Lock
from typing import Any

from attrs import asdict
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from ninfer_constraints.cache import CompileCache
from ninfer_constraints.calls import CallGrammar
from ninfer_constraints.errors import reason, unsupported_keyword
from ninfer_constraints.lark import Lark, json_value, pattern, quoted
from ninfer_constraints.matching import Matching
from ninfer_constraints.schema import find_keyword, prepare
from ninfer_constraints.vocabulary import read_vocabulary
from ninfer_core.api import CallRules, ConstraintContext, Grammar, NewConstraint, RequestError
from ninfer_core.text.strict_json import parse_json

MAX_CHARS = 1 << 20
"""Of the grammar and the tools of a request."""
MAX_KEPT, MAX_AT_ONCE = 64, 2
LIMITS = LLParserLimits(max_lexer_states=100_000, verbose_errors=False)
"""Up to 200 MB of states; fuel for 20 ms to compile a grammar and for 14 ms to say a mask."""
_CANNOT = "the answer cannot be held to the grammar"


class Compiler:
    """A `ConstraintCompiler` by llguidance. The vocabulary is read for the first request."""

    def __init__(self, context: ConstraintContext) -> None:
        self._context, self._lock = context, Lock()
        self._read: LLTokenizer | None = None
        self._cache = CompileCache[LLMatcher](MAX_KEPT, MAX_AT_ONCE)

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
        start = self._cache.get(key, partial(self._matcher, grammar, calls, tools))
        return lambda end_ids: Matching(
            start.deep_copy(), end_ids, self._context.vocab_size)

    @property
    def _vocabulary(self) -> LLTokenizer:
        with self._lock:
            if self._read is None:
                context = self._context
                self._read = read_vocabulary(context.tokenizer, context.vocab_size)
            return self._read

    def _matcher(
        self, grammar: Grammar | None, calls: CallRules, tools: Sequence[Mapping[str, Any]]
    ) -> LLMatcher:
        lark = Lark(self._context.tokenizer.control_ids)
        source = lark.source(self._start(lark, grammar, calls, tools))
        matcher = LLMatcher(self._vocabulary, source, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise _refusal(matcher.get_error(), grammar)
        return matcher

    def _start(
        self, lark: Lark, grammar: Grammar | None, calls: CallRules,
        tools: Sequence[Mapping[str, Any]],
    ) -> str:
        """The body of the first rule."""
        content = None if grammar is None else _content(lark, grammar)
        syntax = self._context.call_syntax
        if syntax is None or not tools or (content and calls.names == ()):
            assert content is not None
            return content
        made = CallGrammar(lark, syntax, self._why_not)
        if calls.names == ():
            return made.text()
        if calls.required:
            return made.calls(tools, calls)
        if content:
            return f"{content} | {made.calls(tools, calls)}"
        return made.text_and_calls(tools, calls)

    def _why_not(self, source: str) -> str:
        grammar = LLMatcher.grammar_from_lark(source)
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0, limits=LIMITS)
        return reason(matcher.get_error())


def _content(lark: Lark, grammar: Grammar) -> str:
    """The body of a rule of the content."""
    match grammar.kind:
        case "json":
            return lark.rule(json_value({"type": "object"}))
        case "json_schema":
            return lark.rule(json_value(prepare(_parsed(grammar.source))))
        case "regex":
            return lark.rule(pattern(grammar.source))
        case "choice":
            return lark.rule(" | ".join(map(quoted, _choices(grammar.source))))
        case "grammar":
            return lark.rule(lark.other(_as_lark(grammar.source)))


def _parsed(source: str) -> Any:
    try:
        return parse_json(source)
    except ValueError as error:
        raise RequestError("malformed JSON", where="json_schema", why=str(error)) from error


def _choices(source: str) -> list[str]:
    found = _parsed(source)
    if not isinstance(found, list) or not found or not all(isinstance(e, str) for e in found):
        raise RequestError("malformed choice", why="it must be an array of texts, not empty")
    return found


def _as_lark(source: str) -> str:
    try:
        return any_to_lark(source)
    except Exception as error:  # the library raises what it meets
        raise RequestError(_CANNOT, where="grammar", why=str(error)) from error


def _refusal(error: str, grammar: Grammar | None) -> RequestError:
    """An error that names the keyword, if one was to blame."""
    kind, why = "tools" if grammar is None else grammar.kind, reason(error)
    if grammar and grammar.kind == "json_schema" and (keyword := unsupported_keyword(why)):
        place = find_keyword(_parsed(grammar.source), keyword)
        return RequestError(_CANNOT, where=f"{kind} {place}", why=why)
    return RequestError(_CANNOT, where=kind, why=why)
