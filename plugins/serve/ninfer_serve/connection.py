"""A connection of a client, which has to go on with what it has begun."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_BYTES = 64 << 10
"""Of the line and the headers of a request, and of what stands between pieces of its body."""
PATIENCE_S = 60.0
"""For a whole head, and for the next piece of a body."""


class Connection(HttpToolsProtocol):
    """uvicorn's, which holds connections without a request, and heads of any length, for ever."""

    _unread, _owes = 0, ""
    _due: asyncio.TimerHandle | None = None
    _answering: RequestResponseCycle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Of requests that were sent behind each other, uvicorn tells the last one alone."""
        self._stop_waiting()
        super().connection_lost(exc)
        if self._answering and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unread > HEAD_BYTES:
            self.send_400_response(f"The head of a request has more than {HEAD_BYTES} bytes.")
            return
        self._wait()

    def on_headers_complete(self) -> None:
        self._unread = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _wait(self) -> None:
        """Start the clock of what the client owes. That of a head is not started again by pieces
        of it."""
        owes = self._owed()
        if owes == "head" and self._owes == "head" and self._due:
            return
        self._stop_waiting()
        self._owes = owes
        if owes:
            self._due = self.loop.call_later(PATIENCE_S, self._give_up)

    def _owed(self) -> Literal["", "head", "body"]:
        if self.cycle is None or self.cycle.response_complete:
            return "head"
        return "body" if self.cycle.more_body else ""

    def _give_up(self) -> None:
        self._due = None
        if self.flow.read_paused:  # it is not the client who is late
            self._wait()
        elif self._owed() == self._owes and not self.transport.is_closing():
            self.transport.close()

    def _stop_waiting(self) -> None:
        if self._due:
            self._due.cancel()
            self._due = None
