"""The server process: everything in its order, from the socket to the last answer."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
import uvloop
from attrs import evolve, frozen
from litestar import Litestar

from ninfer_core.api import ConfigError, Frontend, UnsupportedError
from ninfer_core.artifact.container import open_artifact
from ninfer_core.cli.console import Console
from ninfer_core.cli.models import artifact_path
from ninfer_core.config import LaunchConfig
from ninfer_core.config.model import ModelPlan, blame, find_speculator, resolve_model
from ninfer_core.config.structure import structure
from ninfer_core.plugin_host import (
    PluginReport,
    PluginSelection,
    Registry,
    find_embedded,
    load_plugins,
)
from ninfer_serve import wire
from ninfer_serve.app import AppOptions, create_app
from ninfer_serve.config import ServeConfig, api_keys, launch_options, prompt_options
from ninfer_serve.connection import Connection
from ninfer_serve.engine_service import EngineService, ServiceOptions
from ninfer_serve.garbage import freeze_what_is_loaded
from ninfer_serve.generation import RequestDefaults
from ninfer_serve.log import set_up_log
from ninfer_serve.outcome import Observer
from ninfer_serve.request_log import LogLines, RequestLog
from ninfer_serve.service import ModelFacts, StoreLimits
from ninfer_serve.supervisor import Supervisor

_log = logging.getLogger(__name__)
T = TypeVar("T")
KEEP_ALIVE_S = 75
"""Longer than clients keep connections, so that none is closed under a request."""
DEAD_PEER_MS = 15_000
"""After so long without a sign from a client its connection is closed."""
LAST_WORDS_S = 2
"""For answers that are cut off when the server stops to say so."""


@frozen(eq=False)
class Served:
    """What is known before the engine is there."""

    launch: wire.Launch
    plugins: PluginReport
    model: ModelPlan
    frontend: Frontend
    name: str
    keys: tuple[str, ...]


def serve(config: ServeConfig) -> int:
    """Serve until a signal says stop; the exit code.

    :raises NInferError: for what keeps the server from starting.
    """
    set_up_log(config.log.level)
    with listen(config.server.host, config.server.port) as listener:
        with Console(config.log.level) as console:
            served = prepare(config, console)
        if not (served.keys or is_of_this_machine(listener)):
            warn_of_strangers(config.server.host)
        with (
            request_logs(config.log.requests) as logs,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(_serve(config, served, listener, logs))
    return 0


def prepare(config: ServeConfig, console: Console) -> Served:
    """Find plugins, model and keys; convert an embedded model that was never used before."""
    if config.model.vision:
        raise UnsupportedError("no plugin reads images", where="model.vision",
                               fix="set it to false")
    launch = structure(launch_options(config), LaunchConfig)
    selection = PluginSelection.from_environment(
        modules=config.plugins.load, blocked=config.plugins.block, profile=launch.profile
    )
    plugins = load_plugins(selection)
    speculator = find_speculator(launch, plugins)
    path = artifact_path(launch.model, plugins.registry, console.progress, speculator)
    launch = evolve(launch, model=str(path))
    model = resolve_model(launch, plugins)
    with blame(model.pack.provenance):
        frontend = model.model_pack.frontend(model.model_config, model.artifact.resources("text"))
    return Served(
        wire.Launch(launch, selection, config.log.level), plugins, model, frontend,
        config.model.name or _own_name(config.model.path, plugins.registry), api_keys(config),
    )


@contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket, whose connections notice dead peers.

    :raises ConfigError: if the address cannot be had.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        listener = socket.create_server(address[:2], family=family)
    except OSError as error:
        raise ConfigError("cannot listen", where=f"{host}:{port}", why=str(error),
                          fix="choose another --port or --host") from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_USER_TIMEOUT", DEAD_PEER_MS), ("TCP_KEEPIDLE", 10),
                              ("TCP_KEEPINTVL", 5)):
            if hasattr(socket, option):  # what is set here is set for every connection
                listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        yield listener


def url_of(listener: socket.socket) -> str:
    """Where clients find it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def warn_of_strangers(host: str) -> None:
    """Say that anybody in the network may ask."""
    _log.warning(
        "%s is open to every machine that reaches this one: anybody may use the model and read "
        "what is said of it; set an API key (--api-key), or listen at 127.0.0.1", host)


