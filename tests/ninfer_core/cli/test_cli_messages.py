"""Conversations read from JSON: what is accepted, and where errors point."""

from __future__ import annotations

import json
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import RequestError
from ninfer_core.cli.messages import ROLES, read_conversation

USER = {"role": "user", "content": "hi"}


@pytest.fixture
def write(tmp_path):
    def write(value):
        path = tmp_path / "chat.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
        return path

    return write


def test_an_array_is_the_messages(write):
    assert read_conversation(write([USER])) == ([USER], [])


def test_a_byte_order_mark_is_no_fault(write):
    assert read_conversation(write("\ufeff" + json.dumps([USER]))) == ([USER], [])


def test_an_object_may_bring_tools(write):
    tools = [{"type": "function", "function": {"name": "clock"}}]
    assert read_conversation(write({"messages": [USER], "tools": tools})) == ([USER], tools)


def test_an_assistant_that_calls_tools_needs_no_content(write):
    called = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}]
    call = {"role": "assistant", "content": None, "tool_calls": called}
    assert read_conversation(write([USER, call]))[0][1] == call


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("[1, ", "chat.json"),
        ("[" * 100_000, "chat.json"),
        (3, "top level"),
        ({"tools": []}, "top level"),
        ({"messages": [USER], "model": "x"}, "top level"),
        ([], "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": [USER], "tools": {}}, "tools"),
        ({"messages": [USER], "tools": [1]}, "tools[0]"),
        ([USER, "hi"], "messages[1]"),
        ([{"role": "wizard", "content": ""}], "messages[0].role"),
        ([{"role": ["user"], "content": ""}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "assistant", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text"}, {}]}], "messages[0].content[1]"),
        ([USER | {"role": "tool", "tool_call_id": 1}], "messages[0].tool_call_id"),
        ([USER | {"role": "assistant", "reasoning_content": []}], "messages[0].reasoning_content"),
        ([USER | {"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
        ([USER | {"tool_calls": [{"id": "1"}]}], "messages[0].tool_calls[0].function"),
        ([USER | {"tool_calls": [{"function": {"name": "f", "arguments": 5}}]}],
         "messages[0].tool_calls[0].function.arguments"),
    ],
)
def test_errors_name_the_place(write, value, place):
    with pytest.raises(RequestError) as caught:
        read_conversation(write(value))
    assert caught.value.where.endswith(place)


def test_a_dash_reads_stdin(monkeypatch):
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(json.dumps([USER]).encode())))
    assert read_conversation(Path("-")) == ([USER], [])


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(RequestError, match="No such file"):
        read_conversation(tmp_path / "absent.json")


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(ROLES),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["messages", "tools", "role", "content", "type", "tool_calls"]), inner),
))
def test_any_json_is_read_or_refused(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    try:
        messages, _ = read_conversation(path)
    except RequestError:
        return
    assert all(message["role"] in ROLES for message in messages)
