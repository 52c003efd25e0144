"""Which log probabilities belong to which text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ninfer_core.api import Frontend, Tokenizer
from ninfer_core.engine.request import Logprobs, TokenLogprob

TokenEntry = dict[str, Any]
NO_TEXT = b"\xff"
"""In place of a mark: no text has such a byte."""
LEAST = -9999.0
"""In place of minus infinity, which JSON does not have."""


class LogprobReader:
    """Gives pieces of an answer the tokens they are made of. Tokens come before their text, and
    some have none: marks of reasoning and calls."""

    def __init__(self, frontend: Frontend) -> None:
        self._tokenizer = frontend.tokenizer
        marks = frontend.reasoning_tokens
        self._marks = {marks.opening, marks.closing} if marks else set()
        self._pending: list[tuple[bytes, TokenLogprob | None]] = []

    def feed(self, logprobs: Logprobs) -> None:
        for token in logprobs.tokens:
            if token.token_id in self._marks:
                self._pending.append((NO_TEXT, None))
            else:
                self._pending.append((self._tokenizer.token_bytes(token.token_id), token))

    def of(self, text: str) -> list[TokenEntry]:
        """The tokens of the next piece, in the API's form. One that reaches into the piece after it
        is of this one alone."""
        written, wanted = b"".join(raw for raw, _ in self._pending), text.encode()
        begin = written.find(wanted)
        end = begin + len(wanted) if begin >= 0 else len(written)
        found, at = list[TokenEntry](), 0
        while at < end:
            raw, token = self._pending.pop(0)
            if token is not None and at + len(raw) > begin:
                found.append(entry(self._tokenizer, token))
            at += len(raw)
        if at > end:
            self._pending.insert(0, (written[end:at], None))
        return found

    def skip(self) -> None:
        """What came belongs to no text."""
        self._pending = []


def entry(tokenizer: Tokenizer, token: TokenLogprob) -> TokenEntry:
    """A token as OpenAI's dialects write it."""
    return {**_entry(tokenizer, token.token_id, token.logprob), "top_logprobs": _top(
        tokenizer, token.top)}


def finite(logprob: float | None) -> float | None:
    """A logprob as a number of JSON."""
    return None if logprob is None else max(logprob, LEAST)


def _top(tokenizer: Tokenizer, top: Sequence[tuple[int, float]]) -> list[TokenEntry]:
    return [_entry(tokenizer, token_id, logprob) for token_id, logprob in top]


def _entry(tokenizer: Tokenizer, token_id: int, logprob: float | None) -> TokenEntry:
    raw = tokenizer.token_bytes(token_id)
    text = raw.decode(errors="replace")
    return {"token": text, "logprob": finite(logprob), "bytes": list(raw)}
