"""Output items of a response while they come, and the events that tell of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ninfer_core.api import ToolCall
from ninfer_core.engine.request import TextDelta
from ninfer_serve.responses.items import Item, sealed
from ninfer_serve.responses.tools import Tools

ServerEvent = dict[str, Any]
"""An event of the stream, without its sequence number."""


class Output:
    """Items in the order of the model's text: reasoning, messages and calls.

    Every method that takes something gives the events for it. An item has one id and one place
    from its first event to the response that it is part of.

    :param suffix: makes ids unique. :param seals: whether reasoning items are to have an
        ``encrypted_content``.
    """

    def __init__(self, suffix: str, tools: Tools, *, seals: bool) -> None:
        self._suffix, self._tools, self._seals = suffix, tools, seals
        self.items: list[Item] = []
        self._open: _OpenText | None = None

    def text(self, delta: TextDelta, logprobs: list[Any]) -> Iterator[ServerEvent]:
        """More of a channel.

        :param logprobs: of the tokens of this text, as the API has them.
        """
        if self._open is None or self._open.channel != delta.channel:
            yield from self.close("completed")
            yield from self._begin(delta.channel)
        assert self._open is not None
        yield self._open.extend(delta.text, logprobs)

    def call(self, call: ToolCall) -> Iterator[ServerEvent]:
        """A complete call."""
        yield from self.close("completed")
        is_custom = (made := self._tools.item(call))["type"] == "custom_tool_call"
        member = "input" if is_custom else "arguments"
        kind = "custom_tool_call_input" if is_custom else "function_call_arguments"
        item = {**made, "id": self._id("ctc" if is_custom else "fc"),
                "call_id": f"call_{self._suffix}_{call.index}", "status": "completed"}
        place = {"item_id": item["id"], "output_index": len(self.items)}
        yield self._added({**item, member: "", "status": "in_progress"})
        yield {"type": f"response.{kind}.delta", **place, "delta": item[member]}
        yield {"type": f"response.{kind}.done", **place, member: item[member]}
        yield self._done(item)

    def close(self, status: str) -> Iterator[ServerEvent]:
        """End the text that is open, if any."""
        if self._open is not None:
            text, self._open = self._open, None
            yield from text.ending()
            yield self._done(self._text_item(text, status))

    def _begin(self, channel: str) -> Iterator[ServerEvent]:
        name = self._id("rs" if channel == "reasoning" else "msg")
        self._open = _OpenText(channel, name, len(self.items))
        yield self._added({**self._text_item(self._open, "in_progress"), "content": []})
        yield self._open.beginning()

    def _text_item(self, text: _OpenText, status: str) -> Item:
        item: Item = {"id": text.item_id, "status": status, "content": [text.part()]}
        if text.channel != "reasoning":
            return {"type": "message", "role": "assistant", **item}
        item = {"type": "reasoning", "summary": [], **item}
        if self._seals and status != "in_progress":
            item["encrypted_content"] = sealed(text.text)
        return item

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self._suffix}_{len(self.items)}"

    def _added(self, item: Item) -> ServerEvent:
        return {"type": "response.output_item.added", "output_index": len(self.items), "item": item}

    def _done(self, item: Item) -> ServerEvent:
        self.items.append(item)
        index = len(self.items) - 1
        return {"type": "response.output_item.done", "output_index": index, "item": item}


class _OpenText:
    """The one part of a message, or of reasoning, that is still being written."""

    def __init__(self, channel: str, item_id: str, index: int) -> None:
        self.channel, self.item_id = channel, item_id
        self._kind = "reasoning_text" if channel == "reasoning" else "output_text"
        self._place = {"item_id": item_id, "output_index": index, "content_index": 0}
        self._texts: list[str] = []
        self._logprobs: list[Any] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def part(self) -> Item:
        text: Item = {"type": self._kind, "text": self.text}
        if self._kind == "output_text":
            text |= {"annotations": [], "logprobs": [*self._logprobs]}
        return text

    def beginning(self) -> ServerEvent:
        return {"type": "response.content_part.added", **self._place, "part": self.part()}

    def extend(self, text: str, logprobs: list[Any]) -> ServerEvent:
        self._texts.append(text)
        self._logprobs += logprobs
        return {"type": f"response.{self._kind}.delta", **self._place, "delta": text,
                **self._of_text(logprobs)}

    def ending(self) -> Iterator[ServerEvent]:
        yield {"type": f"response.{self._kind}.done", **self._place, "text": self.text,
               **self._of_text([*self._logprobs])}
        yield {"type": "response.content_part.done", **self._place, "part": self.part()}

    def _of_text(self, logprobs: list[Any]) -> dict[str, Any]:
        return {"logprobs": logprobs} if self._kind == "output_text" else {}
