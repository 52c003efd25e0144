"""Bodies of Messages requests, and what they come to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from ninfer_core.api import Grammar, RequestError
from ninfer_serve.anthropic.content import conversation, system_messages
from ninfer_serve.anthropic.thinking import Abilities, Thinking, read_thinking
from ninfer_serve.anthropic.tools import call_rules, declarations
from ninfer_serve.members import Members, refuse
from ninfer_serve.serve_request import ServeRequest

MAX_BREAKPOINTS = 4


@frozen
class MessagesRequest:
    """A request, and what its answer repeats of it.

    :ivar model: "" if it names none.
    """

    serve: ServeRequest
    model: str
    stream: bool


def read_request(body: Members, abilities: Abilities) -> MessagesRequest:
    """The request of a body. What is not known is ignored, but what would change the answer.

    :raises RequestError: with the place of what is malformed, contradicts itself, or cannot be had.
    """
    _refuse_foreign(body)
    _check_breakpoints(body)
    messages, prefill = conversation(body)
    tools = declarations(body)
    thinking = read_thinking(body, abilities, prefilled=bool(prefill))
    grammar = _grammar(body)
    if grammar and prefill:
        raise RequestError("an answer that goes on from a text has no format", where="messages",
                           fix="end with a message of the user")
    return MessagesRequest(
        ServeRequest(
            messages=[*system_messages(body), *messages], prefill=prefill, tools=tools,
            options=thinking.options, thinking_budget=thinking.budget,
            sampling=_sampling(body), max_tokens=body.integer("max_tokens", 0),
            stop=_stops(body), grammar=grammar, calls=call_rules(body, tools),
            record=_record(thinking),
        ),
        model=body.text("model") or "", stream=body.flag("stream") or False,
    )


def _sampling(body: Members) -> dict[str, Any]:
    given = {
        "temperature": body.number("temperature", 0, 2), "top_p": body.number("top_p", 0, 1),
        "top_k": body.integer("top_k", 0, 2**31 - 1),
    }
    return {name: value for name, value in given.items() if value is not None}


def _stops(body: Members) -> tuple[str, ...]:
    stops = body.array("stop_sequences")
    for index, each in enumerate(stops):
        if not isinstance(each, str) or not each:
            refuse(f"stop_sequences[{index}]", "a string that is not empty", each)
    return tuple(stops)


def _grammar(body: Members) -> Grammar | None:
    """Of ``output_config.format``, or of ``output_format``, as it was called before."""
    config = body.object("output_config")
    wanted = config.object("format") if config else None
    wanted = wanted or body.object("output_format")
    if wanted is None:
        return None
    if wanted.one_of("type", ("json_schema",)) is None:
        refuse(wanted.place("type"), "json_schema", None)
    schema = wanted.object("schema")
    if schema is None:
        refuse(wanted.place("schema"), "a JSON schema", None)
    return Grammar("json_schema", json.dumps(schema.values, ensure_ascii=False))


def _refuse_foreign(body: Members) -> None:
    """Of other services' machines, a request that relies on them cannot be answered as meant."""
    for name in ("container", "mcp_servers"):
        if body.values.get(name):
            raise RequestError("the server has no such thing", where=name, fix="leave it out")


def _check_breakpoints(body: Members) -> None:
    markers = [marker for block in _markable(body) if (marker := block.object("cache_control"))]
    whole = body.object("cache_control")
    for marker in (*markers, *filter(None, [whole])):
        if marker.one_of("type", ("ephemeral",)) is None:
            refuse(marker.place("type"), "ephemeral", None)
        marker.one_of("ttl", ("5m", "1h"))
    if len(markers) > MAX_BREAKPOINTS:
        raise RequestError("too many cache breakpoints", where=markers[MAX_BREAKPOINTS].path,
                           why=f"{len(markers)} of at most {MAX_BREAKPOINTS}")


def _markable(body: Members) -> Iterator[Members]:
    """What can have a breakpoint: tools and blocks."""
    yield from body.objects("tools")
    for owner, name in ((body, "system"), *((m, "content") for m in body.objects("messages"))):
        if isinstance(owner.values.get(name), list):
            yield from owner.objects(name)


def _record(thinking: Thinking) -> Mapping[str, Any]:
    options = thinking.options
    known = {
        "thinking": options.thinking, "effort": options.effort,
        "thinking_budget": thinking.budget, "preserve_thinking": options.preserve_thinking,
    }
    return {"dialect": "anthropic"} | {k: each for k, each in known.items() if each is not None}
