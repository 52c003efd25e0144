"""The HTTP application: the dialects that plugins speak, and what they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen
from litestar import Litestar
from litestar.config.cors import CORSConfig
from litestar.middleware import DefineMiddleware
from litestar.openapi import OpenAPIConfig
from litestar.types import ControllerRouterHandler

from ninfer_core.api import AmbiguityError, ProtocolSpec
from ninfer_core.config.model import blame
from ninfer_core.plugin_host import PluginReport, Registered
from ninfer_serve.auth import KeyCheck
from ninfer_serve.errors import error_response
from ninfer_serve.hosts import HostCheck, name_of
from ninfer_serve.own_routes import own_routes
from ninfer_serve.request_id import remember_request_id, send_request_id
from ninfer_serve.service import Service

API_DOCUMENT = "/schema"


@frozen
class AppOptions:
    """What guards the application.

    :ivar api_keys: of which a request needs one; none for everybody.
    :ivar cors_origins: from which pages may call. :ivar max_body_bytes: of a request.
    :ivar is_private: whether only names of this machine are answered, and those of
        ``cors_origins``.
    """

    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 384 << 20
    is_private: bool = False

    @property
    def middleware(self) -> list[DefineMiddleware]:
        """What requests have to pass."""
        made = [DefineMiddleware(KeyCheck, keys=self.api_keys)] if self.api_keys else []
        if self.is_private and "*" not in self.cors_origins:
            made.append(DefineMiddleware(HostCheck, names={*map(name_of, self.cors_origins)}))
        return made


def create_app(service: Service, report: PluginReport, options: AppOptions) -> Litestar:
    """All protocols of the registry over one service.

    :raises AmbiguityError: if two protocols claim one path.
    """
    routes = [*own_routes(service, report), *_routes(service, report.registry.protocols)]
    origins = list(options.cors_origins)
    return Litestar(
        routes, exception_handlers={Exception: error_response},
        before_request=remember_request_id, before_send=[send_request_id],
        middleware=options.middleware,
        cors_config=CORSConfig(origins) if origins else None,
        request_max_body_size=options.max_body_bytes,
        openapi_config=OpenAPIConfig(title="NInfer", version="1", path=API_DOCUMENT),
        logging_config=None,
    )


def _routes(
    service: Service, protocols: Mapping[str, Registered[ProtocolSpec]]
) -> Iterator[ControllerRouterHandler]:
    owners: dict[tuple[str, str], Registered[ProtocolSpec]] = {}
    for protocol in protocols.values():
        with blame(protocol.provenance):
            handlers: Sequence[ControllerRouterHandler] = protocol.spec.routes.load()(service)
            claims = _claims(handlers)
        for claim in claims & owners.keys():
            raise _both(claim, owners[claim], protocol)
        owners |= dict.fromkeys(claims, protocol)
        yield from handlers


def _claims(handlers: Sequence[ControllerRouterHandler]) -> set[tuple[str, str]]:
    """Method and path of everything that the handlers answer."""
    alone = Litestar(list(handlers), openapi_config=None, logging_config=None)
    return {
        (method, route.path)
        for route in alone.routes for method in getattr(route, "methods", ()) if method != "OPTIONS"
    }


def _both(claim: tuple[str, str], *owners: Registered[Any]) -> AmbiguityError:
    return AmbiguityError(
        f"two protocols answer {' '.join(claim)}",
        where="; ".join(str(each.provenance) for each in owners),
        fix=" or ".join(f"--no-plugin {each.provenance.module}" for each in owners),
    )
