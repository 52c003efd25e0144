"""A server over a scripted engine: the real service, app and sockets, and made-up answers."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from attrs import asdict, evolve, fields_dict
from litestar import Litestar
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from ninfer_core.api import Frontend, ProtocolSpec, ToolCall
from ninfer_core.config.launch import LaunchConfig
from ninfer_core.engine.request import (
    Event,
    Finished,
    GenerationRequest,
    Logprobs,
    Reading,
    Reuse,
    Sink,
    Started,
    TextDelta,
    Timings,
    Usage,
)
from ninfer_core.engine.status import EngineStatus
from ninfer_core.plugin_host import PluginReport, PluginSelection, load_plugins
from ninfer_core.plugin_host.records import Provenance
from ninfer_qwen_family.frontend import QwenFrontend
from ninfer_serve import wire
from ninfer_serve.app import AppOptions, create_app
from ninfer_serve.engine_service import EngineService, ServiceOptions
from ninfer_serve.generation import RequestDefaults
from ninfer_serve.service import ModelFacts

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
TEMPLATE = """\
{%- if tools %}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content and preserve_thinking | default(true) %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
<function={{ call.function.name }}>
{% for name, value in call.function.arguments.items() %}<parameter={{ name }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
{% if enable_thinking | default(true) %}<think>
{% else %}<think>

</think>

{% endif %}"""
FACTS = ModelFacts("tiny", 1_700_000_000, 4096, 4, 400)
OPEN_TO_ALL = AppOptions()

Step = Event | float
"""An event, or seconds of silence."""
Script = Callable[[GenerationRequest], Iterable[Step]]


@pytest.fixture(scope="session")
def frontend() -> QwenFrontend:
    """Qwen's text side over a small byte-level tokenizer: reasoning, tools, system messages
    anywhere; options ``enable_thinking`` and ``preserve_thinking``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(["system user assistant # Tools <function= \n"] * 4, trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in TAGS])
    ends = [tokenizer.token_to_id(text) for text in ("<|im_end|>", "<|endoftext|>")]
    return QwenFrontend({
        "tokenizer.json": tokenizer.to_str().encode(), "chat_template.jinja": TEMPLATE.encode(),
        "generation_config.json": json.dumps({"eos_token_id": ends, "temperature": 1.0}).encode(),
    })


def reply(
    *parts: str | tuple[str, str] | ToolCall | Logprobs | float, reason: str = "stop-token",
    cached: int = 0, stop: str | None = None, cause: Exception | None = None,
    output_tokens: int | None = None,
) -> Script:
    """A script: content, ``("reasoning", text)``, calls, logprobs, seconds of silence; then the
    end. Each text counts as one output token."""

    def script(request: GenerationRequest) -> Iterator[Step]:
        length, number = len(request.prompt.token_ids), 0
        reuse = Reuse(cached, "prompt" if cached else "", "pool" if cached else "")
        yield Started(reuse, 0.25)
        yield Reading(length)
        for part in parts:
            if isinstance(part, str | tuple):
                number += 1
                channel, text = ("content", part) if isinstance(part, str) else part
                yield TextDelta(channel, text)
            else:
                yield part
        number = number if output_tokens is None else output_tokens
        yield Finished(
            reason, Usage(length, number), Timings(0.25, 0.5, length - cached, 0.5, number, 1, 1),
            tuple(range(number)), stop, cause, reuse,
        )

    return script


class ScriptedEngine:
    """An `EngineLink` that plays scripts.

    :ivar script: of the next requests; or a list of scripts, of which each serves one.
    :ivar requests: all that came. :ivar cancelled: numbers of those that were cancelled.
    :ivar refusal: raised for every submission, if it is set.
    :ivar state, last_status: what it says of itself.
    """

    def __init__(self) -> None:
        self.script: Script | list[Script] = reply("Hello")
        self.requests: list[GenerationRequest] = []
        self.cancelled: list[int] = []
        self.refusal: Exception | None = None
        self.state = "ok"
        self.last_status: EngineStatus | None = None
        self._numbers, self._tasks = count(1), dict[int, asyncio.Task[None]]()

    @property
    def running(self) -> int:
        return len(self._tasks)

    async def submit(self, request: GenerationRequest, sink: Sink) -> int:
        if self.refusal:
            raise self.refusal
        number, script = next(self._numbers), self.script
        script = script.pop(0) if isinstance(script, list) else script
        self.requests.append(request)
        self._tasks[number] = asyncio.ensure_future(self._play(number, script(request), sink))
        try:
            await asyncio.sleep(0)  # a task that has not begun cannot say that it was cancelled
        except asyncio.CancelledError:
            self.cancel(number)
            raise
        return number

    def cancel(self, number: int) -> None:
        if task := self._tasks.get(number):
            task.cancel()

    def status(self) -> dict[str, Any]:
        engine = self.last_status and asdict(self.last_status)
        return {"state": self.state, "restarts": 0, "engine": engine, "heard_s": 0.0,
                "held": []}

    async def _play(self, number: int, steps: Iterable[Step], sink: Sink) -> None:
        try:
            for step in steps:
                if isinstance(step, int | float):
                    await asyncio.sleep(step)
                else:
                    sink(step)
        except asyncio.CancelledError:
            self.cancelled.append(number)
            sink(Finished("cancelled", Usage(0, 0), Timings(0, 0, 0, 0, 0, 0, 0), ()))
        finally:
            del self._tasks[number]


