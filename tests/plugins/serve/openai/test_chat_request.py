"""From the body of a chat completion to a request, or to a refusal that names the place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import CallRules, Grammar, PromptOptions, RequestError
from ninfer_serve.members import Members
from ninfer_serve.openai.chat_request import read_chat

HELLO = [{"role": "user", "content": "hi"}]


def tool(name, **fields):
    return {"type": "function", "function": {"name": name, **fields}}


def read(**body):
    return read_chat(Members({"messages": HELLO, **body}), "tiny")


def refused(**body):
    with pytest.raises(RequestError) as caught:
        read(**body)
    return caught.value


def test_a_bare_conversation_leaves_all_to_the_model():
    found = read()
    assert found.serve.messages == ({"role": "user", "content": "hi"},)
    assert found.serve.sampling == {} and found.serve.max_tokens is None
    assert (found.serve.num_choices, found.serve.calls) == (1, CallRules())
    assert not (found.view.stream or found.view.usage or found.view.progress)


def test_generation_is_read_in_full():
    found = read(
        temperature=0, top_p=0.5, top_k=-1, min_p=0.1, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=1.1, seed=-2, stop=["a", "b"], max_tokens=7, n=2, min_tokens=3,
        ignore_eos=True, stop_token_ids=[5], cache_prompt=False,
    ).serve
    assert found.sampling == {
        "temperature": 0.0, "top_p": 0.5, "top_k": 0, "min_p": 0.1, "presence_penalty": 1.0,
        "frequency_penalty": -1.0, "repetition_penalty": 1.1, "seed": 2**64 - 2,
    }
    assert (found.stop, found.max_tokens, found.num_choices, found.min_tokens) == (
        ("a", "b"), 7, 2, 3)
    assert found.ignore_eos and found.stop_token_ids == {5} and not found.use_cache


@pytest.mark.parametrize("body, expected", [
    ({}, None), ({"max_tokens": None}, None), ({"max_tokens": 0}, 0), ({"max_tokens": 8.0}, 8),
    ({"max_tokens": 10**30}, 2**31 - 1), ({"max_completion_tokens": 5}, 5),
    ({"max_tokens": 5, "max_completion_tokens": 5}, 5),
])
def test_the_limit_of_output(body, expected):
    assert read(**body).serve.max_tokens == expected


@pytest.mark.parametrize("body, where", [
    ({"messages": []}, "messages"), ({"messages": None}, "messages"), ({"messages": 3}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"), ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
    ({"model": "other"}, "model"), ({"model": 3}, "model"),
    ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ({"temperature": 2.1}, "temperature"), ({"temperature": "1"}, "temperature"),
    ({"top_p": -0.1}, "top_p"), ({"top_k": -2}, "top_k"), ({"n": 0}, "n"), ({"n": 1.5}, "n"),
    ({"stop": ""}, "stop[0]"), ({"stop": ["a", 3]}, "stop[1]"), ({"stop": ["x"] * 17}, "stop"),
    ({"stop": {}}, "stop"), ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"seed": 2**64}, "seed"), ({"stream": "yes"}, "stream"), ({"stream_options": 1},
                                                               "stream_options"),
    ({"logit_bias": {"5": 1}}, "logit_bias"), ({"functions": [{}]}, "functions"),
    ({"function_call": {"name": "x"}}, "function_call"), ({"store": True}, "store"),
    ({"audio": {}, "modalities": ["text", "audio"]}, "modalities"), ({"verbosity": "low"},
                                                                     "verbosity"),
    ({"web_search_options": {"a": 1}}, "web_search_options"), ({"guided_json": {"a": 1}},
                                                               "guided_json"),
    ({"top_logprobs": 3}, "logprobs"), ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"json_schema": {"a": 1}}, "json_schema"),
    ({"response_format": {"type": "json_object", "schema": 3}}, "response_format.schema"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice[1]"),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
    ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
     "structured_outputs"),
    ({"reasoning_effort": "huge"}, "reasoning_effort"),
    ({"chat_template_kwargs": {"colour": 1}}, "chat_template_kwargs.colour"),
    ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking"),
    ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
     "enable_thinking"),
    ({"thinking_budget": 0}, "thinking_budget"),
])
def test_what_is_wrong_is_named(body, where):
    assert refused(**body).where == where


@pytest.mark.parametrize("body", [
    {"logit_bias": {}}, {"logit_bias": {"5": 0}}, {"logit_bias": None}, {"functions": []},
    {"function_call": "auto"}, {"modalities": ["text"]}, {"verbosity": "medium"}, {"store": False},
    {"user": "me", "metadata": {"a": 1}, "service_tier": "auto", "unknown": [1]},
    {"logprobs": False, "top_logprobs": 0}, {"response_format": {"type": "text"}},
    {"tool_choice": "auto"}, {"tool_choice": "none"}, {"tools": []}, {"parallel_tool_calls": False},
    {"model": "tiny"}, {"structured_outputs": {}},
])
def test_what_changes_nothing_is_taken(body):
    assert read(**body).serve == read().serve


def test_thinking_is_read_wherever_it_stands():
    assert read(reasoning_effort="high").serve.options == PromptOptions(effort="high")
    assert read(reasoning={"effort": "low", "max_tokens": 5}).serve.thinking_budget == 5
    found = read(chat_template_kwargs={"enable_thinking": False, "thinking": False},
                 enable_thinking=False, preserve_thinking=True).serve
    assert found.options == PromptOptions(thinking=False, preserve_thinking=True)
    assert found.record == {"thinking": False}
    assert read(thinking_budget=40).serve.record == {"thinking_budget": 40}


SCHEMA = {"type": "object", "properties": {"ü": {"type": "string"}}}


@pytest.mark.parametrize("body, expected", [
    ({"response_format": {"type": "json_object"}}, Grammar("json")),
    ({"response_format": {"type": "json_object", "schema": {}}}, Grammar("json_schema", "{}")),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "name": "x"}}},
     Grammar("json_schema", '{"type": "object", "properties": {"ü": {"type": "string"}}}')),
    ({"structured_outputs": {"json": SCHEMA}},
     Grammar("json_schema", '{"type": "object", "properties": {"ü": {"type": "string"}}}')),
    ({"structured_outputs": {"regex": "a+"}}, Grammar("regex", "a+")),
    ({"structured_outputs": {"choice": ["ja", "né"]}}, Grammar("choice", '["ja", "né"]')),
    ({"structured_outputs": {"grammar": "start: x"}}, Grammar("grammar", "start: x")),
])
def test_grammars(body, expected):
    assert read(**body).serve.grammar == expected


TOOLS = [tool("a"), tool("b", strict=True, parameters={"type": "object"})]


@pytest.mark.parametrize("body, expected", [
    ({}, CallRules(strict=frozenset("b"))),
    ({"tool_choice": "auto", "parallel_tool_calls": False},
     CallRules(parallel=False, strict=frozenset("b"))),
    ({"tool_choice": "none"}, CallRules(names=(), strict=frozenset("b"))),
    ({"tool_choice": "required"}, CallRules(required=True, strict=frozenset("b"))),
    ({"tool_choice": tool("a")}, CallRules(required=True, names=("a",), strict=frozenset("b"))),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "auto", "tools": [tool("b")]}}}, CallRules(names=("b",), strict=frozenset("b"))),
    ({"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [tool("a")]}},
     CallRules(required=True, names=("a",), strict=frozenset("b"))),
])
def test_choices_of_tools(body, expected):
    found = read(tools=TOOLS, **body).serve
    assert found.calls == expected and found.tools == tuple(TOOLS)


@pytest.mark.parametrize("body, where", [
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"tools": [3]}, "tools[0]"),
    ({"tools": [{"function": {"name": "a"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [tool("a b")]}, "tools[0].function.name"),
    ({"tools": [tool("a"), tool("a")]}, "tools[1].function.name"),
    ({"tools": [tool("a", parameters=[])]}, "tools[0].function.parameters"),
    ({"tool_choice": "required"}, "tool_choice"), ({"tool_choice": "any"}, "tool_choice"),
    ({"tool_choice": 3}, "tool_choice"), ({"tools": TOOLS, "tool_choice": {}}, "tool_choice.type"),
    ({"tools": TOOLS, "tool_choice": tool("c")}, "tool_choice.function.name"),
])
def test_malformed_tools_are_named(body, where):
    assert refused(**body).where == where


def test_older_members_are_read_as_their_newer_ones():
    found = read(messages=[
        {"role": "assistant", "content": None,
         "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "3"},
        {"role": "assistant", "refusal": "no"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]).serve.messages
    assert found[0]["tool_calls"] == [
        {"id": "f", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert (found[1]["role"], found[1]["tool_call_id"]) == ("tool", "f")
    assert found[2]["content"] == "no"
    assert found[3]["content"] == [{"type": "text", "text": "no"}]


def test_an_answer_goes_on_from_the_last_message_where_that_is_asked_for():
    messages = [*HELLO, {"role": "assistant", "content": "Well,"}]
    assert len(read(messages=messages).serve.messages) == 2
    found = read(messages=messages, continue_final_message=True).serve
    assert (found.messages, found.prefill) == (tuple(HELLO), "Well,")
    for wrong in (HELLO, messages[1:], [*HELLO, {"role": "assistant", "content": None}]):
        assert refused(messages=wrong, continue_final_message=True).where == (
            "continue_final_message")


NAMES = ["messages", "model", "max_tokens", "stop", "tools", "tool_choice", "response_format",
         "structured_outputs", "chat_template_kwargs", "reasoning", "logprobs", "n", "seed",
         "logit_bias", "stream_options", "function_call", "stop_token_ids", "modalities"]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.sampled_from(
    ["role", "content", "type", "function", "name", "tools", "json_schema", "choice"]) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(NAMES) | st.text(), VALUES, max_size=5))
def test_any_object_is_read_or_refused(body):
    try:
        read(**{name: value for name, value in body.items() if name != "self"})
    except RequestError as error:
        assert error.where
