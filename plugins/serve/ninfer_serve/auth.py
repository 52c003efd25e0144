"""API keys, compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from litestar.types import ASGIApp, Receive, Scope, Send

from ninfer_serve.errors import HttpError

OPEN = "open_to_all"
"""Option of a route handler that asks for no key."""


class KeyCheck:
    """Middleware: a request needs one of the keys, as ``Authorization: Bearer KEY`` or
    ``x-api-key``."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app, self._keys = app, [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_preflight = scope.get("method") == "OPTIONS"
        if not (is_preflight or scope["route_handler"].opt.get(OPEN)):
            self._check(dict(scope["headers"]))
        await self._app(scope, receive, send)

    def _check(self, headers: dict[bytes, bytes]) -> None:
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        bearer = token.strip() if scheme.lower() == b"bearer" else b""
        given = (bearer, headers.get(b"x-api-key", b""))
        if not any([hmac.compare_digest(each, key) for each in given for key in self._keys]):
            raise HttpError(
                401, "invalid_api_key", "the API key is wrong or missing",
                fix="send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            )
