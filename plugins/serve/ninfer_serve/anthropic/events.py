"""Answers as the events of a Messages stream, and as one message."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from attrs import define, field, frozen

from ninfer_core.api import PreparedPrompt, ReasoningTokens, ToolCall
from ninfer_core.engine.request import Event, Finished, Reuse, TextDelta
from ninfer_serve.reasoning import reasoning_tokens

StreamEvent = dict[str, Any]
Block = dict[str, Any]

_REASONS = {
    "stop-token": "end_turn", "stop-string": "stop_sequence", "output-limit": "max_tokens",
    "context-capacity": "model_context_window_exceeded",
}
_KINDS = {"content": "text", "reasoning": "thinking"}
_UNSIGNED = {"thinking": {"signature": ""}}


@frozen
class Head:
    """What is known of an answer before its first token.

    :ivar marks: of the model's reasoning.
    """

    answer_id: str
    model: str
    prompt: PreparedPrompt
    marks: ReasoningTokens | None

    def message(self, reuse: Reuse) -> dict[str, Any]:
        """The message without content."""
        return {
            "id": f"msg_{self.answer_id}", "type": "message", "role": "assistant",
            "model": self.model, "content": [], "stop_reason": None, "stop_sequence": None,
            "usage": self._usage(reuse, 0, 0),
        }

    def final_usage(self, finished: Finished) -> dict[str, Any]:
        """The tokens that a whole answer took."""
        thought = reasoning_tokens(finished.token_ids, self.marks, self.prompt.reasoning_open)
        return self._usage(finished.reuse, finished.usage.output_tokens, thought)

    def _usage(self, reuse: Reuse, output: int, thought: int) -> dict[str, Any]:
        """Tokens of the prompt are either read or were there, and nothing is in both."""
        return {
            "input_tokens": len(self.prompt.token_ids) - reuse.num_tokens,
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": reuse.num_tokens,
            "output_tokens": output, "output_tokens_details": {"thinking_tokens": thought},
        }


@define
class BlockStream:
    """Content blocks of an answer as they come: text of one channel is a block, and so is each
    call. Text of white space alone is no block.

    :ivar called: whether there was a call.
    """

    answer_id: str
    called: bool = False
    _index: int = -1
    _kind: str = ""
    _waiting: dict[str, str] = field(factory=dict)
    _digest: Any = field(factory=hashlib.sha256)

    def feed(self, event: Event) -> Iterator[StreamEvent]:
        """What an event adds."""
        if isinstance(event, TextDelta):
            yield from self._text(_KINDS[event.channel], event.text)
        elif isinstance(event, ToolCall):
            yield from self._call(event)

    def close(self) -> Iterator[StreamEvent]:
        """The end of the last block."""
        if self._kind == "thinking":
            signature = base64.b64encode(self._digest.digest()).decode()
            yield self._delta({"type": "signature_delta", "signature": signature})
        if self._kind:
            yield {"type": "content_block_stop", "index": self._index}
        self._kind = ""

    def _text(self, kind: str, text: str) -> Iterator[StreamEvent]:
        if kind != self._kind:
            text = self._waiting.pop(kind, "") + text
            if text.isspace():
                self._waiting[kind] = text
                return
            yield from self._open({"type": kind, kind: "", **_UNSIGNED.get(kind, {})})
        if kind == "thinking":
            self._digest.update(text.encode("utf-8", "replace"))
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def _call(self, call: ToolCall) -> Iterator[StreamEvent]:
        call_id = f"toolu_{self.answer_id}{call.index:02}"
        yield from self._open({"type": "tool_use", "id": call_id, "name": call.name, "input": {}})
        yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        yield from self.close()
        self.called = True

    def _open(self, block: Block) -> Iterator[StreamEvent]:
        yield from self.close()
        self._waiting.clear()
        self._index += 1
        self._kind, self._digest = block["type"], hashlib.sha256()
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, str]) -> StreamEvent:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def ending(finished: Finished, head: Head, *, called: bool) -> Iterator[StreamEvent]:
    """The events behind the last block."""
    yield {
        "type": "message_delta", "delta": stop_of(finished, called=called),
        "usage": head.final_usage(finished),
    }
    yield {"type": "message_stop"}


def stop_of(finished: Finished, *, called: bool) -> dict[str, str | None]:
    """Why an answer ended.

    :param called: whether it has calls.
    """
    reason = "tool_use" if called and finished.reason == "stop-token" else _REASONS[finished.reason]
    return {"stop_reason": reason, "stop_sequence": finished.stop}


def content_of(events: Iterable[StreamEvent]) -> list[Block]:
    """The blocks that the events of a stream build."""
    blocks: list[Block] = []
    members: list[dict[str, list[str]]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
            members.append({})
        elif event["type"] == "content_block_delta":
            for name, text in event["delta"].items():
                members[event["index"]].setdefault(name, []).append(text)
    return [_whole(block, texts) for block, texts in zip(blocks, members, strict=True)]


def _whole(block: Block, texts: dict[str, list[str]]) -> Block:
    if block["type"] == "tool_use":  # as it is: its numbers may be larger than an encoder's
        return {**block, "input": msgspec.Raw("".join(texts["partial_json"]).encode())}
    whole = {name: "".join(texts.get(name, ())) for name in block}
    return whole | {"type": block["type"]}
