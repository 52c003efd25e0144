"""Constraints by XGrammar."""

from __future__ import annotations

import re
from threading import Lock

from xgrammar import CompiledGrammar
from xgrammar import Grammar as XGrammar
from xgrammar import GrammarCompiler as XCompiler

from ninfer_core.api import ConstraintContext, Grammar, RequestError, TokenConstraint
from ninfer_grammars.compiler import CANNOT, GrammarCompiler
from ninfer_grammars.matching import Matching
from ninfer_xgrammar.lark import XLark
from ninfer_xgrammar.reader import XReader
from ninfer_xgrammar.vocabulary import read_vocabulary

_PLACE = re.compile(r"\[[\d:]+\] \S+?:\d+: ")


class Compiler(GrammarCompiler[XLark, CompiledGrammar]):
    """A `ConstraintCompiler` by XGrammar. The vocabulary is read for the first request."""

    def __init__(self, context: ConstraintContext) -> None:
        super().__init__(context)
        self._lock = Lock()
        self._made_of: XCompiler | None = None

    def lark(self) -> XLark:
        return XLark(self._context.tokenizer.control_ids)

    def compiled(self, lark: XLark, start: str, grammar: Grammar | None) -> CompiledGrammar:
        kind = "tools" if grammar is None else grammar.kind
        try:
            return self._compiler.compile_lark(lark.source(start), named_grammars=lark.others)
        except RuntimeError as error:
            raise RequestError(CANNOT, where=kind, why=reason(error)) from error

    def constraint(self, made: CompiledGrammar, end_ids: frozenset[int]) -> TokenConstraint:
        vocab_size = self._context.vocab_size
        return Matching(XReader(made, vocab_size), end_ids, vocab_size)

    def own_notation(self, lark: XLark, source: str) -> str:
        """Of Lark's family if it has no ``::=``, as GBNF has."""
        read = XGrammar.from_ebnf if "::=" in source else XGrammar.from_lark
        try:
            return lark.other(read(source))
        except RuntimeError as error:
            raise RequestError(CANNOT, where="grammar", why=reason(error)) from error

    @property
    def _compiler(self) -> XCompiler:
        with self._lock:
            if self._made_of is None:
                context = self._context
                vocabulary = read_vocabulary(context.tokenizer, context.vocab_size)
                self._made_of = XCompiler(
                    vocabulary, max_threads=1, cache_enabled=False,
                    enable_dynamic_compilation=True,  # all masks ahead would take seconds
                )
            return self._made_of


def reason(error: Exception) -> str:
    """The message without places in XGrammar's source and without a listing."""
    return _PLACE.sub("", str(error)).strip().partition("\n")[0]
