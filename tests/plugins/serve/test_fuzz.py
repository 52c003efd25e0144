"""Bodies that no client sends: every one is answered soon, as the document says, leaves nothing.

    FUZZ_BODIES=10000 pytest tests/plugins/serve/test_fuzz.py
"""

from __future__ import annotations

import copy
import json
import os
import random
import resource
import time

import pytest

from ninfer_core.api import ToolCall
from ninfer_core.engine.request import (
    Finished,
    Logprobs,
    Reading,
    Reuse,
    Started,
    TextDelta,
    Timings,
    TokenLogprob,
    Usage,
)

BODIES = int(os.environ.get("FUZZ_BODIES", "400"))
LONGEST_S = 10
MOST_GROWTH_BYTES = 40 << 20
ROUTES = tuple(f"ninfer_serve.{name}:routes" for name in (
    "openai.routes", "responses.routes", "anthropic.routes", "tokens", "metrics.routes",
    "page.routes"))
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
USER = {"role": "user", "content": "Hi"}
PIXEL = "data:image/png;base64,iVBORw0KGgo="
CHAT = {
    "model": "tiny", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 3,
    "stop": ["x"], "n": 2, "logprobs": True, "top_logprobs": 2, "stream": True,
    "stream_options": {"include_usage": True}, "reasoning_effort": "low",
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be"}]}, USER,
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]},
    ],
}
TOOLS = {
    "messages": [USER], "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": False, "chat_template_kwargs": {"enable_thinking": True},
    "tools": [{"type": "function", "function": {
        "name": "f", "description": "d", "parameters": SCHEMA, "strict": True}}],
}
SEEDS = {
    "/v1/chat/completions": [CHAT, TOOLS, {"messages": [USER], "stream": True}],
    "/v1/completions": [
        {"prompt": ["Hi", "you"], "echo": True, "logprobs": 1, "max_tokens": 3, "n": 2},
        {"prompt": [1, 2, 3], "stream": True, "max_tokens": 0, "suffix": ""},
        {"prompt": "Hi", "structured_outputs": {"regex": "[a-z]+"}},
    ],
    "/v1/responses": [
        {"input": "Hi", "instructions": "Be", "store": True, "reasoning": {"effort": "low"}},
        {"stream": True, "input": [
            {"role": "developer", "content": [{"type": "input_text", "text": "Be"}]},
            {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "done"},
            {"type": "custom_tool_call", "call_id": "d", "name": "p", "input": "text"},
        ], "tools": [{"type": "function", "name": "f", "parameters": SCHEMA},
                     {"type": "custom", "name": "p"}, {"type": "web_search"},
                     {"type": "namespace", "name": "m", "tools": []}],
         "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
         "include": ["reasoning.encrypted_content"], "tool_choice": "required"},
    ],
    "/v1/responses/input_tokens": [{"input": [USER], "previous_response_id": "resp_1"}],
    "/v1/messages": [
        {"model": "tiny", "max_tokens": 5, "stream": True, "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cch=12345;",
             "cache_control": {"type": "ephemeral"}}],
         "thinking": {"type": "enabled", "budget_tokens": 2000}, "messages": [
            USER,
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
            {"role": "system", "content": "Now"},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t",
                                          "is_error": True, "content": [{"type": "image"}]}]}],
         "tools": [{"name": "f", "input_schema": SCHEMA, "strict": True}],
         "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True}},
        {"max_tokens": 3, "messages": [USER], "stop_sequences": ["x"],
         "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}}},
    ],
    "/v1/messages/count_tokens": [{"messages": [USER], "system": "Be"}],
    "/tokenize": [{"prompt": "Hi", "with_pieces": True}, {"messages": [USER]}],
    "/detokenize": [{"tokens": [70, 71]}],
}
ODD = [
    None, True, False, -1, 0, 1, 2**31, 2**64, -(2**63) - 1, 0.5, 1e308, float("nan"),
    float("inf"), "", "x", "\ud800", "\udfff\ud800", "\x00", "é" * 3000, "</think>", "<tool_call>",
    "<|im_end|>", "{{ 7 * 7 }}", "{% raw %}", "auto", "none", "required", "user", "text", [], {},
    [None], [[]], {"": None}, {"type": "text"}, {"type": []}, {"$ref": "#"}, ["x"] * 300,
    json.loads("[" * 60 + "]" * 60), {"type": "object", "properties": None},
]


def changed(draw: random.Random, value):
    """A copy of a body in which something is otherwise."""
    value = copy.deepcopy(value)
    for _ in range(draw.choice((0, 1, 1, 1, 2, 5))):
        places = list(places_of(value))
        if not places:
            return draw.choice(ODD)
        holder, key = draw.choice(places)
        match draw.randrange(5):
            case 0:
                del holder[key]
            case 1:
                holder[key] = [holder[key]] * draw.choice((1, 3))
            case 2 if isinstance(holder, dict):
                name = draw.choice(("type", "x", "role", "content", "", "\ud800"))
                holder[name] = holder.pop(key)
            case 3:
                holder[key] = copy.deepcopy(draw.choice(places)[0])
            case _:
                holder[key] = copy.deepcopy(draw.choice(ODD))
    return value


