"""Streams as OpenAI's completions write them: chunks of one object, and an end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from attrs import frozen
from litestar.response import Stream

from ninfer_core.engine.request import Finished
from ninfer_serve.errors import openai_error
from ninfer_serve.openai.counts import timings_of
from ninfer_serve.service import Service
from ninfer_serve.sse import COMMENT, dumps, event_stream, frame, with_error, with_heartbeat

DONE = frame(b"[DONE]")


@frozen
class Chunks:
    """What the chunks of a stream have in common.

    :ivar head: members of each. :ivar usage: whether the last one has token counts.
    """

    head: Mapping[str, Any]
    usage: bool

    def frame(
        self, choice: Mapping[str, Any], finished: Finished | None = None, **more: Any
    ) -> bytes:
        """More of one choice; the last chunk of it has its times."""
        usage = {"usage": None} if self.usage else {}
        timings = {"timings": timings_of(finished)} if finished else {}
        return frame(dumps({**self.head, "choices": [choice], **usage, **timings, **more}))

    def ending(self, usage: Mapping[str, Any]) -> bytes:
        """Behind the last chunks of all choices."""
        if not self.usage:
            return DONE
        return frame(dumps({**self.head, "choices": [], "usage": usage})) + DONE


def respond(service: Service, frames: AsyncGenerator[bytes, None]) -> Stream:
    """The response of a stream; a failure is its last event but one."""
    safe = with_error(frames, lambda error: frame(dumps(openai_error(error))) + DONE)
    return event_stream(with_heartbeat(safe, COMMENT, service.heartbeat_s))
