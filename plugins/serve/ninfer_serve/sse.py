"""Server-sent events as bytes, framed by hand."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
from litestar.response import Stream

from ninfer_core.api import NInferError
from ninfer_core.text.unicode import unicode_scalars

_log = logging.getLogger(__name__)
_encoder = msgspec.json.Encoder()
COMMENT = b": keep-alive\n\n"
"""A heartbeat that is no event."""
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def dumps(value: Any) -> bytes:
    """JSON in UTF-8, also of numbers and texts that only Python knows."""
    try:
        return _encoder.encode(value)
    except (OverflowError, UnicodeEncodeError):
        return unicode_scalars(json.dumps(value, ensure_ascii=False, default=vars)).encode()


def frame(data: bytes, event: str = "") -> bytes:
    """One event; ``data`` must be without line breaks, as JSON of `dumps` is."""
    if event:
        return b"event: %b\ndata: %b\n\n" % (event.encode(), data)
    return b"data: %b\n\n" % data


def batched(frames: Iterable[bytes]) -> Iterator[bytes]:
    """All frames in one piece, if there are any; those before an error come before it."""
    found: list[bytes] = []
    try:
        found.extend(frames)
    finally:
        if found:
            yield b"".join(found)


async def with_heartbeat(
    frames: AsyncIterator[bytes], beat: bytes | Callable[[], bytes], every_s: float
) -> AsyncGenerator[bytes, None]:
    """``frames``, and ``beat`` whenever nothing was sent for ``every_s`` seconds. Closing it closes
    ``frames``."""
    relay = _Relay(frames, every_s)
    try:
        while (piece := await relay.take()) is not None:
            yield piece or (beat() if callable(beat) else beat)
    finally:
        await relay.close()
        if isinstance(frames, AsyncGenerator):
            await frames.aclose()


class _Relay:
    """Pieces on their way from a task that makes them; one is made ahead. One task and one timer
    for a whole stream: neither is made anew for every token.

    :param every_s: after so long without a piece there is an empty one.
    """

    def __init__(self, pieces: AsyncIterator[bytes], every_s: float) -> None:
        self._loop, self._every_s = asyncio.get_running_loop(), every_s
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._piece, self._silent_since = b"", math.inf
        self._maker = asyncio.ensure_future(self._make(pieces))
        self._maker.add_done_callback(lambda _: self._news.set())
        self._timer = self._loop.call_later(every_s, self._tick)

    async def take(self) -> bytes | None:
        """The next piece, or None behind the last; raises what making them fails with."""
        self._silent_since = self._loop.time()
        await self._news.wait()
        self._news.clear()
        self._silent_since = math.inf
        piece, self._piece = self._piece, b""
        self._room.set()
        if not piece and self._maker.done():
            self._maker.result()
            return None
        return piece

    async def close(self) -> None:
        """Nothing is made any more."""
        self._timer.cancel()
        self._maker.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self._maker

    async def _make(self, pieces: AsyncIterator[bytes]) -> None:
        async for each in pieces:
            if each:
                self._piece = each
                self._room.clear()
                self._news.set()
                await self._room.wait()

    def _tick(self) -> None:
        """Nobody waits for the reader of a piece: that is no silence."""
        due = self._silent_since + self._every_s
        if (now := self._loop.time()) >= due:
            self._news.set()
        wait_s = due - now if now < due < math.inf else self._every_s
        self._timer = self._loop.call_later(wait_s, self._tick)


async def with_error(
    frames: AsyncGenerator[bytes, None], frame_of: Callable[[Exception], bytes]
) -> AsyncGenerator[bytes, None]:
    """``frames``, and ``frame_of(error)`` as the last one if they fail: the status is sent already.
    Closing it closes ``frames``. What the engine or the request is at fault for, observers are
    told."""
    try:
        async for each in frames:
            yield each
    except Exception as error:
        if not isinstance(error, NInferError):
            _log.exception("a stream failed")
        yield frame_of(error)
    finally:
        await frames.aclose()


def event_stream(frames: AsyncGenerator[bytes, None]) -> Stream:
    """The response of a stream of frames; the client's leaving closes ``frames``."""
    return Stream(frames, media_type="text/event-stream", headers=HEADERS,
                  status_code=200)

