"""The answers to one request while they come from the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import groupby
from typing import Self

from ninfer_core.api import PreparedPrompt, SamplingParams
from ninfer_core.engine.request import Event, Finished, TextDelta
from ninfer_serve.service import ChoiceEvent

BACKLOG = 1000
"""Events of a slow reader that are kept as they came; more are joined where they can be."""


class EventBuffer:
    """Events of all choices between the engine and one reader. What a slow reader has not taken is
    joined, so that it takes no more memory than its text.

    :param num_choices: that are to finish.
    """

    def __init__(self, num_choices: int) -> None:
        self._events: list[ChoiceEvent] = []
        self._ready, self._most, self._open = asyncio.Event(), BACKLOG, num_choices

    def put(self, choice: int, event: Event) -> None:
        self._events.append(ChoiceEvent(choice, event))
        self._open -= isinstance(event, Finished)
        self._ready.set()
        if len(self._events) >= self._most:
            self._events = joined(self._events)
            self._most = 2 * len(self._events) + BACKLOG

    async def batches(self) -> AsyncIterator[Sequence[ChoiceEvent]]:
        """All events that are there, again and again, until every choice has finished."""
        while self._open or self._events:
            await self._ready.wait()
            self._ready.clear()
            events, self._events, self._most = self._events, [], BACKLOG
            yield events


def joined(events: Sequence[ChoiceEvent]) -> list[ChoiceEvent]:
    """The same events, with text of one choice and channel that stands side by side in one."""
    if len(events) == 1:
        return [*events]
    result: list[ChoiceEvent] = []
    for (choice, channel), run in groupby(events, _key):
        each = list(run)
        if channel is not None:
            text = "".join(e.event.text for e in each if isinstance(e.event, TextDelta))
            each = [ChoiceEvent(choice, TextDelta(channel, text))]
        result += each
    return result


def _key(each: ChoiceEvent) -> tuple[int, str | None]:
    event = each.event
    return each.choice, event.channel if isinstance(event, TextDelta) else None


class EngineAnswer:
    """An `Answer`. One that is dropped without having been entered is cancelled, too.

    :param release: called once, when nobody reads it any more; from any thread.
    """

    def __init__(
        self, answer_id: str, prompt: PreparedPrompt, sampling: SamplingParams,
        buffer: EventBuffer, release: Callable[[], None],
    ) -> None:
        self._id, self._prompt, self._sampling = answer_id, prompt, sampling
        self._buffer, self._release, self._released = buffer, release, False

    @property
    def id(self) -> str:
        return self._id

    @property
    def prompt(self) -> PreparedPrompt:
        return self._prompt

    @property
    def sampling(self) -> SamplingParams:
        return self._sampling

    def __aiter__(self) -> AsyncIterator[Sequence[ChoiceEvent]]:
        return self._buffer.batches()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._let_go()

    def __del__(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if not self._released:
            self._released = True
            self._release()
