"""The engine's side of the socket: requests by the server's numbers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ninfer_core.api import CallRules, NInferError
from ninfer_core.engine.client import EngineClient
from ninfer_core.engine.engine import Engine
from ninfer_core.engine.request import Event, Finished
from ninfer_serve import wire

COMPILE_THREADS = 2
"""Grammars are compiled beside the requests that have none."""

HELD_S = 5.0
"""Least time between two reports of who holds the memory, while requests run."""

Send = Callable[[wire.ToServer], None]


class Desk:
    """Takes messages for an engine, which it runs on a thread of its own, and sends what each step
    gave in one message.

    :param send: to the server, from any thread.
    :param check: called after a fault that is no error for users; does not return if the machine is
        of no use any more.
    """

    def __init__(self, engine: Engine, send: Send, check: Callable[[], None]) -> None:
        self._engine, self._send, self._check = engine, send, check
        self._doubts, self._held_due = False, 0.0
        self._compilers = ThreadPoolExecutor(COMPILE_THREADS, "compile")
        self._lock = threading.Lock()
        self._ids: dict[int, int | None] = {}  # number -> id; None while it is on its way there
        self._outbox: list[wire.Occurrence] = []  # of the engine's thread alone
        self._client = EngineClient(engine, self._flush)

    def handle(self, message: wire.ToEngine) -> None:
        """Do what the server asks; called by one thread."""
        match message:
            case wire.Submit():
                self._ids[message.number] = None
                request = message.request
                if request.grammar is None and request.calls == CallRules():
                    self._submit(message)
                else:
                    self._compilers.submit(self._submit, message)
            case wire.Cancel():
                self._cancel(message.number)
            case wire.Ask():
                self._send(wire.Report(self._engine.status()))

    def close(self) -> None:
        """Cancel what is left and stop the engine."""
        self._compilers.shutdown(cancel_futures=True)
        self._client.close()

    def _submit(self, message: wire.Submit) -> None:
        number = message.number
        try:
            engine_id = self._client.submit_to(
                partial(self._put, number), wire.submitted(message)
            )
        except Exception as error:
            with self._lock:
                self._ids.pop(number, None)
            self._send(wire.Refused(number, wire.failure_of(error)))
            return
        self._send(wire.Accepted(number))
        with self._lock:
            is_wanted = self._ids.get(number, engine_id) is None
            if is_wanted:
                self._ids[number] = engine_id
        if not is_wanted:
            self._engine.cancel(engine_id)

    def _cancel(self, number: int) -> None:
        with self._lock:
            engine_id = self._ids.pop(number, None)
        if engine_id is not None:
            self._engine.cancel(engine_id)

    def _report_holdings(self) -> None:
        """Looks at all that is kept: when nothing else is to be done, and else now and then."""
        now = time.monotonic()
        if not self._ids or now >= self._held_due:
            self._held_due = now + HELD_S
            self._send(wire.Held([*self._engine.holdings().lines()]))

    def _put(self, number: int, event: Event) -> None:
        self._outbox.append(wire.occurrence(number, event))
        if isinstance(event, Finished):
            self._doubts |= not isinstance(event.cause, NInferError | None)
            with self._lock:
                self._ids.pop(number, None)

    def _flush(self) -> None:
        if self._outbox:
            occurrences, self._outbox = self._outbox, []
            self._send(wire.Events(occurrences))
            if any(isinstance(each, wire.Ended) for each in occurrences):
                self._report_holdings()
        if self._doubts:
            self._doubts = False
            self._check()
