"""Chat completions on the wire: chunks, their order, and the whole answer."""

import json
import time
from types import SimpleNamespace

import httpx
import pytest
from litestar.testing import TestClient

from ninfer_core.api import CapacityError, RequestError, ToolCall
from ninfer_core.engine.request import Logprobs, TokenLogprob

ROUTES = "ninfer_serve.openai.routes:routes"
HELLO = [{"role": "user", "content": "hi"}]
WEATHER = {"type": "function", "function": {
    "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}}


@pytest.fixture
def server(make_app):
    made = make_app(ROUTES)
    with TestClient(made.app, raise_server_exceptions=False) as client:
        yield SimpleNamespace(client=client, **vars(made))


def post(server, **body):
    body = {"model": "tiny", "messages": HELLO, **body}
    return server.client.post("/v1/chat/completions", json=body)


def chunks(kit, server, **body):
    """Data of all events; the last one must be the end."""
    response = post(server, stream=True, **body)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    *data, end = [data for _, data in kit.events_of(response.text)]
    assert end == "[DONE]"
    return data


def choices(data, index=0):
    return [c for chunk in data for c in chunk["choices"] if c["index"] == index]


def test_an_answer_is_one_object(kit, server):
    server.engine.script = kit.reply("Hel", "lo", cached=3)
    body = post(server, max_tokens=9, temperature=0.5, seed=-1, stop="x").json()
    assert body["object"] == "chat.completion" and body["model"] == "tiny"
    assert body["id"].startswith("chatcmpl-") and isinstance(body["created"], int)
    assert body["choices"] == [{
        "index": 0, "logprobs": None, "finish_reason": "stop",
        "message": {"role": "assistant", "content": "Hello", "refusal": None},
    }]
    usage = body["usage"]
    assert usage["completion_tokens"] == 2
    assert usage["total_tokens"] == usage["prompt_tokens"] + 2
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}
    [request] = server.engine.requests
    assert (request.max_tokens, request.stop) == (9, ("x",))
    assert (request.sampling.temperature, request.sampling.seed) == (0.5, 2**64 - 1)


def test_timings_are_milliseconds_and_rates(kit, server):
    server.engine.script = kit.reply("a", "b", "c", cached=4)
    timings = post(server).json()["timings"]
    assert (timings["cache_n"], timings["predicted_n"], timings["queue_ms"]) == (4, 3, 250)
    assert (timings["prompt_ms"], timings["predicted_ms"]) == (500, 500)
    assert timings["predicted_per_second"] == pytest.approx(6)
    assert timings["prompt_per_second"] == pytest.approx(timings["prompt_n"] / 0.5)


def test_a_stream_is_role_deltas_finish_and_done(kit, server):
    server.engine.script = kit.reply(("reasoning", "hm"), "Hel", "lo")  # sent as one
    data = chunks(kit, server)
    assert [c["delta"] for c in choices(data)] == [
        {"role": "assistant", "content": ""}, {"reasoning_content": "hm", "reasoning": "hm"},
        {"content": "Hello"}, {},
    ]
    assert [c["finish_reason"] for c in choices(data)] == [None] * 3 + ["stop"]
    assert len({(each["id"], each["created"], each["model"], each["object"]) for each in data}) == 1
    assert data[0]["object"] == "chat.completion.chunk"
    assert not any("usage" in each for each in data)
    assert [("timings" in each) for each in data] == [False] * 3 + [True]


def test_usage_comes_last_where_it_is_asked_for(kit, server):
    server.engine.script = kit.reply("Hello", " you", cached=2)
    data = chunks(kit, server, stream_options={"include_usage": True})
    assert [each["usage"] for each in data[:-1]] == [None] * 3
    assert data[-1]["choices"] == [] and data[-1]["usage"]["completion_tokens"] == 2
    assert data[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


@pytest.mark.parametrize("reason, shown", [
    ("stop-token", "stop"), ("stop-string", "stop"), ("output-limit", "length"),
    ("context-capacity", "length"),
])
def test_reasons_to_finish(kit, server, reason, shown):
    server.engine.script = kit.reply("a", reason=reason)
    assert post(server).json()["choices"][0]["finish_reason"] == shown
    [*others, last] = choices(chunks(kit, server))
    assert last["finish_reason"] == shown
    assert {each["finish_reason"] for each in others} == {None}


def test_calls_come_whole_with_ids_of_their_own(kit, server):
    """Two of one tool; text before them; one finish, which is tool_calls."""
    calls = [ToolCall(0, "weather", '{"city": "東京"}'), ToolCall(1, "weather", '{"city": "x"}')]
    server.engine.script = kit.reply("Checking.", *calls)
    data = chunks(kit, server, tools=[WEATHER])
    found = [call for c in choices(data) for call in c["delta"].get("tool_calls", ())]
    assert [call["index"] for call in found] == [0, 1]
    assert len({call["id"] for call in found}) == 2
    assert [call["function"] for call in found] == [
        {"name": "weather", "arguments": each.arguments} for each in calls]
    assert [c["finish_reason"] for c in choices(data) if c["finish_reason"]] == ["tool_calls"]
    response = post(server, tools=[WEATHER])
    assert "東京".encode() in response.content
    whole = response.json()["choices"][0]
    assert whole["finish_reason"] == "tool_calls" and whole["message"]["content"] == "Checking."
    assert [c["function"]["arguments"] for c in whole["message"]["tool_calls"]] == [
        each.arguments for each in calls]
    assert all(set(c) == {"id", "type", "function"} for c in whole["message"]["tool_calls"])


def test_content_is_null_beside_calls_alone(kit, server):
    server.engine.script = kit.reply(ToolCall(0, "weather", "{}"))
    assert post(server, tools=[WEATHER]).json()["choices"][0]["message"]["content"] is None


def test_a_call_that_was_cut_is_no_call(kit, server):
    server.engine.script = kit.reply("Checking.", reason="output-limit")
    assert post(server, tools=[WEATHER]).json()["choices"][0]["finish_reason"] == "length"
    server.engine.script = kit.reply(ToolCall(0, "weather", "{}"), "<tool", reason="output-limit")
    assert post(server, tools=[WEATHER]).json()["choices"][0]["finish_reason"] == "length"


def test_reasoning_that_was_cut_is_no_content(kit, server):
    server.engine.script = kit.reply(("reasoning", "one, two"), reason="output-limit")
    choice = post(server).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"] == {
        "role": "assistant", "content": "", "refusal": None, "reasoning_content": "one, two",
        "reasoning": "one, two",
    }


def test_several_choices_are_told_apart(kit, server):
    server.engine.script = [kit.reply("a"), kit.reply("b", "c"), kit.reply("d")]
    body = post(server, n=3, seed=7).json()
    assert [c["index"] for c in body["choices"]] == [0, 1, 2]
    assert [c["message"]["content"] for c in body["choices"]] == ["a", "bc", "d"]
    assert body["usage"]["completion_tokens"] == 4
    assert [each.sampling.seed for each in server.engine.requests] == [7, 8, 9]
    server.engine.script = [kit.reply("a"), kit.reply("b", "c"), kit.reply("d")]
    data = chunks(kit, server, n=3)
    texts = ["".join(c["delta"].get("content", "") for c in choices(data, i)) for i in range(3)]
    assert texts == ["a", "bc", "d"]
    assert all(choices(data, i)[-1]["finish_reason"] == "stop" for i in range(3))


def test_more_choices_than_run_at_once_are_refused(server):
    response = post(server, n=5)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "n"


def scores(frontend, *texts):
    """Logprobs of texts, each one token, with two likeliest."""
    encode = frontend.tokenizer.encode
    ids = [encode(text, special=True) for text in texts]
    assert all(len(each) == 1 for each in ids)
    return Logprobs(tuple(
        TokenLogprob(token, -0.5, ((token, -0.5), (token + 1, -2.0))) for [token] in ids))


def test_logprobs_are_those_of_the_content(kit, server, frontend):
    """Reasoning and end tokens are none of it."""
    server.engine.script = kit.reply(
        scores(frontend, "h", "m", "</think>", "a", "b"), ("reasoning", "hm"), "ab",
        scores(frontend, "<|im_end|>"),
    )
    found = post(server, logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]
    assert [each["token"] for each in found["content"]] == ["a", "b"]
    entry = found["content"][0]
    assert (entry["logprob"], entry["bytes"]) == (-0.5, [97]) and found["refusal"] is None
    assert [each["logprob"] for each in entry["top_logprobs"]] == [-0.5, -2.0]
    assert server.engine.requests[-1].logprobs == 2
    data = chunks(kit, server, logprobs=True, top_logprobs=2)
    assert [c["logprobs"] for c in choices(data) if c["logprobs"]] == [found]


def test_progress_is_told_where_it_is_asked_for(kit, server):
    server.engine.script = kit.reply("a", cached=3)
    data = chunks(kit, server, return_progress=True)
    begun, read = (each["prompt_progress"] for each in data if "prompt_progress" in each)
    assert begun["processed"] == begun["cache"] == read["cache"] == 3
    assert read["processed"] == read["total"] == begun["total"] > 3
    assert read["time_ms"] >= begun["time_ms"] >= 0
    assert not any("prompt_progress" in each for each in chunks(kit, server))


def test_a_stop_string_leaves_no_empty_deltas(kit, server):
    server.engine.script = kit.reply("go ", reason="stop-string", stop="END")
    deltas = [c["delta"] for c in choices(chunks(kit, server, stop=["END"]))]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "go "}, {}]


