"""The routes of OpenAI's completions and models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import Request, Response, get, post
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from ninfer_serve.body import json_response, read_body
from ninfer_serve.disconnect import until_gone
from ninfer_serve.openai import schemas
from ninfer_serve.openai.chat_answer import ChatAnswer
from ninfer_serve.openai.chat_request import read_chat
from ninfer_serve.openai.chunks import respond
from ninfer_serve.openai.completion_answer import CompletionAnswer
from ninfer_serve.openai.completion_request import read_completion
from ninfer_serve.openai.models import find_model, model_of
from ninfer_serve.openapi import ASKING, gives, takes
from ninfer_serve.service import Service


def routes(service: Service) -> Sequence[ControllerRouterHandler]:
    """Chat and text completions, and the model."""
    facts = service.facts

    @post(
        "/v1/chat/completions", status_code=200, summary="Continue a conversation",
        operation_class=takes(schemas.ChatCompletionRequest, streams=True),
        responses=gives(schemas.ChatCompletion),
    )
    async def chat_completions(request: Request[Any, Any, Any]) -> Response[Any]:
        wanted = await read_body(request, lambda body: read_chat(body, facts.name))
        begun = await until_gone(request, service.start(wanted.serve))
        answer = ChatAnswer(service, begun, wanted)
        if wanted.view.stream:
            return respond(service, answer.frames())
        return json_response(await until_gone(request, answer.complete()))

    @post(
        "/v1/completions", status_code=200, summary="Continue a text",
        operation_class=takes(schemas.CompletionRequest, streams=True),
        responses=gives(schemas.Completion),
    )
    async def completions(request: Request[Any, Any, Any]) -> Response[Any]:
        wanted = await read_body(request, lambda body: read_completion(body, facts))
        first = await until_gone(request, service.start(wanted.serve[0]))
        answer = CompletionAnswer(service, first, wanted)
        if wanted.view.stream:
            return respond(service, answer.frames())
        return json_response(await until_gone(request, answer.complete()))

    @get("/v1/models", summary="The models that are served",
         responses=gives(schemas.ModelList, ASKING))
    async def models() -> Response[Any]:
        return json_response({"object": "list", "data": [model_of(facts)]})

    @get("/v1/models/{name:path}", summary="One model",
         responses=gives(schemas.Model, ASKING))
    async def model(name: FromPath[str]) -> Response[Any]:
        return json_response(find_model(facts, name.removeprefix("/")))

    return [chat_completions, completions, models, model]
