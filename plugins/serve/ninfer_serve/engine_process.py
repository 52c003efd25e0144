"""The engine in a process of its own: it reads requests from a socket and answers with what each
step gave. The server starts it, and it does not outlive the server."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from functools import partial
from typing import Any, NoReturn

import torch

from ninfer_core.api import PreparedPrompt, SamplingParams
from ninfer_core.config import EnginePlan, resolve
from ninfer_core.engine.engine import Engine
from ninfer_core.engine.load import LoadedEngine, load_engine
from ninfer_core.engine.request import Event, Finished, GenerationRequest
from ninfer_core.plugin_host import load_plugins
from ninfer_core.state.step import PAGE_TOKENS
from ninfer_serve import wire
from ninfer_serve.desk import Desk
from ninfer_serve.garbage import freeze_what_is_loaded
from ninfer_serve.log import set_up_log

_log = logging.getLogger(__name__)
PHASE_S = 0.1
"""Least time between two messages of how far loading has come."""


class Line:
    """The socket to the server; several threads may send. Sending waits while the server does not
    read: then there is nobody to step for."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._lock = connection, threading.Lock()

    def send(self, message: wire.ToServer) -> None:
        data = wire.pack(message)
        with self._lock, suppress(OSError):  # who reads the messages meets the end of the server
            self._socket.sendall(data)

    def messages(self) -> Iterator[wire.ToEngine]:
        """All that come, until the server is gone."""
        unpacker = wire.Unpacker()
        with suppress(ConnectionError):
            while data := self._socket.recv(1 << 18):
                for body in unpacker.feed(data):
                    yield wire.to_engine.decode(body)


def main() -> NoReturn:
    """Serve the socket whose number is the first argument, until the server says stop or is gone.
    """
    line = Line(socket.socket(fileno=int(sys.argv[1])))
    messages = line.messages()
    launch = next(messages, None)
    if isinstance(launch, wire.Launch):
        with redirect_stdout(sys.stderr):
            serve(launch, line, messages)
    sys.stderr.flush()
    os._exit(0)  # threads that compile or step must not keep the process


def serve(launch: wire.Launch, line: Line, messages: Iterator[wire.ToEngine]) -> None:
    """Load, say so, and do what the messages ask."""
    set_up_log(launch.log_level)
    try:
        plan, loaded = load(launch, line)
        warm_up(loaded.engine)
        freeze_what_is_loaded()
    except Exception as error:
        _log.debug("the engine cannot be loaded", exc_info=True)
        line.send(wire.Broken(wire.failure_of(error)))
        return
    line.send(ready(plan, loaded))
    run(loaded.engine, line, messages, partial(_check, plan.hardware.device))


def run(
    engine: Engine, line: Line, messages: Iterator[wire.ToEngine], check: Callable[[], None]
) -> None:
    """Do what the messages ask of an engine; see `Desk`."""
    threading.excepthook = _end
    desk = Desk(engine, line.send, check)
    for message in messages:
        if isinstance(message, wire.Stop):
            desk.close()
            return
        desk.handle(message)


def load(launch: wire.Launch, line: Line) -> tuple[EnginePlan, LoadedEngine]:
    """The engine of a launch; how far it is goes to the server."""
    due = 0.0

    def progress(phase: str, done: int, total: int) -> None:
        nonlocal due
        if (now := time.monotonic()) >= due or done == total:
            due = now + PHASE_S
            line.send(wire.Phase(phase, done, total))

    report = load_plugins(launch.plugins)
    plan = resolve(launch.config, report, max_logits=PAGE_TOKENS)  # for logprobs of prompts
    return plan, load_engine(plan, progress)


def warm_up(engine: Engine) -> None:
    """Run what the first request would otherwise wait for.

    :raises NInferError: if it fails.
    """
    events: list[Event] = []
    prompt = PreparedPrompt((0,), "")
    request = GenerationRequest(prompt, SamplingParams(), 2, ignore_eos=True, use_cache=False)
    engine.submit(request, events.append)
    engine.run_until_idle()
    end = events[-1]
    if isinstance(end, Finished) and end.cause is not None:
        raise end.cause


def ready(plan: EnginePlan, loaded: LoadedEngine) -> wire.Ready:
    """What the server has to know."""
    config, weights = plan.config, loaded.report
    assert config.max_context is not None
    most = min(config.max_context, plan.num_pages * PAGE_TOKENS)
    lines = ", ".join(f"{line.name} {line.nbytes / 1e6:.1f} MB" for line in plan.ledger.lines)
    return wire.Ready(most, config.max_concurrency, plan.operations["vocab_size"], [
        *(f"{option}: {value} ({why})" for option, value, why in plan.reasons),
        f"memory: {lines}; {100 * weights.mapped_bytes // weights.nbytes} % of the weights mapped",
    ])


def _check(device: str) -> None:
    """End the process if the device does not answer: another one may find it well."""
    try:
        torch.zeros(1, device=device).add_(1).item()
    except Exception:
        _log.critical("the device %s is lost", device, exc_info=True)
        os._exit(1)


def _end(failed: Any) -> None:
    """A thread that ends with an error leaves nothing that could serve."""
    _log.critical("the engine ends", exc_info=failed.exc_value)
    sys.stderr.flush()
    os._exit(1)


