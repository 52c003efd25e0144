"""Messages between the server and its engine process: msgpack, each behind its length."""

from __future__ import annotations

import ast
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
from attrs import evolve

from ninfer_core.api import NInferError, ToolCall, errors
from ninfer_core.config.launch import LaunchConfig
from ninfer_core.engine.request import (
    Event,
    Finished,
    GenerationRequest,
    Logprobs,
    Reading,
    Started,
    TextDelta,
)
from ninfer_core.engine.status import EngineStatus
from ninfer_core.plugin_host import PluginSelection
from ninfer_core.text.unicode import unicode_scalars

_LENGTH = struct.Struct("<I")
Notice = Started | Logprobs | ToolCall


class _Message(msgspec.Struct, array_like=True, tag=True):
    """Fields are written without their names."""


class Launch(_Message):
    """The first message to an engine process: what to run."""

    config: LaunchConfig
    plugins: PluginSelection
    log_level: str


class Submit(_Message):
    """A request under a number that the server chose.

    :ivar scope: of its prompt, as ``repr`` writes it: msgpack does not tell tuples from lists.
    """

    number: int
    request: GenerationRequest
    scope: str


class Cancel(_Message):
    """End a request."""

    number: int


class Ask(_Message):
    """How is the engine doing?"""


class Stop(_Message):
    """Cancel what is left, keep what outlives the process, and end."""


class Failure(_Message):
    """An error on its way: the name of its class, which is one of the core's, and its parts."""

    kind: str
    what: str
    where: str = ""
    why: str = ""
    fix: str = ""


class Phase(_Message):
    """How far loading has come; see `Progress`."""

    phase: str
    done: int
    total: int


class Ready(_Message):
    """The engine is loaded.

    :ivar max_context: most tokens of a request, by the limits and by the pool.
    :ivar notes: lines for the log.
    """

    max_context: int
    max_concurrency: int
    vocab_size: int
    notes: list[str]


class Broken(_Message):
    """There will be no engine."""

    failure: Failure


class Accepted(_Message):
    """A request is in the queue."""

    number: int


class Refused(_Message):
    """A request will not be served."""

    number: int
    failure: Failure


class Text(_Message):
    """More text of a channel."""

    number: int
    channel: str
    text: str


class Progress(_Message):
    """So many tokens of a prompt have been read."""

    number: int
    num_tokens: int


class Begun(_Message):
    """A request runs."""

    number: int
    started: Started


class Scored(_Message):
    """Logprobs of tokens."""

    number: int
    logprobs: Logprobs


class Called(_Message):
    """A tool call."""

    number: int
    call: ToolCall


class Ended(_Message):
    """The last event of a request; ``finished`` is without its cause."""

    number: int
    finished: Finished
    failure: Failure | None = None


Occurrence = Text | Progress | Begun | Scored | Called | Ended


class Events(_Message):
    """What a step gave, of all requests."""

    occurrences: list[Occurrence]


class Report(_Message):
    """How the engine is doing."""

    status: EngineStatus


class Held(_Message):
    """Who holds how much of the memory for states, a line each."""

    lines: list[str]


ToEngine = Launch | Submit | Cancel | Ask | Stop
ToServer = Phase | Ready | Broken | Accepted | Refused | Events | Report | Held

_encoder = msgspec.msgpack.Encoder()
to_engine = msgspec.msgpack.Decoder(ToEngine)
to_server = msgspec.msgpack.Decoder(ToServer)


def pack(message: ToEngine | ToServer) -> bytes:
    """The bytes of a message, its length first; lone surrogates are U+FFFD."""
    try:
        body = _encoder.encode(message)
    except UnicodeEncodeError:
        body = _encoder.encode(_with_scalars(msgspec.to_builtins(message)))
    return _LENGTH.pack(len(body)) + body


def _with_scalars(value: Any) -> Any:
    if isinstance(value, str):
        return unicode_scalars(value)
    if isinstance(value, dict):
        return {_with_scalars(key): _with_scalars(each) for key, each in value.items()}
    return [*map(_with_scalars, value)] if isinstance(value, list | tuple) else value


class Unpacker:
    """Cuts a stream of bytes into the bodies of messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Bodies that are complete with these bytes."""
        self._buffer += data
        begin = 0
        while (first := begin + _LENGTH.size) <= len(self._buffer):
            end = first + _LENGTH.unpack_from(self._buffer, begin)[0]
            if end > len(self._buffer):
                break
            yield bytes(self._buffer[first:end])
            begin = end
        del self._buffer[:begin]


def submission(number: int, request: GenerationRequest) -> Submit:
    """A request for the engine, which has no use for the text of the prompt."""
    prompt = evolve(request.prompt, text="", scope=None)
    return Submit(number, evolve(request, prompt=prompt), repr(request.prompt.scope))


def submitted(message: Submit) -> GenerationRequest:
    """The request of a submission."""
    prompt = evolve(message.request.prompt, scope=ast.literal_eval(message.scope))
    return evolve(message.request, prompt=prompt)


def occurrence(number: int, event: Event) -> Occurrence:
    """An event of a request, for the way."""
    match event:
        case TextDelta():
            return Text(number, event.channel, event.text)
        case Reading():
            return Progress(number, event.num_tokens)
        case Started():
            return Begun(number, event)
        case Logprobs():
            return Scored(number, event)
        case ToolCall():
            return Called(number, event)
        case Finished():
            failure = None if event.cause is None else failure_of(event.cause)
            return Ended(number, evolve(event, cause=None), failure)


def event_of(message: Occurrence) -> Event:
    """The event that came."""
    match message:
        case Text():
            return TextDelta(message.channel, message.text)
        case Progress():
            return Reading(message.num_tokens)
        case Begun():
            return message.started
        case Scored():
            return message.logprobs
        case Called():
            return message.call
        case Ended():
            cause = None if message.failure is None else error_of(message.failure)
            return evolve(message.finished, cause=cause)


def failure_of(error: Exception) -> Failure:
    """An error for the way: one of the core's as it is, any other as a failure of the engine."""
    if not isinstance(error, NInferError):
        return Failure("NInferError", "the engine failed", "", f"{type(error).__name__}: {error}")
    names = (each.__name__ for each in type(error).__mro__)
    kind = next(name for name in names if hasattr(errors, name))
    return Failure(kind, error.what, error.where, error.why, error.fix)


def error_of(failure: Failure) -> NInferError:
    """The error that came."""
    kind: Any = getattr(errors, failure.kind)
    made: NInferError = kind(failure.what, where=failure.where, why=failure.why, fix=failure.fix)
    return made
