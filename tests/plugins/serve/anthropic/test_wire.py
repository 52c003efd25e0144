"""Requests and answers as they go over the wire."""

from __future__ import annotations

import json
import time

import pytest

from ninfer_core.api import CapacityError, PreparedPrompt, RequestError, ToolCall
from ninfer_serve.service import EngineGone

ROUTES = "ninfer_serve.anthropic.routes:routes"
BODY = {"model": "claude", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
TOOLS = [{"name": "ls", "description": "Lists.", "input_schema": {"type": "object"}}]


@pytest.fixture
def server(serve):
    return serve(ROUTES, heartbeat_s=0.2)


def post(server, path="/v1/messages", **more):
    return server.client.post(path, json={**BODY, **more})


def stream(server, kit, **more):
    answer = post(server, stream=True, **more)
    assert answer.status_code == 200
    return kit.events_of(answer.text)


def test_one_message(server, kit):
    server.engine.script = kit.reply("Hel", "lo", cached=5)
    answer = post(server)
    assert answer.headers["content-type"] == "application/json"
    message = answer.json()
    prompt = server.engine.requests[0].prompt
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message", "role": "assistant", "model": "claude",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": len(prompt.token_ids) - 5, "cache_creation_input_tokens": 0,
                  "cache_read_input_tokens": 5, "output_tokens": 2,
                  "output_tokens_details": {"thinking_tokens": 0}},
    }


