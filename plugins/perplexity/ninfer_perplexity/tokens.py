"""Texts as token ids."""

from __future__ import annotations

import hashlib

import numpy as np
from attrs import frozen

from ninfer_core.api import ConfigError, Tokenizer
from ninfer_perplexity.corpus import Text


@frozen(eq=False)
class TokenizedText:
    """:ivar ids: int64 ``[N]``, at least 2. :ivar sha256: of the ids as little-endian bytes."""

    text: Text
    ids: np.ndarray
    sha256: str


def tokenize(text: Text, tokenizer: Tokenizer, vocab_size: int) -> TokenizedText:
    """The tokens of a text as it stands: text that looks like a control token is text.

    :raises ConfigError: if there is nothing to score, or the model lacks a token.
    """
    ids = np.array(tokenizer.encode(text.content), dtype="<i8")
    if len(ids) < 2:
        why = f"{len(ids)} tokens, and only those after the first are scored"
        raise ConfigError("a text is too short", where=text.name, why=why)
    if ids.max() >= vocab_size:
        why = f"token {ids.max()} of the tokenizer, and the model has {vocab_size}"
        raise ConfigError("the tokenizer is not that of the model", where=text.name, why=why)
    return TokenizedText(text, ids, hashlib.sha256(ids.tobytes()).hexdigest())
