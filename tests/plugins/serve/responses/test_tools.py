"""Tools of the Responses API, to the model and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import CallRules, RequestError, ToolCall
from ninfer_serve.members import Members
from ninfer_serve.responses.tools import (
    custom_arguments,
    custom_input,
    read_choice,
    read_tools,
)

ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
PATCH = {"type": "custom", "name": "patch", "description": "Edits files.",
         "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}}
AGENTS = {"type": "namespace", "name": "agents", "description": "Others.", "tools": [
    {"type": "function", "name": "close", "parameters": {"type": "object"}, "strict": True},
    {"type": "custom", "name": "note"},
]}


def tools_of(*tools):
    return read_tools(Members({"tools": list(tools)}))


def rules(choice, *tools, **members):
    body = Members({"tools": list(tools), "tool_choice": choice, **members})
    return read_choice(body, read_tools(body))


def test_functions_are_declared_as_they_are():
    tools = tools_of({**ADD, "description": "Adds.", "strict": False})
    assert tools.functions == ({"type": "function", "function": {
        "name": "add", "description": "Adds.", "parameters": ADD["parameters"]}},)
    assert tools.strict == frozenset()
    assert tools.item(ToolCall(0, "add", '{"a": 1}')) == {
        "type": "function_call", "name": "add", "arguments": '{"a": 1}'}


def test_a_function_without_parameters_takes_none():
    assert tools_of({"type": "function", "name": "now"}).functions[0]["function"] == {
        "name": "now", "parameters": {"type": "object", "properties": {}}}


def test_a_custom_tool_is_a_function_of_one_text():
    tools = tools_of(PATCH)
    [function] = [each["function"] for each in tools.functions]
    assert function["parameters"]["required"] == ["input"]
    assert 'start: "x"' in function["parameters"]["properties"]["input"]["description"]
    call = ToolCall(0, "patch", custom_arguments("*** Begin\n+\"é\""))
    assert tools.item(call) == {
        "type": "custom_tool_call", "name": "patch", "input": "*** Begin\n+\"é\""}


def test_tools_of_a_namespace_come_back_with_it():
    tools = tools_of(ADD, AGENTS)
    assert list(tools.origins) == ["add", "agents__close", "agents__note"]
    assert tools.item(ToolCall(0, "agents__close", "{}")) == {
        "type": "function_call", "name": "close", "namespace": "agents", "arguments": "{}"}
    assert tools.item(ToolCall(1, "agents__note", '{"input": "x"}')) == {
        "type": "custom_tool_call", "name": "note", "namespace": "agents", "input": "x"}
    assert tools.strict == {"agents__close"}


def test_hosted_tools_are_left_out_and_named():
    tools = tools_of({"type": "web_search", "external_web_access": True}, ADD,
                     {"type": "mcp", "server_label": "x"})
    assert [*tools.origins] == ["add"]
    assert tools.left_out == ("web_search", "mcp")


@pytest.mark.parametrize(("tool", "where"), [
    (3, "tools[0]"), ({}, "tools[0].type"), ({"type": "function"}, "tools[0].name"),
    ({"type": "function", "name": "a b"}, "tools[0].name"),
    ({"type": "function", "name": "a" * 65}, "tools[0].name"),
    ({"type": "function", "name": "a", "parameters": "{}"}, "tools[0].parameters"),
    ({"type": "function", "name": "a", "strict": "yes"}, "tools[0].strict"),
    ({"type": "custom", "name": "a", "format": {"type": "grammar"}}, "tools[0].format.definition"),
    ({"type": "namespace", "name": "n", "tools": [{"type": "function"}]}, "tools[0].tools[0].name"),
])
def test_malformed_tools_are_named_by_their_place(tool, where):
    with pytest.raises(RequestError) as error:
        tools_of(tool)
    assert error.value.where == where


def test_two_tools_cannot_have_one_name():
    flat = {"type": "function", "name": "agents__close"}
    for pair in ((ADD, {**PATCH, "name": "add"}), (AGENTS, flat)):
        with pytest.raises(RequestError, match="declared before"):
            tools_of(*pair)


@given(st.text())
def test_the_input_of_a_custom_tool_survives(text):
    assert custom_input(custom_arguments(text)) == text


def test_the_input_of_a_custom_tool_by_another_name():
    assert custom_input('{"patch": "x"}') == "x"
    assert custom_input('{"input": "x", "why": "y"}') == "x"
    for odd in ('{"input": 3}', "{}", '{"a": "x", "b": "y"}'):
        assert custom_input(odd) == odd


@pytest.mark.parametrize(("choice", "expected"), [
    (None, CallRules()), ("auto", CallRules()), ("none", CallRules(names=())),
    ("required", CallRules(required=True)),
    ({"type": "function", "name": "add"}, CallRules(required=True, names=("add",))),
    ({"type": "custom", "name": "patch"}, CallRules(required=True, names=("patch",))),
    ({"type": "allowed_tools", "mode": "auto",
      "tools": [{"type": "function", "name": "add"}, {"type": "web_search"}]},
     CallRules(names=("add",))),
    ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]},
     CallRules(required=True, names=("patch",))),
])
def test_what_may_and_must_be_called(choice, expected):
    assert rules(choice, ADD, PATCH) == expected


def test_a_tool_of_a_namespace_can_be_chosen():
    strict = frozenset({"agents__close"})
    for choice in ({"type": "function", "name": "close", "namespace": "agents"},
                   {"type": "function", "name": "close"},
                   {"type": "function", "name": "agents__close"}):
        assert rules(choice, AGENTS) == CallRules(
            required=True, names=("agents__close",), strict=strict)


@pytest.mark.parametrize("choice", [
    "always", 3, {}, {"type": "function"}, {"type": "function", "name": "other"},
    {"type": "web_search"}, {"type": "allowed_tools", "mode": "required", "tools": []},
    {"type": "allowed_tools", "mode": "maybe", "tools": []},
    {"type": "function", "name": "add", "namespace": "agents"},
])
def test_choices_that_nothing_can_meet_are_refused(choice):
    with pytest.raises(RequestError) as error:
        rules(choice, ADD, PATCH)
    assert error.value.where.startswith("tool_choice")


def test_without_tools_there_is_nothing_to_rule():
    assert rules("none", parallel_tool_calls=False) == CallRules()
    assert rules("auto", parallel_tool_calls=False) == CallRules()
    assert rules("auto", ADD, parallel_tool_calls=False) == CallRules(parallel=False)
    with pytest.raises(RequestError):
        rules("required")
    with pytest.raises(RequestError):
        rules("required", {"type": "web_search"})


def test_declarations_are_json():
    json.dumps(tools_of(ADD, PATCH, AGENTS).functions)
