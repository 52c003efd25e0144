"""What the OpenAPI document says of handlers that read their bodies themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody, Schema

_MEANINGS = {
    400: "The request is malformed, or the model cannot do what it asks for",
    401: "The API key is missing or wrong",
    404: "There is no such thing",
    413: "The body is too large",
    415: "The body is compressed",
    429: "Too many requests are running or waiting",
    500: "The server is at fault",
    503: "There is no engine at the moment, or the request waited too long",
    504: "The answer was not complete at its deadline",
    529: "Too many requests are running or waiting",
}
GENERATING = (400, 401, 404, 413, 415, 429, 500, 503, 504)
"""What a request for an answer may be told."""
ASKING = (401, 404, 500)
"""What a request without a body may be told."""


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    code: str
    param: str | None


class Error(msgspec.Struct):
    """What OpenAI's dialects say of a failure."""

    error: ErrorDetail


_EVENT = {
    "type": "object", "required": ["data"],
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
}
"""Each event of a stream, which is what the schema of one describes before OpenAPI 3.2."""


def takes(body: type[msgspec.Struct], *, streams: bool = False) -> type[Operation]:
    """The ``operation_class`` of a handler that takes such a body.

    :param streams: whether the answer may be a stream of events.
    """
    schema = cast("Schema", _inlined(msgspec.json.schema(body)))

    @dataclass
    class Taking(Operation):
        def __post_init__(self) -> None:
            content = {"application/json": OpenAPIMediaType(schema=schema)}
            self.request_body = RequestBody(content=content, required=True)
            if streams:
                shown: Any = (self.responses or {})["200"]
                events = OpenAPIMediaType(schema=cast("Schema", _EVENT))
                shown.content = {**(shown.content or {}), "text/event-stream": events}

    return Taking


def gives(
    answer: type[msgspec.Struct], statuses: tuple[int, ...] = GENERATING,
    error: type[msgspec.Struct] = Error,
) -> Mapping[int, ResponseSpec]:
    """The ``responses`` of a handler: its answer, and what it says of failures."""
    about = (answer.__doc__ or "").partition("\n")[0]
    found = {status: (error, _MEANINGS[status]) for status in statuses}
    return {
        status: ResponseSpec(kind, generate_examples=False, description=description)
        for status, (kind, description) in {200: (answer, about), **found}.items()
    }


def _inlined(schema: dict[str, Any]) -> Any:
    """A schema with its definitions in place of references to them."""
    definitions = schema.get("$defs", {})

    def resolve(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return resolve(definitions[value["$ref"].rpartition("/")[2]])
            return {name: resolve(each) for name, each in value.items() if name != "$defs"}
        return [resolve(each) for each in value] if isinstance(value, list) else value

    return resolve(schema)
