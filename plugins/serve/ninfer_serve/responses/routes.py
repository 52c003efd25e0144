"""The routes of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from litestar import Request, Response, delete, get, post
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.types import ControllerRouterHandler

from ninfer_core.api import RequestError
from ninfer_serve.body import json_response, read_body
from ninfer_serve.disconnect import until_gone
from ninfer_serve.errors import HttpError
from ninfer_serve.openapi import ASKING, gives, takes
from ninfer_serve.responses import schemas
from ninfer_serve.responses.responses import Responses
from ninfer_serve.responses.store import ResponseStore
from ninfer_serve.service import Service
from ninfer_serve.sse import event_stream

PATH = "/v1/responses"


def routes(service: Service) -> Sequence[ControllerRouterHandler]:
    """Responses, made and kept."""
    responses = Responses(service, ResponseStore(service.store_limits))

    @post(
        PATH, status_code=200, summary="Make a response",
        operation_class=takes(schemas.ResponseRequest, streams=True),
        responses=gives(schemas.ResponseObject),
    )
    async def create(request: Request[Any, Any, Any]) -> Response[Any]:
        wanted = await read_body(request, responses.read)
        if not wanted.stream:
            return json_response(await until_gone(request, responses.whole(wanted)))
        return event_stream(await until_gone(request, responses.stream(wanted)))

    @post(
        f"{PATH}/input_tokens", status_code=200, summary="Count the tokens of an input",
        operation_class=takes(schemas.Input), responses=gives(schemas.InputTokens),
    )
    async def input_tokens(request: Request[Any, Any, Any]) -> Response[Any]:
        wanted = await read_body(request, responses.read)
        prompt = await until_gone(request, service.prepare(responses.serve_request(wanted)))
        found = {"object": "response.input_tokens", "input_tokens": len(prompt.token_ids)}
        return json_response(found)

    @get(f"{PATH}/{{response_id:str}}", summary="A stored response", sync_to_thread=False,
         responses=gives(schemas.ResponseObject, ASKING))
    def retrieve(response_id: FromPath[str]) -> Response[Any]:
        return json_response(responses.stored(response_id).resource)

    @delete(f"{PATH}/{{response_id:str}}", status_code=200, summary="Forget a stored response",
            sync_to_thread=False, responses=gives(schemas.Deleted, ASKING))
    def forget(response_id: FromPath[str]) -> Response[Any]:
        responses.forget(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @get(f"{PATH}/{{response_id:str}}/input_items", summary="What a response was made from",
         sync_to_thread=False, responses=gives(schemas.ItemList, (400, *ASKING)))
    def input_items(
        response_id: FromPath[str], after: FromQuery[str | None] = None,
        limit: Annotated[int, QueryParameter(ge=1, le=100)] = 20,
        order: FromQuery[Literal["asc", "desc"]] = "desc",
    ) -> Response[Any]:
        items = responses.stored(response_id).input_items()
        return json_response(_page(items if order == "asc" else items[::-1], after, limit))

    @post([f"{PATH}/compact", f"{PATH}/{{response_id:str}}/cancel"], status_code=200,
          include_in_schema=False, sync_to_thread=False)
    def refused(request: Request[Any, Any, Any]) -> Response[Any]:
        if request.scope["path"].endswith("/compact"):
            raise HttpError(400, "compaction_not_supported", "the server compacts no context",
                            fix="ask for a summary in a response")
        raise HttpError(400, "cancel_not_supported", "only responses in the background are "
                        "cancelled so, and there are none", fix="close the connection")

    return [create, input_tokens, retrieve, forget, input_items, refused]


def _page(items: list[dict[str, Any]], after: str | None, limit: int) -> dict[str, Any]:
    """A part of a list, behind the item ``after``."""
    names = [each["id"] for each in items]
    if after is not None and after not in names:
        raise RequestError("there is no such item", where="after", why=f"{after!r} is not in it")
    begin = 0 if after is None else names.index(after) + 1
    page = items[begin : begin + limit]
    return {
        "object": "list", "data": page, "has_more": begin + limit < len(items),
        "first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None,
    }
