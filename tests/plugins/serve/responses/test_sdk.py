"""OpenAI's own client against the Responses API."""

from __future__ import annotations

import json

import httpx
import openai
import pytest
from pydantic import BaseModel

from ninfer_core.api import ToolCall
from ninfer_core.engine.request import Logprobs, TokenLogprob

ADD = {"type": "function", "name": "add", "strict": False, "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}}}


@pytest.fixture
def client(server):
    http = httpx.Client(trust_env=False)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0,
                       http_client=http) as made:
        yield made


class Answer(BaseModel):
    value: int


def test_text(client, server, kit):
    server.engine.script = kit.reply(("reasoning", "hm"), "Hello")
    response = client.responses.create(model="tiny", input="hi", instructions="Be brief")
    assert response.output_text == "Hello" and response.status == "completed"
    assert response.usage.output_tokens == 2
    assert response.output[0].content[0].text == "hm"


def test_streamed_text_and_calls(client, server, kit):
    server.engine.script = kit.reply(("reasoning", "hm"), "Hel", "lo", ToolCall(0, "add", "{}"))
    with client.responses.stream(model="tiny", input="hi", tools=[ADD]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == "Hello"
    assert final.output[2].name == "add" and final.output[2].arguments == "{}"
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"


def test_an_answer_in_a_schema(client, server, kit):
    server.engine.script = kit.reply('{"value"', ": 7}")
    response = client.responses.parse(model="tiny", input="hi", text_format=Answer)
    assert response.output_parsed == Answer(value=7)
    grammar = server.engine.requests[-1].grammar
    assert grammar.kind == "json_schema"
    assert json.loads(grammar.source)["properties"]["value"]["type"] == "integer"


def test_a_tool_and_its_result_over_two_turns(client, server, kit):
    server.engine.script = kit.reply(ToolCall(0, "add", '{"a": 1}'))
    first = client.responses.create(model="tiny", input="1 + 1?", tools=[ADD])
    [call] = first.output
    server.engine.script = kit.reply("2")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "2"}
    stateless = [{"role": "user", "content": "1 + 1?"}, call.model_dump(), result]
    without = client.responses.create(model="tiny", input=stateless, tools=[ADD])
    prompt = server.prompt()
    stored = client.responses.create(
        model="tiny", previous_response_id=first.id, input=[result], tools=[ADD])
    assert stored.output_text == without.output_text == "2"
    assert server.prompt() == prompt


def test_stored_responses(client):
    made = client.responses.create(model="tiny", input="hi", metadata={"a": "b"})
    assert client.responses.retrieve(made.id) == made
    items = client.responses.input_items.list(made.id, limit=1, order="asc")
    assert [part.text for item in items for part in item.content] == ["hi"]
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_counting(client):
    counted = client.responses.input_tokens.count(model="tiny", input="hi", tools=[ADD])
    response = client.responses.create(model="tiny", input="hi", tools=[ADD])
    assert counted.input_tokens == response.usage.input_tokens


def test_a_custom_tool(client, server, kit):
    server.engine.script = kit.reply(ToolCall(0, "patch", '{"input": "*** Begin"}'))
    tool = {"type": "custom", "name": "patch", "description": "Edits files."}
    with client.responses.stream(model="tiny", input="hi", tools=[tool]) as stream:
        deltas = [e.delta for e in stream if e.type == "response.custom_tool_call_input.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output[0].input == "*** Begin"


def test_log_probabilities(client, server, kit, frontend):
    [token] = frontend.tokenizer.encode("a")
    server.engine.script = kit.reply(Logprobs((TokenLogprob(token, -0.25),)), "a")
    response = client.responses.create(
        model="tiny", input="hi", include=["message.output_text.logprobs"])
    [found] = response.output[0].content[0].logprobs
    assert (found.token, found.logprob, found.bytes) == ("a", -0.25, [97])


def test_errors(client, server, kit):
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(model="tiny", input="hi", temperature=3)
    assert error.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as error:
        client.responses.create(model="other", input="hi")
    assert error.value.code == "model_not_found"
    server.engine.script = kit.reply("a", reason="error", cause=ValueError("secret"))
    with client.responses.stream(model="tiny", input="hi") as stream:
        assert [event.type for event in stream][-1] == "response.failed"
