"""Declarations of tools, and rules of their calls."""

from __future__ import annotations

import pytest

from ninfer_core.api import CallRules, RequestError
from ninfer_serve.anthropic.tools import call_rules, declarations
from ninfer_serve.members import Members

SCHEMA = {"type": "object", "properties": {"path": {"type": "string", "maxLength": 200000}}}


def tool(name="ls", **more):
    return {"name": name, "input_schema": SCHEMA, **more}


def rules(choice, *tools):
    body = Members({"tool_choice": choice, "tools": list(tools)})
    return call_rules(body, declarations(body))


def test_declarations_are_functions_with_their_markers():
    given = tool(description="Lists 查询", type="custom", cache_control={"type": "ephemeral"},
                 input_examples=[{"path": "."}], defer_loading=True)
    assert declarations(Members({"tools": [given, tool("noop", input_schema={})]})) == [
        {"type": "function",
         "function": {"name": "ls", "description": "Lists 查询", "parameters": SCHEMA},
         "cache_control": {"type": "ephemeral"}},
        {"type": "function", "function": {"name": "noop", "parameters": {}}},
    ]
    assert declarations(Members({})) == []


@pytest.mark.parametrize(("tools", "where"), [
    ([{"type": "web_search_20250305", "name": "web_search"}], "tools[0].type"),
    ([{"name": "ls"}], "tools[0].input_schema"),
    ([{"name": "ls", "input_schema": "x"}], "tools[0].input_schema"),
    ([{"input_schema": {}}], "tools[0].name"), ([tool("a b")], "tools[0].name"),
    ([tool("x" * 129)], "tools[0].name"), ([tool(), tool()], "tools[1].name"),
    ([tool(description=3)], "tools[0].description"), ("x", "tools"), ([3], "tools[0]"),
])
def test_what_is_malformed_is_named(tools, where):
    with pytest.raises(RequestError) as error:
        declarations(Members({"tools": tools}))
    assert error.value.where == where


@pytest.mark.parametrize(("choice", "wanted"), [
    (None, CallRules()), ({"type": "auto"}, CallRules()),
    ({"type": "any"}, CallRules(required=True)),
    ({"type": "tool", "name": "rm"}, CallRules(required=True, names=("rm",))),
    ({"type": "none"}, CallRules(names=())),
    ({"type": "auto", "disable_parallel_tool_use": True}, CallRules(parallel=False)),
    ({"type": "any", "disable_parallel_tool_use": True}, CallRules(required=True, parallel=False)),
])
def test_choices_are_rules(choice, wanted):
    assert rules(choice, tool(), tool("rm")) == wanted


def test_without_tools_there_is_nothing_to_rule_out():
    assert rules({"type": "none"}) == rules({"type": "auto"}) == CallRules()


def test_strict_tools():
    assert rules(None, tool(strict=True), tool("rm", strict=False)).strict == {"ls"}


@pytest.mark.parametrize(("choice", "tools", "where"), [
    ({}, [tool()], "tool_choice.type"), ({"type": "some"}, [tool()], "tool_choice.type"),
    ("auto", [tool()], "tool_choice"), ({"type": "any"}, [], "tool_choice"),
    ({"type": "tool", "name": "rm"}, [tool()], "tool_choice.name"),
    ({"type": "tool"}, [tool()], "tool_choice.name"),
    ({"type": "any", "disable_parallel_tool_use": 1}, [tool()],
     "tool_choice.disable_parallel_tool_use"),
])
def test_choices_that_cannot_be_had(choice, tools, where):
    with pytest.raises(RequestError) as error:
        rules(choice, *tools)
    assert error.value.where == where