def test_the_bytes_of_a_stream(server, kit):
    server.engine.script = kit.reply(("reasoning", "Hm."), "Hel", "lo 🦊", cached=3)  # sent as one
    answer = post(server, stream=True, thinking={"type": "adaptive"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    length = len(server.engine.requests[0].prompt.token_ids)
    events = kit.events_of(answer.text)
    answer_id = events[0][1]["message"]["id"]
    signature = events[3][1]["delta"]["signature"]
    usage = (f'"input_tokens":{length - 3},"cache_creation_input_tokens":0,'
             '"cache_read_input_tokens":3,"output_tokens":')
    wanted = [
        ("message_start", '"message":{"id":"' + answer_id + '","type":"message",'
         '"role":"assistant","model":"claude","content":[],"stop_reason":null,'
         '"stop_sequence":null,"usage":{' + usage + '0,"output_tokens_details":'
         '{"thinking_tokens":0}}}'),
        ("content_block_start", '"index":0,"content_block":{"type":"thinking","thinking":"",'
         '"signature":""}'),
        ("content_block_delta", '"index":0,"delta":{"type":"thinking_delta","thinking":"Hm."}'),
        ("content_block_delta",
         '"index":0,"delta":{"type":"signature_delta","signature":"' + signature + '"}'),
        ("content_block_stop", '"index":0'),
        ("content_block_start", '"index":1,"content_block":{"type":"text","text":""}'),
        ("content_block_delta", '"index":1,"delta":{"type":"text_delta","text":"Hello 🦊"}'),
        ("content_block_stop", '"index":1'),
        ("message_delta", '"delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{'
         + usage + '3,"output_tokens_details":{"thinking_tokens":3}}'),
        ("message_stop", ""),
    ]
    assert answer.text == "".join(
        f'event: {name}\ndata: {{"type":"{name}"{"," if rest else ""}{rest}}}\n\n'
        for name, rest in wanted
    )


def test_thinking_text_and_calls_in_turn(server, kit):
    server.engine.script = kit.reply(
        ("reasoning", "Hm."), "I look.", ToolCall(0, "ls", '{"path": "."}'),
        ToolCall(1, "ls", "{}"), "Done.",
    )
    events = stream(server, kit, tools=TOOLS, thinking={"type": "adaptive"})
    assert all(name == data["type"] for name, data in events)
    starts = [data for name, data in events if name == "content_block_start"]
    assert [each["index"] for each in starts] == [0, 1, 2, 3, 4]
    assert [each["content_block"]["type"] for each in starts] == [
        "thinking", "text", "tool_use", "tool_use", "text",
    ]
    arguments = [data["delta"]["partial_json"] for _, data in events
                 if data.get("delta", {}).get("type") == "input_json_delta"]
    assert [json.loads(each) for each in arguments] == [{"path": "."}, {}]
    assert events[-2][1]["delta"]["stop_reason"] == "tool_use"
    whole = post(server, tools=TOOLS, thinking={"type": "adaptive"}).json()
    assert [each["type"] for each in whole["content"]] == [
        "thinking", "text", "tool_use", "tool_use", "text",
    ]
    assert whole["stop_reason"] == "tool_use"


def test_a_call_that_was_cut_is_none(server, kit):
    server.engine.script = kit.reply("I look.", reason="output-limit")
    message = post(server, tools=TOOLS).json()
    assert (len(message["content"]), message["stop_reason"]) == (1, "max_tokens")


def test_stop_sequences(server, kit):
    server.engine.script = kit.reply("A B ", reason="stop-string", stop="HALT")
    message = post(server, stop_sequences=["STOP", "HALT"]).json()
    assert message["content"] == [{"type": "text", "text": "A B "}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "HALT")
    delta = stream(server, kit, stop_sequences=["STOP", "HALT"])[-2][1]["delta"]
    assert delta == {"stop_reason": "stop_sequence", "stop_sequence": "HALT"}
    assert server.engine.requests[0].stop == ("STOP", "HALT")


def test_an_empty_answer(server, kit):
    server.engine.script = kit.reply()
    assert post(server).json()["content"] == []
    assert [name for name, _ in stream(server, kit)] == [
        "message_start", "message_delta", "message_stop",
    ]


def test_silence_is_filled_with_pings(serve, kit):
    server = serve(ROUTES, heartbeat_s=0.05)

    def script(request):
        yield 0.18
        yield from kit.reply("a", 0.18, "b")(request)

    server.engine.script = script
    names = [name for name, _ in stream(server, kit)]
    first = names.index("message_start")
    assert set(names[:first]) == {"ping"}
    assert "ping" in names[first:names.index("content_block_stop")]
    assert names[-1] == "message_stop"
    ends = [name for name in names if name.startswith("message_s")]
    assert ends == ["message_start", "message_stop"]


def test_a_failure_in_a_stream_is_its_last_event(server, kit):
    server.engine.script = kit.reply("Hel", reason="error", cause=EngineGone("the engine ended"))
    events = stream(server, kit)
    assert [name for name, _ in events][-3:] == [
        "content_block_start", "content_block_delta", "error",
    ]
    assert events[-1][1]["type"] == "error"
    assert events[-1][1]["error"] == {"type": "api_error", "message": "the engine ended"}


def test_failures_of_whole_answers(server, kit):
    for cause, reason, status, kind in (
        (EngineGone("gone"), "error", 503, "api_error"),
        (RequestError("dead end"), "error", 400, "invalid_request_error"),
        (None, "deadline", 504, "timeout_error"), (ValueError("bug"), "error", 500, "api_error"),
    ):
        server.engine.script = kit.reply("Hel", reason=reason, cause=cause)
        answer = post(server)
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
        assert answer.json()["request_id"] == answer.headers["request-id"]


@pytest.mark.parametrize("streaming", [False, True])
def test_what_fails_before_the_answer_has_a_status(server, streaming):
    for refusal, status, kind in (
        (CapacityError("busy"), 529, "overloaded_error"), (EngineGone("gone"), 503, "api_error"),
    ):
        server.engine.refusal = refusal
        answer = post(server, stream=streaming)
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
        assert "retry-after" in answer.headers


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_bodies_that_are_none(server, path):
    for body in (
        b"", b"[]", b"{", b"\xff{}", b'{"messages": NaN}', b"[" * 100000,
        b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": "many"}',
    ):
        answer = server.client.post(path, content=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_lone_surrogates_do_not_end_a_conversation(server):
    body = json.dumps(BODY).replace("hi", "ok \\ud83d end")
    assert server.client.post("/v1/messages", content=body).status_code == 200
    assert "ok \ufffd end" in server.engine.requests[0].prompt.text


def test_a_client_that_leaves_ends_its_answer(server, kit):
    server.engine.script = kit.reply("a", 30.0)
    with server.client.stream("POST", "/v1/messages", json={**BODY, "stream": True}) as answer:
        next(answer.iter_bytes())
    with pytest.raises(Exception, match="timed out"):
        server.client.post("/v1/messages", json=BODY, timeout=0.3)
    deadline = time.monotonic() + 10
    while server.engine.running and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(server.engine.cancelled) == 2


def count(server, **more):
    answer = post(server, "/v1/messages/count_tokens?beta=true", **more)
    assert answer.status_code == 200
    return answer.json()


def test_counts_are_those_of_the_answer(server, kit):
    """Also of what is no message."""
    server.engine.script = kit.reply("Hello", cached=7)
    body = {
        "system": [{"type": "text", "text": "Be brief."}], "thinking": {"type": "adaptive"},
        "tools": [{**TOOLS[0], "name": f"t{index}"} for index in range(3)],
        "messages": [
            {"role": "user", "content": "list"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "tool_use", "id": "t", "name": "t0", "input": {"path": "."}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": "a b"}]},
        ],
    }
    usage = post(server, "/v1/messages?beta=true", **body).json()["usage"]
    assert count(server, **body) == {
        "input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]
    }
    assert len(server.engine.requests) == 1
    assert count(server)["input_tokens"] < usage["input_tokens"]


def test_a_later_request_begins_like_the_one_before(server):
    """The billing nonce differs, a system message and the answer have come."""
    def ask(nonce, *messages):
        billing = {"type": "text", "text": f"x-anthropic-billing-header: cch={nonce};"}
        system = [billing, {"type": "text", "text": "You help."}]
        post(server, system=system, messages=list(messages), thinking={"type": "adaptive"},
             context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})
        return server.engine.requests[-1].prompt

    user = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    note = {"role": "system", "content": "tokens left: 9000"}
    first = ask("a1b2c", user, note)
    second = ask("d3e4f", user, note, {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "Hello"}]},
        {"role": "system", "content": "tokens left: 8700"}, {"role": "user", "content": "more"})
    assert second.text.startswith(first.text + "Hm.\n</think>\n\nHello")
    assert second.token_ids[:len(first.token_ids)] == first.token_ids
    assert "<|im_start|>system\ntokens left: 8700<|im_end|>" in second.text


def test_an_answer_goes_on_from_a_text(server, kit):
    messages = [*BODY["messages"], {"role": "assistant", "content": "The </think> is ("}]
    post(server, messages=messages)
    prompt = server.engine.requests[0].prompt
    assert prompt.text.endswith("</think>\n\nThe </think> is (")
    assert not prompt.reasoning_open
    controls = server.service.frontend.tokenizer.control_ids
    assert prompt.token_ids.count(controls["</think>"]) == 1
    refused = post(server, messages=messages, thinking={"type": "enabled", "budget_tokens": 2000})
    assert refused.status_code == 400


def test_thinking_reaches_template_and_engine(server):
    post(server, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)
    post(server)
    thinking, plain = server.engine.requests
    assert (thinking.prompt.reasoning_open, thinking.thinking_budget) == (True, 1024)
    assert (plain.prompt.reasoning_open, plain.thinking_budget) == (False, None)


def test_marks_reach_the_engine(server):
    mark = {"cache_control": {"type": "ephemeral"}}
    post(server, messages=[{"role": "user", "content": [
        {"type": "text", "text": "a long document", **mark}, {"type": "text", "text": "its title?"}
    ]}])
    prompt: PreparedPrompt = server.engine.requests[0].prompt
    tokenizer = server.service.frontend.tokenizer
    marked = b"".join(map(tokenizer.token_bytes, prompt.token_ids[:prompt.marks[0]]))
    assert marked.endswith(b"a long document")
    assert len(prompt.marks) == 1


def test_claude_code_asks_first_whether_there_is_a_server(serve, kit):
    server = serve(ROUTES, app=kit.AppOptions(api_keys=("k",)))
    assert server.client.head("/").status_code == 200
    refused = post(server)
    assert refused.status_code == 401
    assert refused.json()["error"]["type"] == "authentication_error"


def test_without_a_model_the_answer_names_the_one_there_is(server):
    body = {key: value for key, value in BODY.items() if key != "model"}
    assert server.client.post("/v1/messages", json=body).json()["model"] == "tiny"
