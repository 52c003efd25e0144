"""Names by which browsers may know a server of this machine alone.

A page of any site can point a name of its own at 127.0.0.1 and then call the server as if it had
come from there (DNS rebinding). Its requests carry the name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from litestar.types import ASGIApp, Receive, Scope, Send

from ninfer_serve.errors import HttpError

_PRIVATE = ("localhost", "local", "internal")
"""Domains that nobody can have in the public name system."""


class HostCheck:
    """Middleware: requests to names that a stranger may own are refused.

    :param names: that are allowed besides.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        if not (is_private(name := name_of(f"//{given}")) or name in self._names):
            raise HttpError(
                403, "host_not_allowed", "the server does not answer by this name", where=name,
                fix="call 127.0.0.1, set an API key (--api-key), or allow the name's pages "
                    f"(--cors-origin https://{name})",
            )
        await self._app(scope, receive, send)


def name_of(url: str) -> str:
    """The host of a URL; nobody's name if it cannot be read."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return "?.?"


def is_private(name: str) -> bool:
    """Whether no name system of the world leads there: addresses, names of one word, and some
    domains."""
    try:
        ipaddress.ip_address(name)
        return True
    except ValueError:
        return "." not in name or name.rstrip(".").rpartition(".")[2] in _PRIVATE
