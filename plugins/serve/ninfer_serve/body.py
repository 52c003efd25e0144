"""Bodies of requests, of which JSON of any kind becomes an object or a clear refusal, and of
answers."""

from __future__ import annotations

import json
from typing import Any

from litestar import Response
from litestar.enums import MediaType

from ninfer_core.api import RequestError
from ninfer_core.text.strict_json import parse_json
from ninfer_core.text.unicode import unicode_scalars
from ninfer_serve.sse import dumps


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; lone surrogates, which UTF-8 cannot carry on, are U+FFFD.

    :raises RequestError: for anything else: other encodings, no JSON, NaN, no object.
    """
    try:
        value = _with_scalars(body.decode("utf-8-sig"))
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


def _with_scalars(text: str) -> Any:
    value = parse_json(text)
    if "\\ud" not in text and "\\uD" not in text:
        return value
    return json.loads(unicode_scalars(json.dumps(value, ensure_ascii=False)))
