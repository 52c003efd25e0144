"""Bodies of requests: what they ask for, and what is refused."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.api import CallRules, Grammar, PromptOptions, RequestError
from ninfer_serve.errors import status_of
from ninfer_serve.members import Members
from ninfer_serve.responses.request import HINTS, NOT_HERE, READ, read_request


def read(**body):
    return read_request(Members({"input": "hi", **body}), "tiny", lambda _: None)


def refusal(**body):
    with pytest.raises(RequestError) as error:
        read(**body)
    return error.value.where, status_of(error.value)


def test_the_least_that_can_be_asked():
    made = read()
    assert made.store and not made.stream and not made.seals
    serve = made.serve_request()
    assert serve.messages == [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert serve.sampling == {} and serve.max_tokens is None and serve.grammar is None
    assert serve.options == PromptOptions() and serve.calls == CallRules()
    assert serve.logprobs is None and serve.tools == () and serve.record == {}


def test_all_that_can_be_asked():
    schema = {"type": "object", "properties": {"é": {"type": "string"}}}
    made = read(
        model="tiny", instructions="Be brief", max_output_tokens=7, temperature=0.5, top_p=0.9,
        presence_penalty=1, frequency_penalty=-1, top_k=5, min_p=0.1, seed=-1, stop="x",
        stream=True, store=False, top_logprobs=3, reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "n", "schema": schema}},
        tools=[{"type": "function", "name": "add"}, {"type": "web_search"}], tool_choice="required",
        parallel_tool_calls=False, include=["reasoning.encrypted_content"], thinking_budget=9,
        metadata={"a": "b"}, truncation="disabled", background=False,
    )
    assert made.stream and not made.store and made.seals
    serve = made.serve_request()
    assert serve.messages[0] == {"role": "system", "content": "Be brief"}
    assert serve.sampling == {
        "temperature": 0.5, "top_p": 0.9, "presence_penalty": 1.0, "frequency_penalty": -1.0,
        "top_k": 5, "min_p": 0.1, "seed": 2**64 - 1}
    assert serve.max_tokens == 7 and serve.stop == ("x",) and serve.logprobs == 3
    assert serve.grammar == Grammar("json_schema", json.dumps(schema, ensure_ascii=False))
    assert serve.calls == CallRules(required=True, parallel=False)
    assert serve.options == PromptOptions(effort="low") and serve.thinking_budget == 9
    assert serve.record == {"effort": "low", "thinking_budget": 9, "tools_left_out": ["web_search"]}


@pytest.mark.parametrize(("text", "grammar"), [
    (None, None), ({}, None), ({"format": {"type": "text"}, "verbosity": "medium"}, None),
    ({"format": {"type": "json_object"}}, Grammar("json")),
])
def test_formats_of_text(text, grammar):
    assert read(text=text).serve.grammar == grammar


def test_log_probabilities_are_asked_for_by_either_name():
    assert read(include=["message.output_text.logprobs"]).serve.logprobs == 0
    assert read(top_logprobs=2).serve.logprobs == 2
    assert read(top_logprobs=0).serve.logprobs is None


def test_reasoning_of_earlier_turns():
    assert read(reasoning={"context": "all_turns"}).serve.options.preserve_thinking is True
    turn = read(reasoning={"context": "current_turn"})
    assert turn.serve_request((), True).options.preserve_thinking is False
    assert read().serve_request((), True).options.preserve_thinking is True


def test_most_tokens_are_what_fits_at_most():
    assert read(max_output_tokens=0).serve.max_tokens == 0
    assert read(max_output_tokens=10**30).serve.max_tokens == 2**31 - 1


def test_hints_are_taken():
    texts = ("prompt_cache_key", "safety_identifier", "user")
    hints = {name: "x" if name in texts else {"any": "thing"} for name in HINTS}
    read(**hints | {"max_tool_calls": 3})


@pytest.mark.parametrize(("body", "where", "status"), [
    ({"temprature": 1}, "temprature", (400, "unknown_parameter")),
    ({"conversation": "c"}, "conversation", (400, "unsupported_parameter")),
    ({"prompt": {"id": "p"}}, "prompt", (400, "unsupported_parameter")),
    ({"background": True}, "background", (400, "unsupported_parameter")),
    ({"truncation": "auto"}, "truncation", (400, "unsupported_parameter")),
    ({"text": {"verbosity": "low"}}, "text.verbosity", (400, "unsupported_parameter")),
    ({"model": "gpt"}, "model", (404, "model_not_found")),
    ({"input": None}, "input", (400, "invalid_request")),
    ({"input": []}, "input", (400, "invalid_request")),
    ({"max_output_tokens": -1}, "max_output_tokens", (400, "invalid_request")),
    ({"temperature": 2.1}, "temperature", (400, "invalid_request")),
    ({"top_logprobs": 21}, "top_logprobs", (400, "invalid_request")),
    ({"stream": "yes"}, "stream", (400, "invalid_request")),
    ({"include": ["x"]}, "include[0]", (400, "invalid_request")),
    ({"include": [["x"]]}, "include[0]", (400, "invalid_request")),
    ({"reasoning": {"effort": "some"}}, "reasoning.effort", (400, "invalid_request")),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode", (400, "invalid_request")),
    ({"reasoning": {"context": "x"}}, "reasoning.context", (400, "invalid_request")),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", (400, "invalid_request")),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema",
     (400, "invalid_request")),
    ({"text": {"format": {}}}, "text.format.type", (400, "invalid_request")),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", (400, "invalid_request")),
    ({"metadata": {"k" * 65: ""}}, "metadata", (400, "invalid_request")),
    ({"metadata": {"k": "v" * 513}}, "metadata.k", (400, "invalid_request")),
    ({"metadata": {"k": 1}}, "metadata.k", (400, "invalid_request")),
    ({"user": {}}, "user", (400, "invalid_request")),
    ({"previous_response_id": 3}, "previous_response_id", (400, "invalid_request")),
])
def test_what_would_have_no_effect_is_refused_where_it_is(body, where, status):
    assert refusal(**body) == (where, status)


def test_what_is_not_here_may_be_empty():
    for name in NOT_HERE:
        read(**{name: None})
        read(**{name: {}})


def test_a_next_turn_needs_no_input():
    assert read(input=None, previous_response_id="resp_1").previous == "resp_1"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "role", "content", "name", "id", "text", "call_id", "output",
                         "format", "tools", "effort", "a"]), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(READ | NOT_HERE)), JSON, max_size=6))
def test_any_body_is_read_or_refused(body):
    try:
        made = read_request(Members(body), "tiny", lambda _: None)
        made.serve_request()
    except RequestError as error:
        assert error.where


NAMES = st.sampled_from(["add", "patch", "a b", ""])
TEXT = st.sampled_from(["", "hi", "</think>", "<|im_end|>", "{", "\x00", "é"])
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["input_text", "output_text", "refusal", "input_image"])},
    optional={"text": TEXT, "refusal": TEXT, "image_url": TEXT})
CONTENT = TEXT | st.lists(PART, max_size=3)
ITEM = st.fixed_dictionaries(
    {"type": st.sampled_from([
        "message", "reasoning", "function_call", "function_call_output", "custom_tool_call",
        "custom_tool_call_output"])},
    optional={
        "role": st.sampled_from(["user", "assistant", "system", "developer"]), "content": CONTENT,
        "call_id": NAMES, "name": NAMES, "namespace": NAMES, "arguments": TEXT, "input": TEXT,
        "output": CONTENT, "summary": st.lists(PART, max_size=2), "encrypted_content": TEXT,
    })
TOOL = st.fixed_dictionaries(
    {"type": st.sampled_from(["function", "custom", "web_search"]), "name": NAMES},
    optional={"parameters": st.dictionaries(
        st.sampled_from(["type", "properties", "$ref", "anyOf"]), JSON), "description": TEXT})


@settings(max_examples=200, deadline=None)
@given(items=st.lists(ITEM, max_size=5), tools=st.lists(TOOL, max_size=2))
def test_any_conversation_is_rendered_or_refused(frontend, items, tools):
    """What comes from a client may fail as its fault, and never as ours."""
    with suppress(RequestError):
        serve = read(input=items, tools=tools).serve_request()
        prompt = frontend.prepare(serve.messages, tools=serve.tools, options=serve.options)
        frontend.parser(prompt).feed("<tool_call>\n<function=add>\n<parameter=a>\n1")
