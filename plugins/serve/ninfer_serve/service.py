"""What the dialects of the server stand on: the model's text side, and an engine elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol, Self

from attrs import frozen

from ninfer_core.api import Frontend, NInferError, PreparedPrompt, SamplingParams
from ninfer_core.engine.request import Event
from ninfer_serve.outcome import Observer
from ninfer_serve.serve_request import ServeRequest


class EngineGone(NInferError):
    """The engine ended or is starting again; the request may be sent again later."""


@frozen
class ModelFacts:
    """What clients may know of the model that is served.

    :ivar name: that requests give. :ivar created: Unix time of its artifact, in seconds.
    :ivar max_context: most tokens of a request, prompt and output.
    :ivar max_concurrency: requests that run at once.
    """

    name: str
    created: int
    max_context: int
    max_concurrency: int
    vocab_size: int


@frozen
class StoreLimits:
    """What is kept at most for clients to go on from; 0 keeps nothing."""

    max_records: int = 1024
    max_bytes: int = 256 << 20


@frozen
class ChoiceEvent:
    """An event of the engine for one of the answers."""

    choice: int
    event: Event


class Answer(Protocol):
    """The answers to one request while they come.

    Iteration gives all events that are there in one list, and ends when every choice has had its
    `Finished`. Leaving the context cancels what still runs. What fails while it runs is the
    ``cause`` of a `Finished`.
    """

    @property
    def prompt(self) -> PreparedPrompt: ...

    @property
    def sampling(self) -> SamplingParams:
        """How tokens of the first choice are drawn, defaults included."""
        ...

    @property
    def id(self) -> str:
        """Unique, of letters and digits; for ids that dialects make and for the request log."""
        ...

    def __aiter__(self) -> AsyncIterator[Sequence[ChoiceEvent]]: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...


class Service(Protocol):
    """What a dialect's ``routes(service)`` gets."""

    @property
    def frontend(self) -> Frontend:
        """In this process, for templates and tokens; prompts are prepared by `start`."""
        ...

    @property
    def facts(self) -> ModelFacts: ...

    @property
    def heartbeat_s(self) -> float:
        """After so many seconds of silence a stream sends a sign of life."""
        ...

    @property
    def store_limits(self) -> StoreLimits: ...

    async def prepare(self, request: ServeRequest) -> PreparedPrompt:
        """The prompt of a request, as `start` makes it; for counting tokens.

        :raises RequestError: for what the model's template refuses.
        """
        ...

    async def start(self, request: ServeRequest) -> Answer:
        """Prepare and submit a request.

        :raises RequestError: if it can never be served.
        :raises CapacityError: if too many are waiting.
        :raises EngineGone: if there is no engine.
        """
        ...

    def status(self) -> dict[str, Any]:
        """What there is to say of the server: ``state`` (``ok``, or why nothing goes on),
        ``pending`` answers, ``restarts`` of the engine, and ``engine``: the members of the last
        `EngineStatus`, which came ``heard_s`` seconds ago, or None if there is no engine;
        ``held``: lines that say who held how much memory when a request last ended."""
        ...

    def observe(self, observer: Observer) -> None:
        """Let somebody hear of every request from now on."""
        ...
