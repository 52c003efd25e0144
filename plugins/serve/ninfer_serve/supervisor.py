"""Keeps an engine process: starts it, talks with it, and starts another one when it is gone."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from attrs import Factory, asdict, define, frozen

from ninfer_core.api import Progress
from ninfer_core.engine.request import GenerationRequest, Sink
from ninfer_core.engine.status import EngineStatus
from ninfer_serve import wire
from ninfer_serve.engine_link import Heard
from ninfer_serve.service import EngineGone

_log = logging.getLogger(__name__)
COMMAND = (
    "from ninfer_serve.parent import die_with_parent; die_with_parent(); "
    "from ninfer_serve.engine_process import main; main()"
)
BUFFER_BYTES = 4 << 20
"""Of the socket, both ways."""


@frozen
class Patience:
    """How long the supervisor waits, in seconds.

    :ivar ask: between two questions how the engine is doing.
    :ivar stall: without a step, while there are requests, or without an answer: then it is stalled.
    :ivar restart: before the first restart; doubled each time, up to ``longest_restart``, until an
        engine has lasted ``proven``.
    :ivar stop: for the engine to end by itself.
    """

    ask: float = 0.25
    stall: float = 60.0
    restart: float = 0.2
    longest_restart: float = 30.0
    proven: float = 30.0
    stop: float = 30.0


@define
class _Call:
    """A request in the engine."""

    request: GenerationRequest
    sink: Sink
    accepted: asyncio.Future[None]
    heard: Heard = Factory(Heard)


class _Line(asyncio.Protocol):
    """The socket to one engine process."""

    def __init__(
        self, receive: Callable[[wire.ToServer], None], lost: Callable[[], None]
    ) -> None:
        self._receive, self._lost, self._unpacker = receive, lost, wire.Unpacker()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        for body in self._unpacker.feed(data):
            self._receive(wire.to_server.decode(body))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()
        self._lost()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def send(self, message: wire.ToEngine) -> None:
        if self._transport:
            self._transport.write(wire.pack(message))

    async def have_room(self) -> None:
        """Wait until the engine has read most of what was sent, or is gone."""
        await self._writable.wait()

    def close(self) -> None:
        if self._transport:
            self._transport.abort()


class Supervisor:
    """An `EngineLink` to an engine process that is there again soon after it is lost.

    :param command: Python that runs the engine, on the socket whose number is its first argument;
        the second is the id of this process.
    :ivar state: ``starting``, ``ok``, ``stalled``, ``restarting`` or ``stopping``.
    """

    def __init__(
        self, launch: wire.Launch, *, patience: Patience = Patience(), command: str = COMMAND
    ) -> None:
        self._launch, self._patience, self._command = launch, patience, command
        self._progress: Progress = _nothing
        self._numbers, self._calls = count(1), dict[int, _Call]()
        self._line: _Line | None = None
        self._process: Process | None = None
        self._ready: asyncio.Future[wire.Ready] | None = None
        self._gone = asyncio.Event()
        self._status: EngineStatus | None = None
        self._held: list[str] = []
        self._heard_at = self._moved_at = 0.0
        self._phase, self.restarts = "starting", 0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def state(self) -> str:
        if self._phase != "ok":
            return self._phase
        last = min(self._heard_at, self._moved_at if self._calls else self._heard_at)
        return "stalled" if time.monotonic() - last > self._patience.stall else "ok"

    @property
    def pid(self) -> int | None:
        """Of the engine process, if there is one."""
        return self._process.pid if self._process else None

    async def start(self, progress: Progress | None = None) -> wire.Ready:
        """Start the first engine; raises what keeps it from loading.

        :param progress: is told how far it has come.
        """
        self._progress = progress or _nothing
        ready = await self._start_process()
        self._progress = _nothing
        self._phase = "ok"
        self._tasks = [asyncio.ensure_future(each) for each in (self._watch(), self._ask())]
        return ready

    async def submit(self, request: GenerationRequest, sink: Sink) -> int:
        if line := self._line:
            await line.have_room()
        if self._phase != "ok" or line is None or line is not self._line:
            raise self._absence()
        number = next(self._numbers)
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._calls:
            self._moved_at = time.monotonic()
        self._calls[number] = _Call(request, sink, accepted)
        line.send(wire.submission(number, request))
        try:
            await accepted
        except asyncio.CancelledError:
            self.cancel(number)
            raise
        return number

    def cancel(self, number: int) -> None:
        if number in self._calls and self._line:
            self._line.send(wire.Cancel(number))

    def cancel_all(self) -> None:
        """End all requests soon."""
        for number in self._calls:
            self.cancel(number)

    def status(self) -> dict[str, Any]:
        engine = asdict(self._status) if self._status else None
        return {"state": self.state, "engine": engine, "heard_s": time.monotonic() - self._heard_at,
                "held": self._held, "restarts": self.restarts}

    async def close(self) -> None:
        """Stop the engine and wait for its end."""
        listens = self._phase == "ok"  # while it loads it does not
        self._phase = "stopping"
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._line:
            self._line.send(wire.Stop())
        await self._end_process(self._patience.stop if listens else 0)

    def kill(self) -> None:
        """End the engine at once, for good."""
        self._phase = "stopping"
        if self._process:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _start_process(self) -> wire.Ready:
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self._gone.clear()
        try:
            ready = await self._load(ours, theirs)
        except BaseException:
            self._ready = None
            if self._line is None:
                ours.close()
            await self._end_process(0)
            raise
        self._heard_at = self._moved_at = time.monotonic()
        return ready

    async def _load(self, ours: socket.socket, theirs: socket.socket) -> wire.Ready:
        """Start a process at the other end of our socket, and wait until it is ready."""
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-c", self._command, str(theirs.fileno()), str(os.getpid()),
                pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL, stdout=2,
            )
        line = _Line(self._receive, self._lose)
        await loop.create_unix_connection(lambda: line, sock=ours)
        self._line = line
        line.send(self._launch)
        return await self._ready

    async def _end_process(self, grace_s: float) -> str:
        """Wait for the engine's end, and bring it about after a while; how it ended."""
        how = "was not there"
        if process := self._process:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await process.wait()
            with suppress(ProcessLookupError):
                process.kill()
            code = await process.wait()
            how = f"ended with code {code}" if code >= 0 else f"was ended by {_signal(-code)}"
            self._process = None
        if self._line:
            self._line.close()
        return how

    def _receive(self, message: wire.ToServer) -> None:
        match message:
            case wire.Events():
                self._moved_at = time.monotonic()
                for each in message.occurrences:
                    self._deliver(each)
            case wire.Accepted():
                self._answer(message.number, None)
            case wire.Refused():
                self._answer(message.number, message.failure)
            case wire.Report():
                self._note(message.status)
            case wire.Held():
                self._held = message.lines
            case wire.Phase():
                self._progress(message.phase, message.done, message.total)
            case wire.Ready():
                self._settle_start(message)
            case wire.Broken():
                self._settle_start(wire.error_of(message.failure))

    def _deliver(self, occurrence: wire.Occurrence) -> None:
        number = occurrence.number
        if call := self._calls.get(number):
            if not call.accepted.done():  # what says so may be behind what comes of it
                call.accepted.set_result(None)
            if isinstance(occurrence, wire.Ended):
                del self._calls[number]
            event = wire.event_of(occurrence)
            call.heard.note(event)
            call.sink(event)

    def _answer(self, number: int, failure: wire.Failure | None) -> None:
        """What became of a submission."""
        call = self._calls.get(number) if failure is None else self._calls.pop(number, None)
        if call is None or call.accepted.done():
            return
        if failure is None:
            call.accepted.set_result(None)
        else:
            call.accepted.set_exception(wire.error_of(failure))

    def _note(self, status: EngineStatus) -> None:
        self._heard_at = time.monotonic()
        if self._status is None or status.cycle != self._status.cycle:
            self._moved_at = self._heard_at
        self._status = status

    def _settle_start(self, result: wire.Ready | Exception) -> None:
        if self._ready and not self._ready.done():
            if isinstance(result, Exception):
                self._ready.set_exception(result)
            else:
                self._ready.set_result(result)

    def _lose(self) -> None:
        """The engine is gone: so are its requests."""
        self._line, self._status, self._held = None, None, []
        self._gone.set()
        self._settle_start(EngineGone("the engine ended while it was loading"))
        if self._phase == "ok":
            self._phase = "restarting"
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.accepted.done():
                call.accepted.set_exception(self._absence())
            else:
                call.sink(call.heard.failed(call.request, self._absence()))

    def _absence(self) -> EngineGone:
        phases = {"restarting": "it ended and starts again", "stopping": "the server is stopping"}
        why = phases.get(self._phase, "it is not there yet")
        return EngineGone("there is no engine for the request", why=why, fix="send it again later")

    async def _watch(self) -> None:
        """Start another engine whenever one is lost."""
        patience = self._patience
        delay, started = patience.restart, time.monotonic()
        while True:
            await self._gone.wait()
            how = await self._end_process(1)
            if self._phase == "stopping":
                return
            if time.monotonic() - started > patience.proven:
                delay = patience.restart
            _log.error("the engine %s, and starts again in %.1f s", how, delay)
            await asyncio.sleep(delay)
            delay, started = min(2 * delay, patience.longest_restart), time.monotonic()
            self.restarts += 1
            try:
                await self._start_process()
                self._phase = "ok"
                _log.warning("there is an engine again")
            except Exception as error:
                _log.error("the engine cannot be started again: %s", error)
                self._gone.set()

    async def _ask(self) -> None:
        while True:
            await asyncio.sleep(self._patience.ask)
            if self._line and self._phase == "ok":
                self._line.send(wire.Ask())


def _nothing(phase: str, done: int, total: int) -> None:
    """Nobody watches."""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
