"""Prompts of requests."""

from __future__ import annotations

from attrs import evolve

from ninfer_core.api import Frontend, PreparedPrompt, PromptOptions, RequestError, Tokenizer
from ninfer_serve.serve_request import ServeRequest


def prepare_prompt(
    frontend: Frontend, request: ServeRequest, options: PromptOptions
) -> PreparedPrompt:
    """The prompt that an engine reads for a request; the frontend finds the client's cache markers.

    :param options: the request's, with the server's defaults.
    :raises RequestError: for what the model's template refuses.
    """
    if isinstance(request.prompt, str):
        ids = frontend.tokenizer.encode(request.prompt, special=True)
        return PreparedPrompt(tuple(ids), request.prompt)
    if request.prompt is not None:
        return PreparedPrompt(tuple(request.prompt), "")
    prompt = frontend.prepare(request.messages, tools=request.tools, options=options)
    return _continued(prompt, request.prefill, frontend.tokenizer) if request.prefill else prompt


def _continued(prompt: PreparedPrompt, text: str, tokenizer: Tokenizer) -> PreparedPrompt:
    """The prompt with the beginning of its answer, in which no text becomes a control token."""
    if prompt.reasoning_open:
        raise RequestError("the answer cannot go on from a text", where="messages",
                           why="the model begins its answers with reasoning",
                           fix="end with a message of the user")
    ids = tuple(tokenizer.encode(text))
    return evolve(prompt, token_ids=prompt.token_ids + ids, text=prompt.text + text)
