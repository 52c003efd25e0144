"""One answer of a text completion, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import frozen

from ninfer_core.api import Tokenizer
from ninfer_core.engine.request import Event, Finished, Logprobs, TextDelta, TokenLogprob
from ninfer_core.text.detokenizer import IncrementalDetokenizer
from ninfer_serve.errors import failure_of
from ninfer_serve.logprobs import finite
from ninfer_serve.openai.chat_choice import finish_reason

COLUMNS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")

Table = dict[str, list[Any]]
"""Logprobs in columns, an entry for each token."""


@frozen
class TextPiece:
    """What an event adds, with the tokens that have come since the last piece."""

    text: str
    logprobs: Table | None
    finished: Finished | None = None

    @property
    def finish_reason(self) -> str | None:
        return finish_reason(self.finished.reason, False) if self.finished else None


class CompletionChoice:
    """Turns the events of an answer into pieces.

    :param echo: the prompt, for the text to begin with, or "".
    :param tells: whether logprobs are wanted.
    :ivar finished: its end, when it is there.
    """

    def __init__(self, tokenizer: Tokenizer, echo: str, *, tells: bool) -> None:
        self._tokenizer, self._held, self._tells = tokenizer, echo, tells
        self._tokens: list[TokenLogprob] = []
        self._detokenizer, self._length = IncrementalDetokenizer(), 0
        self.finished: Finished | None = None

    def feed(self, event: Event) -> Iterator[TextPiece]:
        """Pieces of an event; raises what the answer fails with."""
        if isinstance(event, Logprobs):
            self._tokens += event.tokens
        elif isinstance(event, TextDelta):
            yield self._piece(event.text)
        elif isinstance(event, Finished):
            if failure := failure_of(event):
                raise failure
            self.finished = event
            yield self._piece("", event)

    def _piece(self, text: str, finished: Finished | None = None) -> TextPiece:
        text, self._held = self._held + text, ""
        tokens, self._tokens = self._tokens, []
        return TextPiece(text, self._table(tokens) if self._tells else None, finished)

    def _table(self, tokens: list[TokenLogprob]) -> Table:
        table: Table = {name: [] for name in COLUMNS}
        for token in tokens:
            raw = self._tokenizer.token_bytes(token.token_id)
            entry = (_shown(raw), finite(token.logprob), self._top(token), self._length)
            for name, value in zip(COLUMNS, entry, strict=True):
                table[name].append(value)
            self._length += len(self._detokenizer.feed(raw))
        return table

    def _top(self, token: TokenLogprob) -> dict[str, float | None] | None:
        """The likeliest tokens and the one itself. Some look alike, as parts of characters do; of
        such the likeliest counts."""
        if token.logprob is None:
            return None
        found: dict[str, float | None] = {}
        for token_id, logprob in (*token.top, (token.token_id, token.logprob)):
            found.setdefault(_shown(self._tokenizer.token_bytes(token_id)), finite(logprob))
        return found


def _shown(raw: bytes) -> str:
    return raw.decode(errors="replace")
