"""Declarations of tools, and what is asked of their calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ninfer_core.api import CallRules, RequestError
from ninfer_serve.members import Members, refuse

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


def declarations(body: Members) -> list[Mapping[str, Any]]:
    """The tools in the shape of chat completions.

    :raises RequestError: naming what is malformed, and tools that a server would have to run.
    """
    made = [_declaration(tool) for tool in body.objects("tools")]
    names = [tool["function"]["name"] for tool in made]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise RequestError("two tools have one name", where=f"tools[{index}].name", why=name)
    return made


def call_rules(body: Members, tools: list[Mapping[str, Any]]) -> CallRules:
    """What ``tool_choice`` and strict tools ask for."""
    strict = frozenset(t.need_text("name") for t in body.objects("tools") if t.flag("strict"))
    choice = body.object("tool_choice")
    if choice is None:
        return CallRules(strict=strict)
    kind = choice.one_of("type", ("auto", "any", "tool", "none"))
    if kind is None:
        refuse(choice.place("type"), "auto, any, tool or none", None)
    if kind == "none":
        return CallRules(names=() if tools else None, strict=strict)
    if kind != "auto" and not tools:
        raise RequestError("a tool must be called, and there are none", where="tool_choice")
    return CallRules(
        required=kind != "auto", names=(_named(choice, tools),) if kind == "tool" else None,
        parallel=not choice.flag("disable_parallel_tool_use"), strict=strict,
    )


def _declaration(tool: Members) -> Mapping[str, Any]:
    kind = tool.text("type")
    if kind not in (None, "custom"):
        raise RequestError(
            "the server has no such tool", where=tool.place("type"),
            why=f"{kind} comes without a schema", fix="declare it with an input_schema",
        )
    name = tool.need_text("name")
    if not _NAME.fullmatch(name):
        refuse(tool.place("name"), "1 to 128 letters, digits, '_' and '-'", name)
    schema = tool.object("input_schema")
    if schema is None:
        refuse(tool.place("input_schema"), "a JSON schema", None)
    description = tool.text("description")
    function = {"name": name, **({"description": description} if description else {}),
                "parameters": schema.values}
    marker = tool.object("cache_control")
    return {"type": "function", "function": function,
            **({"cache_control": marker.values} if marker else {})}


def _named(choice: Members, tools: list[Mapping[str, Any]]) -> str:
    name = choice.need_text("name")
    declared = [tool["function"]["name"] for tool in tools]
    if name not in declared:
        refuse(choice.place("name"), "the name of a declared tool", name)
    return name
