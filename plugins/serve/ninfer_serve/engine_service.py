"""The service on an engine that is elsewhere: prompts, limits, and who is told of what."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from attrs import field, frozen

from ninfer_core.api import (
    CapacityError,
    Frontend,
    PreparedPrompt,
    QueueTimeoutError,
    RequestError,
)
from ninfer_serve.answer import EngineAnswer
from ninfer_serve.choices import Choices
from ninfer_serve.engine_link import EngineLink
from ninfer_serve.generation import RequestDefaults
from ninfer_serve.outcome import Observer, Outcome
from ninfer_serve.prompts import prepare_prompt
from ninfer_serve.request_id import current_request_id
from ninfer_serve.serve_request import ServeRequest
from ninfer_serve.service import EngineGone, ModelFacts, StoreLimits

PREPARE_THREADS = 2


@frozen
class ServiceOptions:
    """How the service goes about it.

    :ivar defaults: for requests. :ivar max_pending: answers that may wait, run or be read.
    :ivar prepare_timeout_s: longest preparation of a prompt.
    :ivar shares_prefix: whether a choice can go on from what another has read.
    """

    defaults: RequestDefaults = field(factory=RequestDefaults)
    max_pending: int = 64
    prepare_timeout_s: float = 30.0
    heartbeat_s: float = 5.0
    shares_prefix: bool = True
    store_limits: StoreLimits = field(factory=StoreLimits)


class EngineService:
    """A `Service`. Belongs to the event loop that it is used on.

    :ivar draining: whether new requests are refused, because the server stops.
    """

    def __init__(
        self, frontend: Frontend, facts: ModelFacts, link: EngineLink, options: ServiceOptions,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.frontend, self.facts, self._link, self._options = frontend, facts, link, options
        self._threads = ThreadPoolExecutor(PREPARE_THREADS, "prepare")
        self._observers, self._pending, self.draining = list(observers), 0, False

    @property
    def heartbeat_s(self) -> float:
        return self._options.heartbeat_s

    @property
    def store_limits(self) -> StoreLimits:
        return self._options.store_limits

    @property
    def pending(self) -> int:
        """Answers that wait, run, or are still being read."""
        return self._pending

    def status(self) -> dict[str, Any]:
        found = self._link.status() | {"pending": self._pending}
        return found | {"state": "stopping"} if self.draining else found

    def observe(self, observer: Observer) -> None:
        self._observers.append(observer)

    async def prepare(self, request: ServeRequest) -> PreparedPrompt:
        loop, limit_s = asyncio.get_running_loop(), self._options.prepare_timeout_s
        options = self._options.defaults.prompt_options(request.options)
        work = loop.run_in_executor(
            self._threads, prepare_prompt, self.frontend, request, options
        )
        try:
            async with asyncio.timeout(limit_s):
                return await work
        except TimeoutError as error:
            why = f"more than {limit_s:g} s"
            raise QueueTimeoutError("preparing the prompt took too long", why=why) from error

    async def start(self, request: ServeRequest) -> EngineAnswer:
        request_id = current_request_id()
        try:
            return await self._start(request, request_id)
        except Exception as error:
            for each in self._observers:
                each.refused(request_id, error)
            raise

    def close(self) -> None:
        """Drop the threads; what they prepare is for nobody."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _start(self, request: ServeRequest, request_id: str) -> EngineAnswer:
        arrived = time.monotonic()
        self._reserve(request.num_choices)
        choices = Choices(self._link, request.num_choices)
        try:
            prompt = await self.prepare(request)
            prepare_s = time.monotonic() - arrived
            defaults, most = self._options.defaults, self.facts.max_context
            generations = defaults.generations(request, prompt, self.frontend, most)
            shares_prefix = self._options.shares_prefix and request.use_cache
            await choices.begin(generations, shares_prefix)
        except BaseException:
            self._release(choices)
            raise
        answer_id, loop = secrets.token_hex(12), asyncio.get_running_loop()

        def end() -> None:
            self._release(choices)
            first_s = None if choices.first_at is None else choices.first_at - arrived
            outcome = Outcome(
                request_id, answer_id, choices.count, tuple(choices.ends), prepare_s, first_s,
                time.monotonic() - arrived, request.record,
            )
            for each in self._observers:
                each.done(outcome)

        def release() -> None:
            with suppress(RuntimeError):  # the loop is closed, and all is over
                loop.call_soon_threadsafe(end)

        return EngineAnswer(answer_id, prompt, generations[0].sampling, choices.buffer, release)

    def _reserve(self, count: int) -> None:
        if self.draining:
            raise EngineGone("the server is stopping")
        most = self._options.max_pending
        if count > self.facts.max_concurrency:
            why = f"{count} are asked for, and {self.facts.max_concurrency} run at once"
            raise RequestError("too many choices", where="n", why=why)
        if self._pending + count > most:
            why = f"{self._pending} of {most} are running or queued"
            raise CapacityError("too many requests", why=why, fix="try again later")
        self._pending += count

    def _release(self, choices: Choices) -> None:
        choices.cancel()
        self._pending -= choices.count
