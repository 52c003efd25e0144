"""Bodies of Messages requests."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import CallRules, Grammar, PromptOptions, RequestError
from ninfer_serve.anthropic.request import read_request
from ninfer_serve.anthropic.thinking import Abilities
from ninfer_serve.members import Members

ALL = Abilities(think=True, skip=True, keep=True)
USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"ä": {"type": "string"}}}
FORMAT = {"type": "json_schema", "schema": SCHEMA}
MARK = {"cache_control": {"type": "ephemeral"}}


def read(**body):
    return read_request(Members({"messages": [USER], **body}), ALL)


def test_what_a_request_of_claude_code_comes_to():
    """The members that version 2.1 sends."""
    tool = {"name": "Bash", "description": "Runs.", "input_schema": SCHEMA}
    asked = read(
        model="any", max_tokens=32000, stream=True, tools=[tool], thinking={"type": "adaptive"},
        system=[{"type": "text", "text": "x-anthropic-billing-header: cch=a1b2c;"},
                {"type": "text", "text": "You are.", **MARK}],
        metadata={"user_id": "{}"}, output_config={"effort": "high"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    )
    assert (asked.model, asked.stream) == ("any", True)
    request = asked.serve
    assert [each["role"] for each in request.messages] == ["system", "user"]
    assert request.options == PromptOptions(True, "high", True)
    assert (request.max_tokens, request.sampling, request.stop) == (32000, {}, ())
    assert (request.calls, request.grammar, request.thinking_budget) == (CallRules(), None, None)
    assert request.record == {
        "dialect": "anthropic", "thinking": True, "effort": "high", "preserve_thinking": True,
    }


def test_sampling_stops_and_limits():
    asked = read(temperature=1, top_p=0.9, top_k=40, stop_sequences=["STOP", " "], max_tokens=0)
    assert asked.serve.sampling == {"temperature": 1.0, "top_p": 0.9, "top_k": 40}
    assert asked.serve.stop == ("STOP", " ")
    assert asked.serve.max_tokens == 0
    assert read(max_tokens=None).serve.max_tokens is None
    assert (read().model, read().stream) == ("", False)


@pytest.mark.parametrize("body", [{"output_config": {"format": FORMAT}}, {"output_format": FORMAT}])
def test_formats_are_grammars(body):
    grammar = Grammar("json_schema", json.dumps(SCHEMA, ensure_ascii=False))
    assert read(**body).serve.grammar == grammar


def test_what_is_not_known_is_ignored():
    asked = read(service_tier="auto", betas=["x"], inference_geo=None, mcp_servers=[], anything={})
    assert asked == read()


def test_breakpoints_are_limited():
    parts = [{"type": "text", "text": "a", **MARK} for _ in range(3)]
    body = {"system": parts, "messages": [{"role": "user", "content": parts[:1]}], **MARK}
    assert len(read(**body).serve.messages) == 2
    tool = {"name": "ls", "input_schema": {}, **MARK}
    with pytest.raises(RequestError, match="5 of at most 4"):
        read(**body, tools=[tool])


@pytest.mark.parametrize(("body", "where"), [
    ({"model": 3}, "model"), ({"stream": "yes"}, "stream"), ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "8"}, "max_tokens"), ({"temperature": 2.1}, "temperature"),
    ({"temperature": 10**400}, "temperature"), ({"top_k": -1}, "top_k"), ({"top_p": "1"}, "top_p"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"), ({"stop_sequences": ["a", 3]},
                                                      "stop_sequences[1]"),
    ({"stop_sequences": "STOP"}, "stop_sequences"),
    ({"output_config": {"format": {"type": "json"}}}, "output_config.format.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"output_format": {"schema": {}}}, "output_format.type"),
    ({"container": "c"}, "container"), ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ({"cache_control": {"type": "lasting"}}, "cache_control.type"),
    ({"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "cache_control.ttl"),
    ({"system": [{"type": "text", "text": "a", "cache_control": 3}]}, "system[0].cache_control"),
    ({"tools": [{"name": "n", "input_schema": {}, "cache_control": {}}]},
     "tools[0].cache_control.type"),
])
def test_what_is_malformed_is_named(body, where):
    with pytest.raises(RequestError) as error:
        read(**body)
    assert error.value.where == where


def test_a_continued_answer_has_no_format():
    messages = [USER, {"role": "assistant", "content": "{"}]
    assert read(messages=messages).serve.prefill == "{"
    with pytest.raises(RequestError, match="no format"):
        read(messages=messages, output_config={"format": FORMAT})


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
        "type", "text", "name", "input_schema", "cache_control", "effort", "format", "schema",
        "edits", "keep", "budget_tokens",
    ]), inner, max_size=4), max_leaves=8,
)
_NAMES = ["system", "tools", "tool_choice", "thinking", "output_config", "stop_sequences", "stream",
          "max_tokens", "temperature", "cache_control", "context_management", "model", "container"]


@given(st.dictionaries(st.sampled_from(_NAMES), _json, max_size=4))
def test_any_json_is_read_or_refused(body):
    try:
        read(**body)
    except RequestError as error:
        assert error.where
