"""The answers to one prompt, in the engine."""

from __future__ import annotations

import asyncio
import time

from ninfer_core.engine.request import (
    Event,
    Finished,
    GenerationRequest,
    Reading,
    Started,
    TextDelta,
)
from ninfer_serve.answer import EventBuffer
from ninfer_serve.engine_link import EngineLink, Heard


class Choices:
    """Answers to one prompt. The first reads it, the others begin where it has come then.

    :ivar count: of them. :ivar ends: of those that have ended. :ivar first_at: when the first text
        came, by the monotonic clock.
    """

    def __init__(self, link: EngineLink, count: int) -> None:
        self._link, self.count, self.buffer = link, count, EventBuffer(count)
        self.ends: list[Finished] = []
        self.first_at: float | None = None
        self._numbers: list[int] = []
        self._waiting: list[GenerationRequest] = []
        self._others: asyncio.Task[None] | None = None
        self._cancelled = False

    async def begin(self, requests: list[GenerationRequest], shares_prefix: bool) -> None:
        """Submit one for each choice; raises as `EngineLink.submit`."""
        first, *others = requests
        if shares_prefix:
            self._waiting = others
        await self._submit(0, first)
        for choice, request in enumerate(() if shares_prefix else others, 1):
            await self._submit(choice, request)

    def cancel(self) -> None:
        """End what still runs."""
        self._cancelled, self._waiting = True, []
        for number in self._numbers:
            self._link.cancel(number)

    async def _submit(self, choice: int, request: GenerationRequest) -> None:
        prompt_length = len(request.prompt.token_ids)

        def sink(event: Event) -> None:
            self._take(choice, event)
            if self._waiting and _has_read(event, prompt_length):
                self._others = asyncio.ensure_future(self._submit_others())

        number = await self._link.submit(request, sink)
        self._numbers.append(number)
        if self._cancelled:
            self._link.cancel(number)

    async def _submit_others(self) -> None:
        waiting, self._waiting = self._waiting, []
        for choice, request in enumerate(waiting, 1):
            try:
                await self._submit(choice, request)
            except Exception as error:
                self._take(choice, Heard().failed(request, error))

    def _take(self, choice: int, event: Event) -> None:
        if isinstance(event, TextDelta):
            self.first_at = self.first_at or time.monotonic()
        elif isinstance(event, Finished):
            self.ends.append(event)
        self.buffer.put(choice, event)


def _has_read(event: Event, prompt_length: int) -> bool:
    """Whether nothing of a prompt is left to read."""
    if isinstance(event, Reading):
        return event.num_tokens >= prompt_length
    return not isinstance(event, Started)
