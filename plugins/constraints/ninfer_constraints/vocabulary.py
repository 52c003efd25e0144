"""A model's vocabulary as llguidance wants it."""

from __future__ import annotations

from llguidance import LLTokenizer, TokenizerWrapper

from ninfer_core.api import Tokenizer


class _Words:
    """The attributes that `TokenizerWrapper` reads."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.tokens = [*map(tokenizer.token_bytes, range(vocab_size)), b""]
        self.eos_token_id = vocab_size
        controls = tokenizer.control_ids.values()
        self.special_token_ids = [each for each in controls if each < vocab_size]

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode())


def read_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> LLTokenizer:
    """The tokens below ``vocab_size``; control tokens are no text.

    The end of an answer is one more, the last, which no model has: which tokens really end it is
    up to each request.
    """
    return LLTokenizer(TokenizerWrapper(_Words(tokenizer, vocab_size)), n_vocab=vocab_size + 1)
