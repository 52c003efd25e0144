"""Bodies of requests, of which JSON of any kind becomes an object or a clear refusal, and of
answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from litestar import Request, Response
from litestar.enums import MediaType

from ninfer_core.api import RequestError
from ninfer_core.text.strict_json import check_depth, parse_json
from ninfer_core.text.unicode import unicode_scalars
from ninfer_serve.errors import HttpError
from ninfer_serve.members import Members
from ninfer_serve.sse import dumps

T = TypeVar("T")

LARGE_BYTES = 256 << 10
"""A body that is larger is read beside the event loop."""
MAX_VALUES = 1 << 21
"""Commas and opening brackets of a body, also those in its texts: the interpreter does nothing else
while it makes values of them, 0.1 to 0.5 us each, wherever that is."""
_PIECE = 1 << 20


async def read_body(request: Request[Any, Any, Any], read: Callable[[Members], T]) -> T:
    """What ``read`` makes of the JSON object of a request; for a large body it runs in another
    thread.

    :raises HttpError: for a body that is encoded; else as `read_object` and ``read`` do.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise HttpError(415, "unsupported_content_encoding", "the body is encoded",
                        where="content-encoding", why=f"as {encoding!r}", fix="send it as it is")
    body = await request.body()
    if len(body) <= LARGE_BYTES:
        return read(Members.of(read_object(body)))
    return await asyncio.to_thread(lambda: read(Members.of(read_object(body))))


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; lone surrogates, which UTF-8 cannot carry on, are U+FFFD.

    :raises RequestError: for anything else: other encodings, no JSON, NaN, no object; and for more
        values than are good for the others.
    """
    if _is_too_much(body):
        why = f"more than {MAX_VALUES:,} commas and brackets"
        raise RequestError("the body has too many values", where="body", why=why)
    try:
        value = _value(body)
    except UnicodeDecodeError as error:
        raise RequestError("the body is not UTF-8", where="body", why=str(error)) from error
    except ValueError as error:
        raise RequestError("the body is no JSON", where="body", why=str(error)) from error
    if not isinstance(value, dict):
        why = f"it is of type {type(value).__name__}"
        raise RequestError("the body is no JSON object", where="body", why=why)
    return value


def json_response(value: Any) -> Response[bytes]:
    """The response of a JSON value."""
    return Response(dumps(value), media_type=MediaType.JSON)


def nothing(**told: Any) -> Response[None]:
    """To a question for the headers of JSON alone: no body, not even a null."""
    made: Any = Response(b"", media_type=MediaType.JSON, **told)
    return made


def _is_too_much(body: bytes) -> bool:
    """Counted piece by piece, so that other threads get their turn."""
    if len(body) <= MAX_VALUES:
        return False
    pieces = range(0, len(body), _PIECE)
    return sum(body.count(mark, at, at + _PIECE) for at in pieces for mark in b",[{") > MAX_VALUES


def _value(body: bytes) -> Any:
    """By the fast reader; what it does not take has lone surrogates, or the exact reader says why
    it is no JSON."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return _with_scalars(body.decode("utf-8-sig"))
    check_depth(value)
    return value


def _with_scalars(text: str) -> Any:
    value = parse_json(text)
    if "\\ud" not in text and "\\uD" not in text:
        return value
    return json.loads(unicode_scalars(json.dumps(value, ensure_ascii=False)))
