"""XGrammar's place in a grammar."""

from __future__ import annotations

from collections.abc import Sequence

from xgrammar import CompiledGrammar, GrammarMatcher, allocate_token_bitmask

from ninfer_core.api import RequestError


class XReader:
    """A `Reader`, over the model's tokens and one more that stands for the end."""

    def __init__(self, grammar: CompiledGrammar, vocab_size: int) -> None:
        self._matcher = GrammarMatcher(grammar)
        self._bits = allocate_token_bitmask(1, vocab_size + 1)

    def consume(self, token_ids: Sequence[int]) -> None:
        for each in token_ids:
            if not self._matcher.accept_token(each):
                raise RequestError("the grammar cannot go on", why=f"it does not allow {each}")

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)

    def allowed(self) -> bytes:
        self._matcher.fill_next_token_bitmask(self._bits)
        return self._bits.numpy().tobytes()
