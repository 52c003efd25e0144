"""The body of a chat completion."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from ninfer_serve.members import Members, refuse
from ninfer_serve.openai.grammars import read_grammar
from ninfer_serve.openai.messages import read_messages, split_prefill
from ninfer_serve.openai.options import (
    MAX_LOGPROBS,
    UNSERVED,
    Unserved,
    View,
    check_model,
    check_unserved,
    read_generation,
    read_view,
)
from ninfer_serve.openai.thinking import read_thinking
from ninfer_serve.openai.tools import read_tools
from ninfer_serve.serve_request import ServeRequest

CHAT_UNSERVED: Unserved = {
    **UNSERVED,
    "audio": ((), "ask for text"),
    "functions": ((), "declare them in tools"),
    "function_call": (("auto", "none"), "use tool_choice"),
    "modalities": ((["text"],), "ask for text"),
    "moderation": ((), "leave it out"),
    "store": ((), "use /v1/responses"),
    "verbosity": (("medium",), "say it in a message"),
    "web_search_options": ((), "declare a function in tools"),
}


@frozen
class ChatRequest:
    """What a body asks for."""

    serve: ServeRequest
    view: View


def read_chat(body: Members, model: str) -> ChatRequest:
    """Check everything that can be checked without the model; unknown members are left alone.

    :param model: the name that is served.
    :raises RequestError: naming the member.
    """
    check_model(body, model)
    check_unserved(body, CHAT_UNSERVED)
    tools, calls = read_tools(body)
    options, budget = read_thinking(body)
    messages, prefill = split_prefill(body, read_messages(body))
    record: dict[str, Any] = {
        "effort": options.effort, "thinking": options.thinking, "thinking_budget": budget,
    }
    serve = ServeRequest(
        messages=messages, prefill=prefill, tools=tools, calls=calls, options=options,
        thinking_budget=budget, grammar=read_grammar(body), logprobs=_logprobs(body),
        record={name: value for name, value in record.items() if value is not None},
        **read_generation(body),
    )
    return ChatRequest(serve, read_view(body))


def _logprobs(body: Members) -> int | None:
    wanted, top = body.flag("logprobs"), body.integer("top_logprobs", 0, MAX_LOGPROBS)
    if top and not wanted:
        refuse("logprobs", "true beside top_logprobs", body.values.get("logprobs"))
    return top or 0 if wanted else None
