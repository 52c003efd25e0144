"""The official SDK against the server."""

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from ninfer_core.api import CapacityError, Grammar, ToolCall
from ninfer_core.engine.request import Logprobs, TokenLogprob

ROUTES = "ninfer_serve.openai.routes:routes"
HELLO = [{"role": "user", "content": "hi"}]
WEATHER = {"type": "function", "function": {
    "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}}


@pytest.fixture
def server(serve, kit):
    return serve(ROUTES, app=kit.AppOptions(api_keys=("k",)))


@pytest.fixture
def client(server):
    with OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
        yield client


def test_models_are_listed_and_found(client):
    [model] = client.models.list().data
    assert model == client.models.retrieve("tiny")
    assert (model.id, model.object, model.max_model_len) == ("tiny", "model", 4096)
    assert (model.type, model.display_name, model.max_input_tokens) == ("model", "tiny", 4096)
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("org/other")
    assert caught.value.code == "model_not_found"


def test_chat(kit, server, client):
    server.engine.script = kit.reply(("reasoning", "hm"), "Hello")
    answer = client.chat.completions.create(model="tiny", messages=HELLO)
    [choice] = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("Hello", "stop")
    assert choice.message.reasoning_content == "hm"
    assert answer.usage.completion_tokens == 2


def test_chat_streamed_with_tools(kit, server, client):
    call = ToolCall(0, "weather", '{"city": "x"}')
    server.engine.script = kit.reply("Let me", 0.02, " see.", call)
    with client.chat.completions.stream(
        model="tiny", messages=HELLO, tools=[WEATHER], stream_options={"include_usage": True},
    ) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion()
    assert {"content.delta", "tool_calls.function.arguments.done"} <= kinds
    [choice] = answer.choices
    assert choice.message.content == "Let me see." and choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", '{"city": "x"}')
    assert answer.usage.completion_tokens == 2
    history = [*HELLO, choice.message.to_dict(),
               {"role": "tool", "tool_call_id": call.id, "content": "warm"}]
    client.chat.completions.create(model="tiny", messages=history, tools=[WEATHER])
    text = server.engine.requests[-1].prompt.text
    assert "<parameter=city>\nx\n" in text and text.index("weather>") < text.index("warm")


def test_structured_output(kit, server, client):
    class Point(BaseModel):
        x: int

    server.engine.script = kit.reply('{"x": 3}')
    answer = client.chat.completions.parse(model="tiny", messages=HELLO, response_format=Point)
    assert answer.choices[0].message.parsed == Point(x=3)
    grammar = server.engine.requests[0].grammar
    assert isinstance(grammar, Grammar) and grammar.kind == "json_schema"


def test_logprobs(kit, server, client, frontend):
    [token] = frontend.tokenizer.encode("x")
    server.engine.script = kit.reply(
        Logprobs((TokenLogprob(token, -0.25, ((token, -0.25), (token + 1, -2.0))),)), "x")
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, logprobs=True, top_logprobs=2)
    [entry] = answer.choices[0].logprobs.content
    assert (entry.token, entry.logprob, entry.bytes) == ("x", -0.25, [120])
    assert [each.logprob for each in entry.top_logprobs] == [-0.25, -2.0]
    text = client.completions.create(model="tiny", prompt="a", logprobs=2).choices[0]
    assert text.logprobs.tokens == ["x"] and text.logprobs.token_logprobs == [-0.25]


def test_completions(kit, server, client):
    server.engine.script = kit.reply(" upon", 0.02, " a time")
    stream = client.completions.create(model="tiny", prompt="Once", stream=True)
    assert "".join(each.choices[0].text for each in stream) == " upon a time"
    assert client.completions.create(model="tiny", prompt="Once").choices[0].text == " upon a time"


@pytest.mark.parametrize("make, kind", [
    (lambda c: c.chat.completions.create(model="other", messages=HELLO), openai.NotFoundError),
    (lambda c: c.chat.completions.create(model="tiny", messages=[]), openai.BadRequestError),
    (lambda c: c.with_options(api_key="no").models.list(), openai.AuthenticationError),
])
def test_errors_are_those_of_the_sdk(client, make, kind):
    with pytest.raises(kind) as caught:
        make(client)
    assert caught.value.code and caught.value.type


def test_overload_is_a_rate_limit_and_a_failure_in_a_stream_is_raised(kit, server, client):
    server.engine.script = kit.reply("a", reason="error", cause=ValueError("broken"))
    with pytest.raises(openai.APIError, match="internal error"):
        list(client.chat.completions.create(model="tiny", messages=HELLO, stream=True))
    server.engine.refusal = CapacityError("full")
    with pytest.raises(openai.RateLimitError):
        client.chat.completions.create(model="tiny", messages=HELLO)
