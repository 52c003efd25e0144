"""Routes of no dialect: health, and the plugins of this server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from litestar import Response, get, head
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from ninfer_core.plugin_host import PluginReport
from ninfer_serve.auth import OPEN
from ninfer_serve.body import nothing
from ninfer_serve.openapi import gives
from ninfer_serve.service import Service


class Health(Struct):
    """Requests go on"""

    status: Literal["ok", "starting", "restarting", "stalled", "stopping"]


class Plugin(Struct):
    id: str
    object: Literal["plugin"]
    distribution: str
    version: str
    state: str
    reason: str
    provides: dict[str, list[str]]


class PluginList(Struct):
    """The plugins that were found"""

    object: Literal["list"]
    data: list[Plugin]


def own_routes(service: Service, report: PluginReport) -> Sequence[ControllerRouterHandler]:
    """The handlers."""

    @get("/health", opt={OPEN: True}, summary="Whether requests go on", sync_to_thread=False,
         responses=gives(Health, (503,), Health))
    def health() -> Response[dict[str, Any]]:
        state = service.status()["state"]
        return Response({"status": state}, **_told(state))

    @head("/health", opt={OPEN: True}, summary="The status of GET /health alone",
          sync_to_thread=False, responses=gives(Health, (503,), Health))
    def health_alone() -> Response[None]:
        return nothing(**_told(service.status()["state"]))

    @get("/v1/plugins", summary="Plugins of this server", sync_to_thread=False,
         responses=gives(PluginList, (401, 500)))
    def plugins() -> dict[str, Any]:
        return {"object": "list", "data": [
            {
                "id": record.name, "object": "plugin", "distribution": record.distribution,
                "version": record.version, "state": record.state, "reason": record.reason,
                "provides": {kind: [spec.name for spec in specs]
                             for kind, specs in record.specs.items() if specs},
            }
            for record in report.records
        ]}

    return [health, health_alone, plugins]


def _told(state: str) -> dict[str, Any]:
    """Status and headers of a response about health."""
    return {"status_code": 200} if state == "ok" else {
        "status_code": 503, "headers": {"Retry-After": "2"}}
