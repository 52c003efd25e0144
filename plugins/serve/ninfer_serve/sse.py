"""Server-sent events as bytes, framed by hand."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
from litestar.response import Stream

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
    following: asyncio.Task[bytes] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(_next(frames))
            await asyncio.wait({following}, timeout=every_s)
            if not following.done():
                yield beat() if callable(beat) else beat
                continue
            done, following = following, None
            try:
                ready = done.result()
            except StopAsyncIteration:
                return
            yield ready
    finally:
        if following is not None:
            following.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration):
                await following
        if isinstance(frames, AsyncGenerator):
            await frames.aclose()


async def with_error(
    frames: AsyncGenerator[bytes, None], frame_of: Callable[[Exception], bytes]
) -> AsyncGenerator[bytes, None]:
    """``frames``, and ``frame_of(error)`` as the last one if they fail: the status is sent already.
    Closing it closes ``frames``."""
    try:
        async for each in frames:
            yield each
    except Exception as error:
        _log.warning("an answer ends with an error event: %s", error)
        yield frame_of(error)
    finally:
        await frames.aclose()


def event_stream(frames: AsyncGenerator[bytes, None]) -> Stream:
    """The response of a stream of frames; the client's leaving closes ``frames``."""
    return Stream(frames, media_type="text/event-stream", headers=HEADERS,
                  status_code=200)


async def _next(frames: AsyncIterator[bytes]) -> bytes:
    return await anext(frames)
