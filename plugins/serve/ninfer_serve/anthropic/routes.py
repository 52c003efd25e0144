"""The routes of Anthropic's Messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from litestar import Request, Response, head, post

from ninfer_core.engine.request import Finished, Started
from ninfer_serve.answer import joined
from ninfer_serve.anthropic import schemas
from ninfer_serve.anthropic.events import (
    BlockStream,
    Head,
    StreamEvent,
    content_of,
    ending,
    stop_of,
)
from ninfer_serve.anthropic.request import MessagesRequest, read_request
from ninfer_serve.anthropic.thinking import Abilities
from ninfer_serve.auth import OPEN
from ninfer_serve.body import json_response, nothing, read_body
from ninfer_serve.disconnect import until_gone
from ninfer_serve.errors import ANTHROPIC_PATH, anthropic_error, failure_of
from ninfer_serve.openapi import gives, takes
from ninfer_serve.request_id import request_id
from ninfer_serve.service import Answer, Service
from ninfer_serve.sse import dumps, event_stream, frame, with_error, with_heartbeat

PING = frame(b'{"type":"ping"}', "ping")
"""A heartbeat: comments do not keep clients of this dialect from giving up."""
STATUSES = (400, 401, 413, 415, 500, 503, 504, 529)
HttpRequest = Request[Any, Any, Any]


def routes(service: Service) -> Sequence[Any]:
    """Messages, their token counts, and what Claude Code asks first."""
    abilities = Abilities.of(service.frontend)

    @post(
        ANTHROPIC_PATH, status_code=200, summary="Continue a conversation of blocks",
        operation_class=takes(schemas.MessageRequest, streams=True),
        responses=gives(schemas.Message, STATUSES, schemas.Error),
    )
    async def messages(request: Request[Any, Any, Any]) -> Response[Any]:
        wanted = await _read(request, abilities)
        if not wanted.stream:
            return json_response(await until_gone(request, _message(service, wanted)))
        answer = await until_gone(request, service.start(wanted.serve))
        frames = _frames(answer, _head(service, answer, wanted))
        return event_stream(with_heartbeat(
            with_error(frames, lambda error: _error_frame(request, error)),
            PING, service.heartbeat_s,
        ))

    @post(
        f"{ANTHROPIC_PATH}/count_tokens", status_code=200, summary="Count the tokens of a prompt",
        operation_class=takes(schemas.TokenCountRequest),
        responses=gives(schemas.TokenCount, STATUSES, schemas.Error),
    )
    async def count_tokens(request: Request[Any, Any, Any]) -> Response[Any]:
        wanted = await _read(request, abilities)
        prompt = await until_gone(request, service.prepare(wanted.serve))
        return json_response({"input_tokens": len(prompt.token_ids)})

    @head("/", opt={OPEN: True}, summary="Whether there is a server")
    async def is_there() -> Response[None]:
        return nothing()

    return [messages, count_tokens, is_there]


async def _read(request: HttpRequest, abilities: Abilities) -> MessagesRequest:
    return await read_body(request, lambda body: read_request(body, abilities))


async def _message(service: Service, wanted: MessagesRequest) -> dict[str, Any]:
    """The whole answer; raises what it fails with."""
    answer = await service.start(wanted.serve)
    head, blocks = _head(service, answer, wanted), BlockStream(answer.id)
    events: list[StreamEvent] = []
    async with answer:
        async for batch in answer:
            for each in joined(batch):
                events += blocks.feed(each.event)
                if isinstance(each.event, Finished):
                    finished = _complete(each.event)
    events += blocks.close()
    return {
        **head.message(finished.reuse), "content": content_of(events),
        **stop_of(finished, called=blocks.called), "usage": head.final_usage(finished),
    }


async def _frames(answer: Answer, head: Head) -> AsyncGenerator[bytes, None]:
    """The answer as events; raises what it fails with."""
    blocks = BlockStream(answer.id)
    async with answer:
        async for batch in answer:
            events: list[StreamEvent] = []
            last: Finished | None = None
            for each in joined(batch):
                event = each.event
                if isinstance(event, Started):
                    events.append({"type": "message_start", "message": head.message(event.reuse)})
                last = event if isinstance(event, Finished) else last
                events += blocks.feed(event)
            failure = failure_of(last) if last else None
            if last and not failure:
                events += [*blocks.close(), *ending(last, head, called=blocks.called)]
            if events:
                yield b"".join(frame(dumps(event), event["type"]) for event in events)
            if failure:
                raise failure


def _head(service: Service, answer: Answer, wanted: MessagesRequest) -> Head:
    return Head(
        answer.id, wanted.model or service.facts.name, answer.prompt,
        service.frontend.reasoning_tokens,
    )


def _complete(finished: Finished) -> Finished:
    if failure := failure_of(finished):
        raise failure
    return finished


def _error_frame(request: HttpRequest, error: Exception) -> bytes:
    return frame(dumps(anthropic_error(error, request_id(request.scope))), "error")
