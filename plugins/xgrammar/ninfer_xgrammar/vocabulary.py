"""A model's vocabulary as XGrammar wants it."""

from __future__ import annotations

from xgrammar import TokenizerInfo, VocabType

from ninfer_core.api import Tokenizer

NO_TEXT = b"\xff"
"""Bytes of what is no text: no character has this one."""


def read_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> TokenizerInfo:
    """The tokens below ``vocab_size``; control tokens are no text. The end of an answer is one
    more, the last, which no model has: which tokens really end it is up to each request."""
    tokens = [*map(tokenizer.token_bytes, range(vocab_size)), NO_TEXT]
    for each in tokenizer.control_ids.values():
        if each < vocab_size:
            tokens[each] = NO_TEXT
    return TokenizerInfo(tokens, VocabType.RAW, stop_token_ids=[vocab_size])
