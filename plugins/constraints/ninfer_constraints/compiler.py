"""Constraints by llguidance."""

from __future__ import annotations

from threading import Lock

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from ninfer_constraints.errors import reason, unsupported_keyword
from ninfer_constraints.lark import GuidanceLark
from ninfer_constraints.reader import GuidanceReader
from ninfer_constraints.vocabulary import read_vocabulary
from ninfer_core.api import ConstraintContext, Grammar, RequestError, TokenConstraint
from ninfer_grammars.compiler import CANNOT, GrammarCompiler, parsed
from ninfer_grammars.lark import Fault
from ninfer_grammars.matching import Matching
from ninfer_grammars.schema import find_keyword

LIMITS = LLParserLimits(max_lexer_states=100_000, verbose_errors=False)
"""Up to 200 MB of states; fuel for 20 ms to compile a grammar and for 14 ms to say a mask."""


class Compiler(GrammarCompiler[GuidanceLark, LLMatcher]):
    """A `ConstraintCompiler` by llguidance. The vocabulary is read for the first request."""

    def __init__(self, context: ConstraintContext) -> None:
        super().__init__(context)
        self._lock = Lock()
        self._read: LLTokenizer | None = None

    def lark(self) -> GuidanceLark:
        return GuidanceLark(self._context.tokenizer.control_ids)

    def compiled(self, lark: GuidanceLark, start: str, grammar: Grammar | None) -> LLMatcher:
        matcher = LLMatcher(self._vocabulary, lark.whole(start), log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise _refusal(matcher.get_error(), grammar)
        return matcher

    def constraint(self, made: LLMatcher, end_ids: frozenset[int]) -> TokenConstraint:
        return Matching(GuidanceReader(made.deep_copy()), end_ids, self._context.vocab_size)

    def own_notation(self, lark: GuidanceLark, source: str) -> str:
        try:
            return lark.other(any_to_lark(source))
        except Exception as error:  # the library raises what it meets
            raise RequestError(CANNOT, where="grammar", why=str(error)) from error

    def why_not(self, source: str) -> Fault | None:
        grammar = LLMatcher.grammar_from_lark(source)
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0, limits=LIMITS)
        why = reason(matcher.get_error())
        return Fault(why, unsupported_keyword(why)) if why else None

    @property
    def _vocabulary(self) -> LLTokenizer:
        with self._lock:
            if self._read is None:
                context = self._context
                self._read = read_vocabulary(context.tokenizer, context.vocab_size)
            return self._read


def _refusal(error: str, grammar: Grammar | None) -> RequestError:
    """An error that names the keyword, if one was to blame."""
    kind, why = "tools" if grammar is None else grammar.kind, reason(error)
    if grammar and grammar.kind == "json_schema" and (keyword := unsupported_keyword(why)):
        place = find_keyword(parsed(grammar.source), keyword)
        return RequestError(CANNOT, where=f"{kind} {place}", why=why)
    return RequestError(CANNOT, where=kind, why=why)
