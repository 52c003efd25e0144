"""The official SDK against the server."""

from __future__ import annotations

import json

import anthropic
import pytest
from anthropic import beta_tool
from pydantic import BaseModel

from ninfer_core.api import CallRules, CapacityError, ToolCall
from ninfer_serve.service import EngineGone

ROUTES = "ninfer_serve.anthropic.routes:routes"
TOOL = {"name": "ls", "description": "Lists.", "input_schema": {
    "type": "object", "properties": {"path": {"type": "string"}}}}
ASKED = {"model": "any", "max_tokens": 2000, "messages": [{"role": "user", "content": "hi"}]}
THINKING = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture
def server(serve):
    return serve(ROUTES, heartbeat_s=0.05)


@pytest.fixture
def client(server):
    with anthropic.Anthropic(
        base_url=server.url, api_key="any", max_retries=0,
        http_client=anthropic.DefaultHttpxClient(trust_env=False),
    ) as made:
        yield made


def test_create(server, client, kit):
    server.engine.script = kit.reply("Hello", cached=4)
    message = client.messages.create(**ASKED, system="Be brief", extra_body={"temperature": 0.5})
    assert message.content[0].text == "Hello"
    assert (message.stop_reason, message.usage.cache_read_input_tokens) == ("end_turn", 4)
    assert server.engine.requests[0].sampling.temperature == 0.5


def test_stream(server, client, kit):
    """With silence before and within: pings."""
    def script(request):
        yield 0.12
        yield from kit.reply(
            ("reasoning", "Hm"), ("reasoning", "."), 0.12, "I ", "look.",
            ToolCall(0, "ls", '{"path": "東"}'), cached=4)(request)

    server.engine.script = script
    with client.messages.stream(**ASKED, tools=[TOOL], thinking=THINKING) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    thinking, text, call = message.content
    assert (thinking.thinking, text.text, call.input) == ("Hm.", "I look.", {"path": "東"})
    assert thinking.signature
    assert message.stop_reason == "tool_use"
    assert (message.usage.cache_read_input_tokens, message.usage.output_tokens) == (4, 4)


def test_the_answer_goes_back_as_it_came(server, client, kit):
    server.engine.script = [
        kit.reply(("reasoning", "Hm."), ToolCall(0, "ls", '{"path": "."}')), kit.reply("Two."),
    ]
    asked = {**ASKED, "tools": [TOOL], "thinking": THINKING}
    first = client.messages.create(**asked)
    result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "a b"}
    asked["messages"] = [*ASKED["messages"], {"role": "assistant", "content": first.content},
                         {"role": "user", "content": [result]}]
    assert client.messages.create(**asked).content[0].text == "Two."
    before, after = (request.prompt for request in server.engine.requests)
    assert after.token_ids[:len(before.token_ids)] == before.token_ids
    assert "<parameter=path>\n.\n</parameter>" in after.text
    assert "a b" in after.text


def test_tool_choice(server, client):
    for choice, rules in (
        ({"type": "any"}, CallRules(required=True)),
        ({"type": "tool", "name": "ls", "disable_parallel_tool_use": True},
         CallRules(required=True, names=("ls",), parallel=False)),
        ({"type": "none"}, CallRules(names=())),
    ):
        client.messages.create(**ASKED, tools=[TOOL], tool_choice=choice)
        assert server.engine.requests[-1].calls == rules


def test_tool_runner(server, client, kit):
    @beta_tool
    def add(a: int, b: int) -> str:
        """Add.

        Args:
            a: One.
            b: Another.
        """
        return str(a + b)

    server.engine.script = [kit.reply(ToolCall(0, "add", '{"a": 2, "b": 3}')), kit.reply("Five.")]
    last = client.beta.messages.tool_runner(**ASKED, tools=[add]).until_done()
    assert last.content[0].text == "Five."
    assert "5" in server.engine.requests[1].prompt.text.rpartition("user")[2]


class Colour(BaseModel):
    name: str
    red: int


def test_parse(server, client, kit):
    server.engine.script = kit.reply('{"name": "ro', 't", "red": 255}')
    parsed = client.messages.parse(**ASKED, output_format=Colour).parsed_output
    assert parsed == Colour(name="rot", red=255)
    grammar = server.engine.requests[0].grammar
    assert grammar.kind == "json_schema"
    assert json.loads(grammar.source)["properties"].keys() == {"name", "red"}


def test_beta(server, client):
    message = client.beta.messages.create(
        **{**ASKED, "messages": [*ASKED["messages"], {"role": "system", "content": "French."}]},
        betas=["context-management-2025-06-27", "mid-conversation-system-2026-04-07"],
        thinking={"type": "adaptive"}, output_config={"effort": "high"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    )
    assert message.content[0].text == "Hello"
    prompt = server.engine.requests[0].prompt
    assert prompt.reasoning_open
    assert prompt.text.index("hi") < prompt.text.index("<|im_start|>system\nFrench.")


def test_count_tokens(server, client):
    body = {"model": "any", "messages": ASKED["messages"], "tools": [TOOL], "system": "Be brief"}
    usage = client.messages.create(max_tokens=10, **body).usage
    assert client.messages.count_tokens(**body).input_tokens == usage.input_tokens
    assert client.beta.messages.count_tokens(**body).input_tokens == usage.input_tokens


def test_errors(server, client, kit):
    with pytest.raises(anthropic.BadRequestError) as error:
        client.messages.create(**{**ASKED, "messages": []})
    assert error.value.body["error"]["type"] == "invalid_request_error"
    assert error.value.request_id
    for refusal, status in ((CapacityError("busy"), 529), (EngineGone("gone"), 503)):
        server.engine.refusal = refusal
        with pytest.raises(anthropic.InternalServerError) as failed:
            client.messages.create(**ASKED)
        assert failed.value.status_code == status
    server.engine.refusal = None
    server.engine.script = kit.reply("Hel", reason="error", cause=EngineGone("the engine ended"))
    with pytest.raises(anthropic.APIStatusError, match="the engine ended"), \
            client.messages.stream(**ASKED) as stream:
        stream.get_final_message()


def test_limits_are_told(server, client, kit):
    for reason, wanted in (("output-limit", "max_tokens"),
                           ("context-capacity", "model_context_window_exceeded")):
        server.engine.script = kit.reply("a", reason=reason)
        assert client.messages.create(**ASKED).stop_reason == wanted
