"""The cases of the OpenResponses compliance suite, with its shapes written down as tables."""

from __future__ import annotations

from types import NoneType, UnionType

import msgspec
import pytest

from ninfer_core.api import ToolCall
from ninfer_serve.responses import schemas
from ninfer_serve.responses.request import HINTS, READ

WEATHER = {"type": "function", "name": "get_weather", "description": "The weather of a place",
           "parameters": {"type": "object", "properties": {"location": {"type": "string"}},
                          "required": ["location"]}}
NUMBER = int | float

RESPONSE = {
    "id": str, "object": str, "created_at": int, "completed_at": int | NoneType, "status": str,
    "incomplete_details": dict | NoneType, "model": str, "previous_response_id": str | NoneType,
    "instructions": str | NoneType, "output": list, "error": dict | NoneType, "tools": list,
    "tool_choice": str | dict, "truncation": str, "parallel_tool_calls": bool, "text": dict,
    "top_p": NUMBER, "presence_penalty": NUMBER, "frequency_penalty": NUMBER,
    "top_logprobs": int, "temperature": NUMBER, "reasoning": dict | NoneType,
    "user": str | NoneType, "usage": dict | NoneType, "max_output_tokens": int | NoneType,
    "max_tool_calls": int | NoneType, "store": bool, "background": bool, "service_tier": str,
    "metadata": dict, "safety_identifier": str | NoneType, "prompt_cache_key": str | NoneType,
}
USAGE = {"input_tokens": int, "output_tokens": int, "total_tokens": int,
         "input_tokens_details": dict, "output_tokens_details": dict}
ITEMS = {
    "message": {"id": str, "status": str, "role": str, "content": list},
    "reasoning": {"id": str, "summary": list, "content": list},
    "function_call": {"id": str, "call_id": str, "name": str, "arguments": str, "status": str},
}
PARTS = {
    "output_text": {"text": str, "annotations": list, "logprobs": list},
    "reasoning_text": {"text": str},
}
TOOL = {"type": str, "name": str, "description": str | NoneType, "parameters": dict | NoneType,
        "strict": bool | NoneType}
PLACE = {"item_id": str, "output_index": int, "content_index": int}
CALL_PLACE = {"item_id": str, "output_index": int}
EVENTS = {
    **{f"response.{name}": {"response": dict}
       for name in ("created", "in_progress", "completed", "incomplete", "failed")},
    "response.output_item.added": {"output_index": int, "item": dict},
    "response.output_item.done": {"output_index": int, "item": dict},
    "response.content_part.added": {**PLACE, "part": dict},
    "response.content_part.done": {**PLACE, "part": dict},
    "response.output_text.delta": {**PLACE, "delta": str, "logprobs": list},
    "response.output_text.done": {**PLACE, "text": str, "logprobs": list},
    "response.reasoning_text.delta": {**PLACE, "delta": str},
    "response.reasoning_text.done": {**PLACE, "text": str},
    "response.function_call_arguments.delta": {**CALL_PLACE, "delta": str},
    "response.function_call_arguments.done": {**CALL_PLACE, "arguments": str},
}


def check(value, shape: dict[str, type | UnionType]):
    for name, kind in shape.items():
        assert name in value, name
        assert isinstance(value[name], kind), (name, value[name])


def check_response(response):
    check(response, RESPONSE)
    assert response["object"] == "response"
    for item in response["output"]:
        check_item(item)
    for tool in response["tools"]:
        check(tool, TOOL)
    assert response["text"]["format"]["type"] in ("text", "json_object", "json_schema")
    assert {*response["reasoning"]} >= {"effort", "summary"}
    if response["usage"]:
        check(response["usage"], USAGE)
        check(response["usage"]["input_tokens_details"], {"cached_tokens": int})
        check(response["usage"]["output_tokens_details"], {"reasoning_tokens": int})


def check_item(item):
    check(item, ITEMS[item["type"]])
    for part in item.get("content", ()):
        check(part, PARTS[part["type"]])


def check_event(event):
    check(event, {**EVENTS[event["type"]], "sequence_number": int})
    if "response" in event:
        check_response(event["response"])
    if "item" in event:
        check_item(event["item"])
    if "part" in event:
        check(event["part"], PARTS[event["part"]["type"]])


def user(text):
    return {"type": "message", "role": "user", "content": text}


CASES = {
    "basic-response": {"input": [user("Say hello in exactly 3 words.")]},
    "system-prompt": {"input": [
        {"type": "message", "role": "system", "content": "You are a pirate."}, user("Say hello.")]},
    "tool-calling": {"input": [user("What's the weather like?")], "tools": [WEATHER]},
    "multi-turn": {"input": [
        user("My name is Alice."),
        {"type": "message", "role": "assistant", "content": "Hello Alice!"},
        user("What is my name?")]},
}


@pytest.fixture
def asked(server, kit):
    call = ToolCall(0, "get_weather", '{"location": "San Francisco, CA"}')

    def ask(case, stream):
        parts = ("Let me see.", call) if "tools" in CASES[case] else ("one ", "two ", "three")
        server.engine.script = kit.reply(("reasoning", "hm"), *parts)
        return (server.stream if stream else server.ask)(model="tiny", **CASES[case])

    return ask


@pytest.mark.parametrize("case", CASES)
def test_whole(asked, case):
    response = asked(case, stream=False).json()
    check_response(response)
    assert response["status"] == "completed" and response["output"]
    kinds = [item["type"] for item in response["output"]]
    assert kinds == ["reasoning", "message"] + ["function_call"] * (case == "tool-calling")


@pytest.mark.parametrize("case", CASES)
def test_streamed(asked, case):
    events = asked(case, stream=True)
    for event in events:
        check_event(event)
    assert events[-1]["response"]["status"] == "completed"
    kinds = {event["type"] for event in events}
    if case == "tool-calling":
        assert {"response.function_call_arguments.delta",
                "response.function_call_arguments.done"} <= kinds


def test_answers_are_what_the_document_says(server):
    made = server.ask().json()
    path = f"/v1/responses/{made['id']}"
    items = server.client.get(f"{path}/input_items").json()
    counted = server.client.post("/v1/responses/input_tokens", json={"input": "hi"}).json()
    deleted = server.client.delete(path).json()
    for found, kind in ((made, schemas.ResponseObject), (items, schemas.ItemList),
                        (counted, schemas.InputTokens), (deleted, schemas.Deleted)):
        assert msgspec.to_builtins(msgspec.convert(found, kind)) == found


def test_requests_in_the_document_are_those_that_are_read():
    shown = {*schemas.ResponseRequest.__struct_fields__}
    assert shown == READ | HINTS


def test_an_image_is_refused_by_a_model_without_vision(server):
    """``image-input`` asks for a model that sees; another one must not answer as if it did."""
    picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    answer = server.ask(input=[{"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "What do you see?"}, picture]}])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content"
