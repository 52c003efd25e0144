"""The body of a request to the Responses API."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from ninfer_core.api import Grammar, PromptOptions, RequestError
from ninfer_serve.errors import HttpError
from ninfer_serve.members import Members, refuse
from ninfer_serve.openai.options import MAX_LOGPROBS, MAX_TOKENS, check_model, read_generation
from ninfer_serve.openai.thinking import read_thinking
from ninfer_serve.responses.conversation import conversation
from ninfer_serve.responses.items import Item, read_input
from ninfer_serve.responses.tools import Tools, read_choice, read_tools
from ninfer_serve.serve_request import ServeRequest

READ = frozenset({
    "background", "frequency_penalty", "include", "input", "instructions", "max_output_tokens",
    "metadata", "model", "parallel_tool_calls", "presence_penalty", "previous_response_id",
    "reasoning", "store", "stream", "temperature", "text", "tool_choice", "tools", "top_logprobs",
    "top_p", "truncation",
    # of our chat completions
    "chat_template_kwargs", "enable_thinking", "min_p", "preserve_thinking", "repetition_penalty",
    "seed", "stop", "thinking_budget", "top_k",
})
HINTS = frozenset({
    "client_metadata", "max_tool_calls", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "safety_identifier", "service_tier", "stream_options", "user",
})
"""Taken, and without effect here: one model, one user, and a cache that finds prefixes itself."""
NOT_HERE = frozenset({
    "access_programs", "background_options", "context_management", "conversation", "image",
    "moderation", "prompt",
})
"""Parts of the API that need more than a model."""
INCLUDES = frozenset({
    "code_interpreter_call.outputs", "computer_call_output.output.image_url",
    "file_search_call.results", "message.input_image.image_url", "message.output_text.logprobs",
    "reasoning.encrypted_content", "web_search_call.action.sources", "web_search_call.results",
})
_CONTEXTS = {"auto": None, "current_turn": False, "all_turns": True}


@frozen
class ResponseRequest:
    """What a body asks for.

    :ivar serve: all that is asked of the model but the conversation.
    :ivar items: of ``input``. :ivar previous: id of the response that they go on from.
    :ivar seals: whether reasoning is to have an ``encrypted_content``.
    :ivar members: of the body, for the response to repeat.
    """

    serve: ServeRequest
    items: tuple[Item, ...]
    instructions: str | None
    previous: str | None
    tools: Tools
    seals: bool
    stream: bool
    store: bool
    members: Mapping[str, Any]

    def serve_request(
        self, before: Sequence[Item] = (), preserve_thinking: bool | None = None
    ) -> ServeRequest:
        """The request that goes on from the items ``before`` it, with what it inherits of the
        response that these are from."""
        options = self.serve.options
        if options.preserve_thinking is None:
            options = evolve(options, preserve_thinking=preserve_thinking)
        messages = conversation([*before, *self.items], self.instructions)
        return evolve(self.serve, messages=messages, options=options)


def read_request(
    body: Members, model: str, known: Callable[[str], Item | None]
) -> ResponseRequest:
    """Check everything that can be checked without the model.

    :param model: the name that is served. :param known: finds items by id.
    :raises RequestError: naming the member, for what is malformed or could not have the effect
        that it asks for.
    """
    _check_members(body)
    check_model(body, model)
    tools, include = read_tools(body), _include(body)
    return ResponseRequest(
        serve=_serve(body, tools, include), items=tuple(_items(body, known)),
        instructions=body.text("instructions"), previous=body.text("previous_response_id"),
        tools=tools, seals="reasoning.encrypted_content" in include,
        stream=bool(body.flag("stream")), store=body.flag("store") is not False,
        members=body.values,
    )


def _serve(body: Members, tools: Tools, include: Collection[str]) -> ServeRequest:
    options, budget = read_thinking(body)
    options = _with_context(options, body.object("reasoning"))
    most = body.integer("max_output_tokens", 0)
    record = {"effort": options.effort, "thinking": options.thinking, "thinking_budget": budget,
              "tools_left_out": list(tools.left_out) or None}
    return ServeRequest(**{
        **read_generation(body), "max_tokens": None if most is None else min(most, MAX_TOKENS),
        "tools": tools.functions, "calls": read_choice(body, tools), "options": options,
        "thinking_budget": budget, "grammar": _grammar(body.object("text")),
        "logprobs": _logprobs(body, include),
        "record": {name: value for name, value in record.items() if value is not None},
    })


def _check_members(body: Members) -> None:
    for name in body.values:
        if name in NOT_HERE and body.values[name]:
            raise HttpError(400, "unsupported_parameter", "the server has no such thing",
                            where=name)
        if name not in READ | HINTS | NOT_HERE:
            raise HttpError(400, "unknown_parameter", f"unknown parameter {name!r}", where=name)
    if body.flag("background"):
        raise HttpError(400, "unsupported_parameter", "responses are made while the client waits",
                        where="background")
    if body.one_of("truncation", ("auto", "disabled")) == "auto":
        raise HttpError(400, "unsupported_parameter", "context is never cut silently",
                        where="truncation", fix="leave it out, and shorten the input")
    for name in ("prompt_cache_key", "safety_identifier", "user"):
        body.text(name)
    body.integer("max_tool_calls", 0)
    _check_metadata(body.object("metadata"))


def _check_metadata(metadata: Members | None) -> None:
    if metadata is None:
        return
    if len(metadata.values) > 16:
        refuse("metadata", "at most 16 pairs", metadata.values)
    for name in metadata.values:
        if len(name) > 64:
            refuse("metadata", "of keys of at most 64 characters", name)
        metadata.text(name, longest=512)


def _items(body: Members, known: Callable[[str], Item | None]) -> list[Item]:
    items = read_input(body, known)
    if not items and "previous_response_id" not in body:
        raise RequestError("there is no input", where="input", fix="send a text or items")
    return items


def _with_context(options: PromptOptions, reasoning: Members | None) -> PromptOptions:
    """With the API's own name for whether reasoning of earlier turns stays."""
    if reasoning is None:
        return options
    if reasoning.text("mode") not in (None, "standard"):
        refuse(reasoning.place("mode"), "standard", reasoning.values["mode"])
    wanted = _CONTEXTS[reasoning.one_of("context", _CONTEXTS) or "auto"]
    return options if wanted is None else evolve(options, preserve_thinking=wanted)


def _grammar(text: Members | None) -> Grammar | None:
    if text is None:
        return None
    if text.one_of("verbosity", ("low", "medium", "high")) in ("low", "high"):
        raise HttpError(400, "unsupported_parameter", "the model has no verbosity",
                        where=text.place("verbosity"), fix="leave it out")
    layout = text.object("format")
    if layout is None:
        return None
    layout.need_text("type")
    kind = layout.one_of("type", ("text", "json_object", "json_schema"))
    if kind == "json_schema":
        schema = layout.object("schema")
        if schema is None:
            refuse(layout.place("schema"), "a JSON schema", None)
        return Grammar("json_schema", json.dumps(schema.values, ensure_ascii=False))
    return Grammar("json") if kind == "json_object" else None


def _include(body: Members) -> Collection[str]:
    include = body.array("include")
    for index, each in enumerate(include):
        if not isinstance(each, str) or each not in INCLUDES:
            refuse(f"include[{index}]", f"one of {', '.join(sorted(INCLUDES))}", each)
    return include


def _logprobs(body: Members, include: Collection[str]) -> int | None:
    top = body.integer("top_logprobs", 0, MAX_LOGPROBS)
    return top or 0 if top or "message.output_text.logprobs" in include else None
