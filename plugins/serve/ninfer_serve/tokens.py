"""Text to tokens and back, in the forms of llama.cpp's and vLLM's servers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from litestar import Request, Response, post
from litestar.types import ControllerRouterHandler

from ninfer_core.api import Tokenizer
from ninfer_core.text.template import MAX_CHARS
from ninfer_serve.body import json_response, read_body
from ninfer_serve.members import Members, refuse
from ninfer_serve.openai import schemas
from ninfer_serve.openai.messages import read_messages
from ninfer_serve.openai.thinking import read_thinking
from ninfer_serve.openai.tools import read_tools
from ninfer_serve.openapi import gives, takes
from ninfer_serve.serve_request import ServeRequest
from ninfer_serve.service import Service


def routes(service: Service) -> Sequence[ControllerRouterHandler]:
    """The handlers."""
    tokenizer = service.frontend.tokenizer

    @post("/tokenize", status_code=200, summary="Tokens of a text or a conversation",
          operation_class=takes(schemas.TokenizeRequest), responses=gives(schemas.Tokens))
    async def tokenize(request: Request[Any, Any, Any]) -> Response[Any]:
        body = await read_body(request, lambda body: body)
        ids = await _tokens(service, body)
        shown = [_piece(tokenizer, each) for each in ids] if body.flag("with_pieces") else ids
        return json_response({"tokens": shown, "count": len(ids),
                      "max_model_len": service.facts.max_context})

    @post("/detokenize", status_code=200, summary="The text of tokens",
          operation_class=takes(schemas.DetokenizeRequest), responses=gives(schemas.Text))
    async def detokenize(request: Request[Any, Any, Any]) -> Response[Any]:
        text = await read_body(request, lambda body: _text(tokenizer, body))
        return json_response({"content": text, "prompt": text})

    return [tokenize, detokenize]


def _text(tokenizer: Tokenizer, body: Members) -> str:
    if not isinstance(ids := body.values.get("tokens"), list):
        refuse("tokens", "an array of token ids", ids)
    for index, each in enumerate(ids):
        if type(each) is not int or not 0 <= each < tokenizer.vocab_size:
            refuse(f"tokens[{index}]", f"a token id below {tokenizer.vocab_size}", each)
    return b"".join(map(tokenizer.token_bytes, ids)).decode(errors="replace")


async def _tokens(service: Service, body: Members) -> Sequence[int]:
    if "messages" in body:
        tools, _ = read_tools(body)
        options, _ = read_thinking(body)
        request = ServeRequest(messages=read_messages(body), tools=tools, options=options)
        return (await service.prepare(request)).token_ids
    given = (body.text(name, longest=MAX_CHARS) for name in ("prompt", "content"))
    texts = [text for text in given if text is not None]
    if len(texts) != 1:
        refuse("prompt", "one text, as 'prompt' or 'content', or 'messages'", texts or None)
    special = body.flag("parse_special") is not False
    return await asyncio.to_thread(service.frontend.tokenizer.encode, texts[0], special=special)


def _piece(tokenizer: Tokenizer, token_id: int) -> dict[str, Any]:
    """An id and its text, or its bytes if they are no text alone."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return {"id": token_id, "piece": raw.decode()}
    except UnicodeDecodeError:
        return {"id": token_id, "piece": list(raw)}
