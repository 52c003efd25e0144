"""Tools of a chat completion, and which of them may or must be called."""

from __future__ import annotations

import re
from typing import Any

from attrs import evolve

from ninfer_core.api import CallRules, RequestError
from ninfer_serve.errors import HttpError
from ninfer_serve.members import Members, refuse

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def read_tools(body: Members) -> tuple[tuple[dict[str, Any], ...], CallRules]:
    """Declarations as the client made them, and the rules for calls.

    :raises RequestError: for a malformed tool, two of one name, one that is no function, or a
        choice of a tool that was not declared.
    """
    strict = dict[str, bool]()
    for tool in body.objects("tools"):
        function = _function(tool)
        name = _name(function)
        if name in strict:
            raise RequestError("two tools have one name", where=function.place("name"),
                               why=f"{name} was declared before")
        function.text("description")
        function.object("parameters")
        strict[name] = bool(function.flag("strict"))
    rules = _choice(body, list(strict))
    parallel = body.flag("parallel_tool_calls") is not False
    names = frozenset(name for name, is_strict in strict.items() if is_strict)
    return tuple(body.array("tools")), evolve(rules, parallel=parallel or not strict, strict=names)


def _choice(body: Members, declared: list[str]) -> CallRules:
    choice = body.values.get("tool_choice")
    if isinstance(choice, dict):
        return _chosen(Members(choice, "tool_choice"), declared)
    wanted = body.one_of("tool_choice", ("auto", "none", "required"))
    if wanted == "required":
        return _required(None, declared)
    return CallRules(names=()) if wanted == "none" and declared else CallRules()


def _chosen(choice: Members, declared: list[str]) -> CallRules:
    if choice.need_text("type") != "allowed_tools":
        return _required((_declared(choice, declared),), declared)
    allowed = choice.object("allowed_tools") or choice
    names = tuple(_declared(each, declared) for each in allowed.objects("tools"))
    if allowed.one_of("mode", ("auto", "required")) == "required":
        return _required(names, declared)
    return CallRules(names=names)


def _required(names: tuple[str, ...] | None, declared: list[str]) -> CallRules:
    if not (declared if names is None else names):
        raise RequestError("a tool must be called, and there is none", where="tool_choice",
                           fix="declare a function in 'tools'")
    return CallRules(required=True, names=names)


def _declared(choice: Members, declared: list[str]) -> str:
    function = _function(choice)
    name = function.need_text("name")
    if name not in declared:
        refuse(function.place("name"), "the name of a tool in 'tools'", name)
    return name


def _function(tool: Members) -> Members:
    kind = tool.need_text("type")
    if kind != "function":
        raise HttpError(400, "tool_type_not_supported", "the tool cannot be used",
                        where=tool.place("type"), why=f"nobody here runs {kind!r}",
                        fix="declare a function")
    return tool.object("function") or refuse(tool.place("function"), "an object", None)


def _name(function: Members) -> str:
    name = function.need_text("name")
    if not _NAME.fullmatch(name):
        refuse(function.place("name"), "1 to 64 letters, digits, _ or -", name)
    return name
