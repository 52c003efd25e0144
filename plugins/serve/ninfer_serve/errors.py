"""What clients are told when something fails, in each dialect's own shape."""

from __future__ import annotations

import logging
from typing import Any

from litestar import Request, Response
from litestar.enums import MediaType
from litestar.exceptions import HTTPException

from ninfer_core.api import (
    CapacityError,
    ContextLengthError,
    NInferError,
    QueueTimeoutError,
    RequestError,
    UnsupportedError,
)
from ninfer_core.engine.request import Finished
from ninfer_serve.disconnect import ClientGone
from ninfer_serve.request_id import request_id
from ninfer_serve.service import EngineGone
from ninfer_serve.sse import dumps

_log = logging.getLogger(__name__)
ANTHROPIC_PATH = "/v1/messages"
MAX_MESSAGE = 4_000
"""Characters of an error's message."""


class HttpError(RequestError):
    """A refusal with a status and a code of its own."""

    def __init__(
        self, status: int, code: str, what: str, *, where: str = "", why: str = "", fix: str = ""
    ) -> None:
        super().__init__(what, where=where, why=why, fix=fix)
        self.status, self.code = status, code


class DeadlineError(NInferError):
    """An answer was not complete at its deadline."""


_STATUSES: tuple[tuple[type[Exception], int, str], ...] = (
    (ContextLengthError, 400, "context_length_exceeded"),
    (RequestError, 400, "invalid_request"),
    (UnsupportedError, 400, "unsupported"),
    (QueueTimeoutError, 503, "request_queue_timeout"),
    (CapacityError, 429, "server_overloaded"),
    (EngineGone, 503, "service_unavailable"),
    (DeadlineError, 504, "deadline_exceeded"),
    (ClientGone, 499, "client_gone"),
)
_HTTP_CODES = {
    401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed", 413: "request_too_large",
}
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 504: "timeout_error",
    529: "overloaded_error",
}


def model_not_found(name: str, known: str) -> HttpError:
    """The request names a model that is not the one that is served."""
    return HttpError(404, "model_not_found", f"there is no model {name!r}", where="model",
                     why=f"this server has {known!r}")


def failure_of(finished: Finished) -> Exception | None:
    """Why an answer is none, or None if it is one."""
    if finished.cause is not None:
        return finished.cause
    if finished.reason == "deadline":
        return DeadlineError("the answer was not complete at its deadline")
    if finished.reason == "cancelled":
        return EngineGone("the answer was cancelled", why="the server is stopping")
    return NInferError("the answer failed") if finished.reason == "error" else None


def status_of(error: Exception) -> tuple[int, str]:
    """HTTP status and code."""
    if isinstance(error, HttpError):
        return error.status, error.code
    if isinstance(error, HTTPException):
        return error.status_code, _HTTP_CODES.get(error.status_code, "invalid_request")
    for kind, status, code in _STATUSES:
        if isinstance(error, kind):
            return status, code
    return 500, "internal_error"


def anthropic_status(error: Exception) -> int:
    """HTTP status; overload is 529 there."""
    status, _ = status_of(error)
    return 529 if status == 429 else status


def openai_error(error: Exception) -> dict[str, Any]:
    """The body of OpenAI's dialects."""
    status, code = status_of(error)
    kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    param = short(error.where) or None if isinstance(error, RequestError) else None
    return {"error": {"message": message_of(error), "type": kind, "param": param, "code": code}}


def anthropic_error(error: Exception, request: str | None = None) -> dict[str, Any]:
    """The body of Anthropic's dialect.

    :param request: the request's id.
    """
    status = anthropic_status(error)
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    what = {"type": kind, "message": message_of(error)}
    return {"type": "error", "error": what, "request_id": request}


def message_of(error: Exception) -> str:
    """One line for a user; of faults that are not theirs no more than that."""
    if isinstance(error, HTTPException):
        return short(error.detail)
    if not isinstance(error, NInferError):
        return "internal error; the log of the server says more"
    text = error.what
    if error.where:
        text += f" [{error.where}]"
    if error.why:
        text += f": {error.why}"
    return short(f"{text} ({error.fix})" if error.fix else text)


def short(text: str) -> str:
    """What a client sent comes back in errors, but not all of it if it is long."""
    half = MAX_MESSAGE // 2
    return text if len(text) <= MAX_MESSAGE else f"{text[:half]} ... {text[-half:]}"


def headers_of(error: Exception) -> dict[str, str]:
    """When to come again, and what of an HTTP error belongs into headers."""
    headers = dict(getattr(error, "headers", None) or {})
    retry = {429: "1", 503: "2"}.get(status_of(error)[0])
    return headers | ({"Retry-After": retry} if retry else {})


def error_response(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The response to a failed request, in the dialect of its path."""
    if status_of(error)[0] == 500 and not isinstance(error, NInferError):  # else it is in the log
        _log.error("request %s failed", request_id(request.scope), exc_info=error)
    if request.scope["path"].startswith(ANTHROPIC_PATH):
        status, body = anthropic_status(error), anthropic_error(error, request_id(request.scope))
    else:
        status, body = status_of(error)[0], openai_error(error)
    return Response(dumps(body), status_code=status, media_type=MediaType.JSON,
                    headers=headers_of(error))