def scripted_service(
    engine: ScriptedEngine, frontend: Frontend, facts: ModelFacts = FACTS, **options: Any
) -> EngineService:
    """The real service over it; ``options`` are of `RequestDefaults` and `ServiceOptions`, and
    ``observers``."""
    known, observers = fields_dict(RequestDefaults), options.pop("observers", ())
    defaults = {name: options.pop(name) for name in [*options] if name in known}
    made = ServiceOptions(defaults=RequestDefaults(**defaults), **options)
    return EngineService(frontend, facts, engine, made, observers)


def report_with(protocols: Iterable[ProtocolSpec]) -> PluginReport:
    """What plugins would report that register these protocols."""
    report = load_plugins(PluginSelection(names=()))
    core = report.records[0]
    spec = Provenance("tests", "1", "tests", "tests")
    record = evolve(core, name=spec.entry_point, distribution=spec.distribution,
                    version=spec.version, module=spec.module, group="-p", asked=True,
                    specs={"protocols": tuple(protocols)})
    report.records = (core, record)
    return report


@pytest.fixture
def make_app(frontend) -> Callable[..., SimpleNamespace]:
    """``(*protocols, engine=, app=, facts=, frontend=, **options of the service)``: a namespace of
    ``app``, ``service``, ``engine``; protocols are ``"module:routes"`` references."""

    def make(
        *protocols: str, engine: ScriptedEngine | None = None, app: AppOptions = OPEN_TO_ALL,
        facts: ModelFacts = FACTS, frontend: Frontend = frontend, **options: Any,
    ) -> SimpleNamespace:
        engine = engine or ScriptedEngine()
        service = scripted_service(engine, frontend, facts, **options)
        specs = [ProtocolSpec(f"p{index}", each) for index, each in enumerate(protocols)]
        made: Litestar = create_app(service, report_with(specs), app)
        return SimpleNamespace(app=made, service=service, engine=engine)

    return make


class ServerThread:
    """An app on a socket of this machine, in a thread with a loop of its own."""

    def __init__(self, app: Any) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # uvloop does so itself
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        run = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.loop = run.get_loop()

        def serve() -> None:
            with run:
                run.run(self._server.serve(sockets=[self._socket]))

        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)


@pytest.fixture
def serve(make_app) -> Iterator[Callable[..., SimpleNamespace]]:
    """As `make_app`, with a server: also ``url`` and ``client`` (an `httpx.Client`). Set
    ``engine.script`` to what the next requests get."""
    open_things: list[Any] = []

    def start(*protocols: str, **options: Any) -> SimpleNamespace:
        made = make_app(*protocols, **options)
        server = ServerThread(made.app)
        client = httpx.Client(base_url=server.url, timeout=20, trust_env=False)
        open_things.extend((client, server))
        return SimpleNamespace(url=server.url, client=client, **vars(made))

    yield start
    for each in open_things:
        each.close()


def events_of(text: str) -> list[tuple[str, Any]]:
    """``(event, data)`` of each server-sent event, data as JSON where it is some; comments are
    left out."""
    found = []
    for block in filter(None, text.split("\n\n")):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line[0] != ":")
        if "data" in fields:
            data = fields["data"]
            found.append((fields.get("event", ""), data if data == "[DONE]" else json.loads(data)))
    return found


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """Everything above, for test modules."""
    return SimpleNamespace(
        reply=reply, ScriptedEngine=ScriptedEngine, events_of=events_of, FACTS=FACTS,
        scripted_service=scripted_service, AppOptions=AppOptions, TEMPLATE=TEMPLATE,
    )


@pytest.fixture
def tiny_plugins(skeletons, monkeypatch) -> tuple[str, ...]:
    """Modules of a tiny pack, a profile and the protocols, which processes that are started find,
    too; no other plugin is."""
    folders = [importlib.util.find_spec(module).origin for module in skeletons.values()]
    path = [str(Path(origin).parents[1]) for origin in folders]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setenv("NINFER_PLUGINS", "")
    kinds = ("model-pack", "hardware-profile")
    return (*(skeletons[kind] for kind in kinds), "ninfer_serve.plugin")


@pytest.fixture
def tiny_launch(tiny_plugins, tiny_model) -> Callable[..., wire.Launch]:
    """``(**options of LaunchConfig) -> Launch`` of the tiny model."""

    def make(**options: Any) -> wire.Launch:
        options = {"model": str(tiny_model), "profile": "skeleton_profile", "max_context": 512,
                   "max_concurrency": 4, **options}
        return wire.Launch(
            LaunchConfig(**options), PluginSelection(modules=tiny_plugins, names=()), "warning")

    return make