def places_of(value):
    """Each container and key within a value."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places_of(value[key])


def bytes_of(draw: random.Random, value) -> bytes:
    """A body on the wire, now and then broken."""
    data = json.dumps(value, ensure_ascii=draw.random() < 0.7).encode(errors="surrogatepass")
    match draw.randrange(20):
        case 0:
            return data[: draw.randrange(len(data) + 1)]
        case 1:
            at = draw.randrange(len(data) + 1)
            return data[:at] + draw.randbytes(draw.randrange(1, 5)) + data[at:]
        case 2:
            wide = data.decode("latin-1").encode("utf-16")
            return draw.choice((b"", b"\xef\xbb\xbf" + data, wide, b"[" * 100_000, data + data))
        case _:
            return data


@pytest.fixture
def server(serve, kit):
    draw = random.Random(5)

    def logprobs(of_prompt=False):
        return Logprobs((TokenLogprob(70, -0.5, ((70, -0.5), (71, -2.0))),), of_prompt)

    def script(request):
        """Answers of any kind, with what an engine always says."""
        length, tells = len(request.prompt.token_ids), request.logprobs is not None
        yield Started(Reuse(), 0.0)
        yield Reading(length)
        if request.prompt_logprobs is not None:
            yield Logprobs((TokenLogprob(70, None), *logprobs().tokens * (length - 1)), True)
        parts = [TextDelta("reasoning", "hm"), TextDelta("content", "x"), TextDelta("content", "é"),
                 *(ToolCall(0, tool["function"]["name"], draw.choice(("{}", '{"input": "x"}')))
                   for tool in request.prompt.tools)]
        count = min(request.max_tokens, draw.randrange(5), len(parts))
        for each in draw.sample(parts, count):
            if tells:
                yield logprobs()
            yield each
        reason = draw.choice(("stop-token", "output-limit", "context-capacity"))
        yield Finished(reason, Usage(length, count), Timings(0, 0, 0, 0, 0, 0, 0), (70,) * count)

    made = serve(*ROUTES, app=kit.AppOptions(max_body_bytes=1 << 20))
    made.engine.script = script
    return made


def test_every_body_is_answered(server, kit):
    paths = server.client.get("/schema/openapi.json").json()["paths"]
    draw, grown_from = random.Random(os.environ.get("FUZZ_SEED", "1")), 0
    for number in range(BODIES):
        path = draw.choice([*SEEDS])
        body = bytes_of(draw, changed(draw, draw.choice(SEEDS[path])))
        begun = time.monotonic()
        response = server.client.post(path, content=body)
        about = number, path, response.status_code, body[:3000], response.text[-1000:]
        assert time.monotonic() - begun < LONGEST_S, about
        assert response.status_code != 500, about
        assert str(response.status_code) in paths[path]["post"]["responses"], about
        if response.headers["content-type"].startswith("text/event-stream"):
            assert kit.events_of(response.text), about
        elif response.status_code != 200:
            assert response.json()["error"]["message"], about
        if number == BODIES // 4:
            grown_from = most_memory()
    assert most_memory() - grown_from < MOST_GROWTH_BYTES
    is_rid_of_all(server)


def test_clients_that_leave_leave_nothing(server, kit):
    draw = random.Random(2)
    server.engine.script = kit.reply(("reasoning", "hm"), "x", 30.0, "y")
    streams = [path for path in SEEDS if path.endswith(("completions", "responses", "messages"))]
    for _ in range(BODIES // 20):
        path = draw.choice(streams)
        body = draw.choice(SEEDS[path]) | {"stream": True}
        with server.client.stream("POST", path, json=body) as response:
            if response.status_code == 200 and draw.random() < 0.5:
                next(response.iter_raw())
    is_rid_of_all(server)


@pytest.mark.parametrize("path", [
    "/v1/models/%00", "/v1/models/a%2Fb", "/v1/models/" + "x" * 5000, "/v1/responses/%F0%9F",
    "/v1/responses/..", "/v1/responses/x/input_items?limit=x", "/v1/responses/x/input_items?after=",
    "/v1/status?x", "/metrics?a=b", "/%", "/../etc/passwd", "//", "/v1/plugins/",
])
def test_odd_paths_are_answered(server, path):
    for method in ("GET", "DELETE", "PUT", "POST", "HEAD"):
        assert server.client.request(method, path).status_code < 500, method


def is_rid_of_all(server):
    end = time.monotonic() + 10
    while server.service.pending or server.engine.running:
        assert time.monotonic() < end, (server.service.pending, server.engine.running)
        time.sleep(0.02)


def most_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