def is_of_this_machine(listener: socket.socket) -> bool:
    """Whether only this machine reaches it."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


@contextmanager
def request_logs(path: str | None) -> Iterator[Sequence[Observer]]:
    """What is told of every request: the log, and a file if there is a path."""
    if path is None:
        yield (LogLines(),)
        return
    with closing(RequestLog(Path(path).expanduser())) as file:
        yield LogLines(), file


async def _serve(
    config: ServeConfig, served: Served, listener: socket.socket, logs: Sequence[Observer]
) -> None:
    stop = _Stop()
    async with AsyncExitStack() as stack:
        supervisor = Supervisor(served.launch)
        stack.push_async_callback(supervisor.close)
        with Console(config.log.level) as console:
            ready = await stop.unless(supervisor.start(console.progress))
        if ready is None:
            return
        for note in ready.notes:
            _log.info("%s", note)
        service = EngineService(
            served.frontend, facts_of(served, ready), supervisor,
            service_options(config, ready), logs,
        )
        stack.callback(service.close)
        app = create_app(service, served.plugins, AppOptions(
            served.keys, config.server.cors_origins, config.server.max_body_mib << 20,
            is_private=not served.keys and is_of_this_machine(listener),
        ))
        async with running(app, listener, config.server.drain_s):
            _log.info("serving %s at %s", served.name, url_of(listener))
            await stop.wait()
            service.draining = True
            _log.info("stopping; %d requests have %g s", service.pending, config.server.drain_s)
            stop.then(supervisor.kill)
            asyncio.get_running_loop().call_later(config.server.drain_s, supervisor.cancel_all)


@asynccontextmanager
async def running(
    app: Litestar, listener: socket.socket, drain_s: float
) -> AsyncIterator[None]:
    """An HTTP server that drains when the block ends: who is connected gets the answer first."""
    freeze_what_is_loaded()
    asgi: Any = app  # the two have types of their own for it
    server = _Server(uvicorn.Config(
        asgi, log_config=None, access_log=False, lifespan="off", ws="none", http=Connection,
        server_header=False, timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(drain_s) + LAST_WORDS_S,
    ))
    task = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await task


def facts_of(served: Served, ready: wire.Ready) -> ModelFacts:
    """What clients may know."""
    created = int(served.model.artifact.path.stat().st_mtime)
    return ModelFacts(served.name, created, ready.max_context, ready.max_concurrency,
                      ready.vocab_size)


def service_options(config: ServeConfig, ready: wire.Ready) -> ServiceOptions:
    """The service's part of the configuration."""
    limits, serving = config.limits, config.serving
    return ServiceOptions(
        RequestDefaults(
            config.sampling.given, prompt_options(config), limits.max_tokens,
            serving.thinking_budget, limits.deadline_s,
        ),
        max_pending=ready.max_concurrency + limits.max_queue,
        prepare_timeout_s=limits.prepare_timeout_s, heartbeat_s=config.server.heartbeat_s,
        shares_prefix=serving.prefix_cache,
        store_limits=StoreLimits(serving.max_stored_responses, serving.max_stored_mib << 20),
    )


def _own_name(given: str | None, registry: Registry) -> str:
    """The name that the model was asked for by, or that of its artifact."""
    if given is None or not Path(given).exists():
        return find_embedded(registry, given).name
    return str(open_artifact(given).metadata.get("name") or Path(given).stem)


class _Server(uvicorn.Server):
    """Signals are `_Stop`'s."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Stop:
    """The wish to stop, by SIGINT or SIGTERM. The second one is in earnest."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._impatient: Callable[[], None] = self._event.set
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signal)

    def _signal(self) -> None:
        (self._impatient if self._event.is_set() else self._event.set)()

    def then(self, action: Callable[[], None]) -> None:
        """What the next signal does."""
        self._impatient = action

    async def wait(self) -> None:
        await self._event.wait()

    async def unless(self, awaitable: Awaitable[T]) -> T | None:
        """The result, or None if stopping is wished first."""
        task, stop = asyncio.ensure_future(awaitable), asyncio.ensure_future(self.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            return None
        return task.result()
