"""The engine on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Self

from ninfer_core.api import NInferError
from ninfer_core.engine.engine import Engine
from ninfer_core.engine.request import Event, Finished, GenerationRequest, Sink


class Generation:
    """The events of one request; iteration ends after `Finished`."""

    def __init__(self, engine: Engine, request: GenerationRequest) -> None:
        self._engine, self._events = engine, SimpleQueue[Event]()
        self.id = engine.submit(request, self._events.put)

    def __iter__(self) -> Iterator[Event]:
        while not isinstance(event := self._events.get(), Finished):
            yield event
        yield event

    def cancel(self) -> None:
        """End the request soon; its last event is `Finished` all the same."""
        self._engine.cancel(self.id)


class EngineClient:
    """Runs an engine's steps on one thread until it is closed; usable from any thread.

    :param after_step: called on that thread after every step; it must not raise.
    """

    def __init__(self, engine: Engine, after_step: Callable[[], None] = lambda: None) -> None:
        self._engine, self._wake, self._closing = engine, threading.Event(), False
        self._after_step = after_step
        self._thread = threading.Thread(target=self._serve, name="ninfer-engine", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest) -> Generation:
        """Queue a request; raises as `Engine.submit` does."""
        generation = Generation(self._engine, request)
        self._wake.set()
        return generation

    def submit_to(self, sink: Sink, request: GenerationRequest) -> int:
        """Queue a request whose events go to ``sink``, on the engine's thread; its id."""
        request_id = self._engine.submit(request, sink)
        self._wake.set()
        return request_id

    def close(self) -> None:
        """Cancel what is left and stop the thread."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _rest(self) -> None:
        """Wait for a request; what is worth it goes to disk meanwhile."""
        while not self._wake.is_set() and self._engine.persist():
            pass
        self._wake.wait()

    def _serve(self) -> None:
        try:
            while not self._closing:
                if not self._step():
                    self._rest()
                    self._wake.clear()
        except BaseException as error:  # also what a panic of an extension is
            cause = error if isinstance(error, Exception) else _ended_by(error)
            self._close_engine(cause)
            raise
        self._close_engine()

    def _step(self) -> bool:
        goes_on = self._engine.step()
        self._after_step()
        return goes_on

    def _close_engine(self, cause: Exception | None = None) -> None:
        self._engine.close(cause)
        self._after_step()


def _ended_by(error: BaseException) -> NInferError:
    return NInferError("the engine has ended", why=repr(error))
