"""An engine that is made up: the real one on a model that computes nothing and takes its time for
each step, asleep, as a host is while a GPU works. Its process and its server are what
`ninfer-serve` runs, but for the model."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

import uvloop

from ninfer_bench.stub import stub_engine
from ninfer_core.config.launch import LaunchConfig
from ninfer_core.plugin_host import PluginSelection, load_plugins
from ninfer_core.text.frontend import ChatFrontend
from ninfer_fixtures.tiny import tiny_resources
from ninfer_serve import engine_process, server, wire
from ninfer_serve.app import AppOptions, create_app
from ninfer_serve.engine_service import EngineService, ServiceOptions
from ninfer_serve.garbage import freeze_what_is_loaded
from ninfer_serve.service import ModelFacts
from ninfer_serve.supervisor import Supervisor

STREAMS, PROMPT = 8, 64
COMMAND = f"""
from ninfer_serve.parent import die_with_parent
die_with_parent()
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import paced
paced.run_engine()
"""


class TimedLine(engine_process.Line):
    """Remembers when each text was sent, if it is to."""

    times: list[tuple[int, float]] | None = None

    def send(self, message: wire.ToServer) -> None:
        if self.times is not None and isinstance(message, wire.Events):
            now = time.monotonic()
            texts = (each.number for each in message.occurrences if isinstance(each, wire.Text))
            self.times += [(number, now) for number in texts]
        super().send(message)


def run_engine() -> NoReturn:
    """The engine process."""
    line = TimedLine(socket.socket(fileno=int(sys.argv[1])))
    report = os.environ.get("TIMES")
    line.times = [] if report else None
    messages, output = line.messages(), int(os.environ["OUTPUT"])
    next(messages)
    engine, _ = stub_engine(STREAMS, 4 * PROMPT, output, float(os.environ["STEP_S"]))
    line.send(wire.Ready(4 * PROMPT + output, STREAMS, 256, []))
    freeze_what_is_loaded()
    begun = time.process_time()
    engine_process.run(engine, line, messages, lambda: None)
    if report:
        found = {"sent": line.times, "cpu_s": time.process_time() - begun}
        Path(report).write_text(json.dumps(found))
    os._exit(0)


async def run_server() -> None:
    """The server process; it prints its port and the engine's process, and ends with its stdin."""
    selection = PluginSelection()
    supervisor = Supervisor(wire.Launch(LaunchConfig(), selection, "warning"), command=COMMAND)
    ready = await supervisor.start()
    facts = ModelFacts("paced", 0, ready.max_context, STREAMS, ready.vocab_size)
    service = EngineService(
        ChatFrontend(tiny_resources()), facts, supervisor, ServiceOptions())
    app = create_app(service, load_plugins(selection), AppOptions())
    with server.listen("127.0.0.1", 0) as listener:
        async with server.running(app, listener, 1):
            print(listener.getsockname()[1], supervisor.pid, flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await supervisor.close()
    service.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_server())
