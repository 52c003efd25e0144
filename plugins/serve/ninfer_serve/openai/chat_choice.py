"""One answer of a chat completion, piece by piece and as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from attrs import field, frozen

from ninfer_core.api import ToolCall
from ninfer_core.engine.request import Event, Finished, FinishReason, Logprobs, TextDelta
from ninfer_serve.errors import failure_of
from ninfer_serve.logprobs import LogprobReader

_REASONS = {
    "stop-token": "stop", "stop-string": "stop",
    "output-limit": "length", "context-capacity": "length",
}


@frozen
class Piece:
    """What an event adds.

    :ivar delta: members of the message. :ivar logprobs: of the content in it, if they are wanted.
    :ivar finished: with the last one.
    """

    delta: dict[str, Any] = field(factory=dict)
    logprobs: list[Any] | None = None
    finished: Finished | None = None
    finish_reason: str | None = None


class ChatChoice:
    """Turns the events of an answer into pieces.

    :param answer_id: makes ids of calls unique.
    :param reader: of logprobs, if they are wanted.
    :ivar finished: its end, when it is there.
    """

    def __init__(self, answer_id: str, index: int, reader: LogprobReader | None) -> None:
        self._id, self._index, self._reader, self._called = answer_id, index, reader, False
        self.finished: Finished | None = None

    def feed(self, event: Event) -> Iterator[Piece]:
        """Pieces of an event; raises what the answer fails with."""
        if isinstance(event, TextDelta):
            yield self._text(event)
        elif isinstance(event, ToolCall):
            yield self._call(event)
        elif isinstance(event, Finished):
            if failure := failure_of(event):
                raise failure
            self.finished = event
            yield Piece(finished=event, finish_reason=finish_reason(event.reason, self._called))
        elif isinstance(event, Logprobs) and self._reader and not event.of_prompt:
            self._reader.feed(event)

    def _text(self, text: TextDelta) -> Piece:
        tokens = self._reader.of(text.text) if self._reader else None
        if text.channel == "reasoning":
            return Piece({"reasoning_content": text.text, "reasoning": text.text})
        return Piece({"content": text.text}, tokens)

    def _call(self, call: ToolCall) -> Piece:
        self._called = True
        if self._reader:
            self._reader.skip()
        unique = hashlib.blake2b(f"{self._id}/{self._index}/{call.index}".encode(), digest_size=8)
        made = {"index": call.index, "id": f"call_{unique.hexdigest()}", "type": "function",
                "function": {"name": call.name, "arguments": call.arguments}}
        return Piece({"tool_calls": [made]})


def finish_reason(reason: FinishReason, called: bool) -> str:
    """Why an answer ended.

    :param called: whether it has complete calls; one that was cut is none.
    """
    found = _REASONS[reason]
    return "tool_calls" if called and found == "stop" else found


def message_of(pieces: Iterable[Piece]) -> dict[str, Any]:
    """The message that pieces make."""
    texts: dict[str, list[str]] = {"content": [], "reasoning_content": []}
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        for name, parts in texts.items():
            parts += filter(None, [piece.delta.get(name)])
        calls += piece.delta.get("tool_calls", ())
    content, reasoning = ("".join(parts) for parts in texts.values())
    message: dict[str, Any] = {
        "role": "assistant", "content": content or (None if calls else ""), "refusal": None,
    }
    if reasoning:
        message |= {"reasoning_content": reasoning, "reasoning": reasoning}
    if calls:
        shown = ("id", "type", "function")
        message["tool_calls"] = [{name: call[name] for name in shown} for call in calls]
    return message
