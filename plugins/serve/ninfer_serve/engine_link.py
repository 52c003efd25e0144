"""What stands between the service and an engine."""

from __future__ import annotations

import time
from typing import Any, Protocol

from attrs import Factory, define

from ninfer_core.engine.request import (
    Event,
    Finished,
    GenerationRequest,
    Reading,
    Reuse,
    Sink,
    Started,
    TextDelta,
    Timings,
    Usage,
)


class EngineLink(Protocol):
    """A way to an engine. All of it, and every sink, runs on the event loop's thread."""

    async def submit(self, request: GenerationRequest, sink: Sink) -> int:
        """Hand over a request and return its number; ``sink`` gets its events, `Finished` last,
        also if the engine is lost.

        :raises RequestError: if it can never be served.
        :raises CapacityError: if too many are waiting.
        :raises EngineGone: if there is no engine.
        """
        ...

    def cancel(self, number: int) -> None:
        """End a request soon; one that is gone is left alone."""
        ...

    def status(self) -> dict[str, Any]:
        """``state``, ``restarts``, ``engine``, ``heard_s`` and ``held`` of `Service.status`."""
        ...


@define
class Heard:
    """What an engine has said of a request until it is gone. How many tokens a text is of, it does
    not say: each counts as one, so there were at least as many.

    :ivar first_at: when its first text came, by the monotonic clock.
    """

    submitted_at: float = Factory(time.monotonic)
    started: Started | None = None
    num_read: int = 0
    num_texts: int = 0
    first_at: float | None = None

    def note(self, event: Event) -> None:
        """It said this."""
        if isinstance(event, TextDelta):
            self.num_texts += 1
            self.first_at = self.first_at or time.monotonic()
        elif isinstance(event, Reading):
            self.num_read = event.num_tokens
        elif isinstance(event, Started):
            self.started = event

    def failed(self, request: GenerationRequest, cause: Exception) -> Finished:
        """The end of a request that no engine has ended."""
        now = time.monotonic()
        queue_s = self.started.queue_s if self.started else now - self.submitted_at
        reuse = self.started.reuse if self.started else Reuse()
        first_at = self.first_at or now
        timings = Timings(
            queue_s, max(0, first_at - self.submitted_at - queue_s),
            max(0, self.num_read - reuse.num_tokens),
            now - first_at, max(0, self.num_texts - 1), 0, 0,
        )
        usage = Usage(len(request.prompt.token_ids), self.num_texts)
        return Finished("error", usage, timings, (), cause=cause, reuse=reuse)
