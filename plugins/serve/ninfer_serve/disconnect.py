"""Clients that leave before their answer is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar

from litestar import Request

from ninfer_core.api import NInferError

T = TypeVar("T")


class ClientGone(NInferError):
    """Nobody is there any more to take the answer."""


async def until_gone(request: Request[Any, Any, Any], awaitable: Awaitable[T]) -> T:
    """The result, unless the client leaves first: then ``awaitable`` is cancelled. The body must
    have been read.

    :raises ClientGone: if the client left.
    """
    task = asyncio.ensure_future(awaitable)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone("the client left before its answer was there")
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await each


async def _disconnected(request: Request[Any, Any, Any]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
