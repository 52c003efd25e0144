"""The page at ``/``: a chat, and what the engine does meanwhile."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

from litestar import Response, get
from litestar.enums import MediaType
from litestar.openapi.datastructures import ResponseSpec
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from ninfer_serve.auth import OPEN
from ninfer_serve.body import json_response
from ninfer_serve.openapi import gives
from ninfer_serve.service import Service

_PAGE = ResponseSpec(str, generate_examples=False, description="The page",
                     media_type=MediaType.HTML)


class ServedModel(Struct):
    name: str
    max_context: int
    max_concurrency: int


class Status(Struct):
    """What the server and its engine are and do at this moment; the engine was last heard
    ``heard_s`` seconds ago"""

    state: str
    pending: int
    restarts: int
    heard_s: float
    engine: dict[str, Any] | None
    model: ServedModel
    held: list[str]


def routes(service: Service) -> Sequence[ControllerRouterHandler]:
    """The page and what it asks for. The page itself has no secrets, and so needs no key."""
    page = (resources.files(__package__) / "page.html").read_text(encoding="utf-8")
    headers = {
        "Content-Security-Policy": policy_of(page), "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache",
    }

    @get("/", opt={OPEN: True}, summary="A page to try the model", sync_to_thread=False,
         responses={200: _PAGE})
    def index() -> Response[str]:
        return Response(page, media_type=MediaType.HTML, headers=headers)

    @get("/v1/status", summary="What the engine does", sync_to_thread=False,
         responses=gives(Status, (401, 500)))
    def status() -> Response[bytes]:
        facts = service.facts
        model = ServedModel(facts.name, facts.max_context, facts.max_concurrency)
        return json_response(service.status() | {"model": model})

    return [index, status]


def policy_of(page: str) -> str:
    """A content security policy under which a page runs what it has itself, and nothing else."""
    script, style = (_hash_of(page, tag) for tag in ("script", "style"))
    return "; ".join((
        "default-src 'none'", f"script-src {script}", f"style-src {style}", "img-src data:",
        "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
        "require-trusted-types-for 'script'", "trusted-types 'none'",
    ))


def _hash_of(page: str, tag: str) -> str:
    [content] = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