def test_silence_is_broken_by_comments(kit, serve):
    server = serve(ROUTES, heartbeat_s=0.05)
    server.engine.script = kit.reply("a", 0.3, "b")
    text = post(server, stream=True).text
    assert text.count(": keep-alive\n\n") >= 3
    assert text.index('"a"') < text.rindex(": keep-alive") < text.index('"b"')


@pytest.mark.parametrize("cause, status, code", [
    (RequestError("no token may follow"), 400, "invalid_request"),
    (CapacityError("full"), 429, "server_overloaded"),
    (ValueError("secret"), 500, "internal_error"),
])
def test_failures_have_the_dialects_shape(kit, server, cause, status, code):
    server.engine.script = kit.reply("a", reason="error", cause=cause)
    response = post(server)
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == code
    assert "secret" not in response.text
    data = chunks(kit, server)
    assert data[-1]["error"] == error
    told = [each["choices"][0]["delta"].get("content") for each in data[:-1]]
    assert "a" in told  # though it may come in one batch with the failure


def test_what_cannot_be_submitted_is_no_stream(server):
    server.engine.refusal = CapacityError("too many requests")
    response = post(server, stream=True)
    assert response.status_code == 429 and "retry-after" in response.headers


def wait_for(condition):
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_noticed(kit, serve, stream):
    server = serve(ROUTES)
    server.engine.script = kit.reply("a", 30.0)

    with pytest.raises(httpx.ReadTimeout):
        server.client.post("/v1/chat/completions", json={"messages": HELLO, "stream": stream},
                           timeout=0.3)
    wait_for(lambda: server.engine.cancelled == [1])
    wait_for(lambda: server.service.pending == 0)


