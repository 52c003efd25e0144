"""An id for every request, in its response's headers and in the log."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from typing import Any

from litestar import Request
from litestar.types import Message, Scope

_current: ContextVar[str] = ContextVar("request_id", default="")
_SANE = re.compile(rb"[A-Za-z0-9._-]{1,128}")


def request_id(scope: Any) -> str:
    """The id of a request: what its client calls it, if that is short and plain."""
    state = scope["state"]
    if "request_id" not in state:
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        sane = _SANE.fullmatch(given)
        state["request_id"] = given.decode() if sane else f"req_{secrets.token_hex(12)}"
    return str(state["request_id"])


async def send_request_id(message: Message, scope: Scope) -> None:
    """Put the id where each dialect's clients look for it; a hook before messages are sent."""
    if message["type"] == "http.response.start":
        value = request_id(scope).encode()
        message["headers"] = [*message["headers"], (b"x-request-id", value), (b"request-id", value)]


def current_request_id() -> str:
    """The id of the request that the running task handles; "" for none."""
    return _current.get()


async def remember_request_id(request: Request[Any, Any, Any]) -> None:
    """A hook before requests are handled."""
    _current.set(request_id(request.scope))
