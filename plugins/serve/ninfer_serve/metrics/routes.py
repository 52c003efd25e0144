"""Metrics for Prometheus and for what routes requests to servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from litestar import Response, get
from litestar.enums import MediaType
from litestar.openapi.datastructures import ResponseSpec
from litestar.types import ControllerRouterHandler

from ninfer_serve.metrics.engine_figures import engine_families
from ninfer_serve.metrics.exposition import CONTENT_TYPE, Family, Sample, exposition, labels_of
from ninfer_serve.metrics.requests import RequestMetrics
from ninfer_serve.metrics.vllm_names import vllm_families
from ninfer_serve.openapi import Error, gives
from ninfer_serve.service import Service

_TEXT = ResponseSpec(str, generate_examples=False, description="The metrics",
                     media_type=MediaType.TEXT)


def routes(service: Service) -> Sequence[ControllerRouterHandler]:
    """The handler. What happened before it was made is not counted."""
    requests = RequestMetrics()
    service.observe(requests)

    @get("/metrics", summary="Metrics in Prometheus' text format", sync_to_thread=False,
         responses={**gives(Error, (401, 500)), 200: _TEXT})
    def metrics() -> Response[bytes]:
        families = [*requests.families(), *server_families(service)]
        aliases = vllm_families(families, service.facts.name)
        return Response(exposition([*families, *aliases]), media_type=CONTENT_TYPE)

    return [metrics]


def server_families(service: Service) -> Iterator[Family]:
    """What the server and its engine are and do at this moment."""
    status, facts = service.status(), service.facts
    labels = labels_of({"model": facts.name, "max_context": facts.max_context})
    yield Family("ninfer_model_info", "The model that is served", "gauge", [Sample(1, labels)])
    for name, about, value in (
        ("engine_ready", "Whether the engine works", int(status["state"] == "ok")),
        ("requests_pending", "Answers that wait, run or are being read", status["pending"]),
        ("device_state_capacity_slots", "State slots", facts.max_concurrency),
    ):
        yield Family(f"ninfer_{name}", about, "gauge", [Sample(value)])
    yield Family("ninfer_engine_restarts_total", "Engines that were lost", "counter",
                 [Sample(status["restarts"])])
    if engine := status["engine"]:
        yield from engine_families(engine)