def test_surrogates_become_replacement_characters(kit, server):
    raw = b'{"messages": [{"role": "user", "content": "ok \\ud83d end"}]}'
    assert server.client.post("/v1/chat/completions", content=raw).status_code == 200
    assert "ok \N{REPLACEMENT CHARACTER} end" in server.engine.requests[-1].prompt.text
    for bad in (b'{"messages": "\xff"}', b"[]", b"{", b"\x00"):
        response = server.client.post("/v1/chat/completions", content=bad)
        assert response.status_code == 400
        assert json.loads(response.content)["error"]["type"] == "invalid_request_error"


def test_a_system_message_may_stand_anywhere(kit, server):
    roles = ("system", "user", "assistant", "developer", "user")
    messages = [{"role": role, "content": f"{i} {role}"} for i, role in enumerate(roles)]
    assert post(server, messages=messages).status_code == 200
    text = server.engine.requests[-1].prompt.text
    assert [text.index(each["content"]) for each in messages] == sorted(
        text.index(each["content"]) for each in messages)


def test_an_empty_message_is_one(server):
    assert post(server, messages=[{"role": "user", "content": ""}]).status_code == 200
    assert post(server, messages=[]).status_code == 400


def test_a_conversation_survives_a_call_that_was_no_json(server):
    """What a model once wrote is shown to it as text."""
    call = {"id": "c", "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "x'}}
    history = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "tool_call_id": "c", "content": None}]
    assert post(server, messages=history, tools=[WEATHER]).status_code == 200
    assert '{"city": "x' in server.engine.requests[-1].prompt.text
    call["function"] = {"arguments": "{}"}
    error = post(server, messages=history).json()["error"]
    assert error["param"] == "messages[1].tool_calls[0].function"


def test_descriptions_of_tools_are_not_escaped(server):
    tool = {"type": "function", "function": {"name": "f", "description": "查询天气 😀"}}
    post(server, tools=[tool])
    assert "查询天气 😀" in server.engine.requests[-1].prompt.text


@pytest.mark.parametrize("choice, names, required", [
    ("none", (), False), ("required", None, True), ("auto", None, False),
    ({"type": "function", "function": {"name": "weather"}}, ("weather",), True),
])
def test_the_engine_is_told_what_may_be_called(server, choice, names, required):
    post(server, tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False)
    calls = server.engine.requests[-1].calls
    assert (calls.names, calls.required, calls.parallel) == (names, required, False)


def test_an_answer_may_have_begun(server):
    messages = [*HELLO, {"role": "assistant", "content": "Well,"}]
    wanted = {"messages": messages, "continue_final_message": True, "enable_thinking": False}
    assert post(server, **wanted).status_code == 200
    assert server.engine.requests[-1].prompt.text.endswith("</think>\n\nWell,")
