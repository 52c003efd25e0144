"""What stands between the service and an engine."""

from __future__ import annotations

from typing import Any, Protocol

from ninfer_core.engine.request import Finished, GenerationRequest, Sink, Timings, Usage


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


def failed(request: GenerationRequest, cause: Exception) -> Finished:
    """The end of a request that no engine has ended."""
    usage = Usage(len(request.prompt.token_ids), 0)
    return Finished("error", usage, Timings(0, 0, 0, 0, 0, 0, 0), (), cause=cause)
