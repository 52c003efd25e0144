"""Tools of the Responses API as functions that a model can call, and its calls back again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from attrs import field, frozen

from ninfer_core.api import CallRules, RequestError, ToolCall
from ninfer_serve.members import Members, refuse

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
SEPARATOR = "__"
INPUT = "input"
"""The one parameter of the function that stands for a custom tool."""


@frozen
class Origin:
    """What a client declared: a function, or a custom tool, which takes text as it is."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None = None

    @property
    def model_name(self) -> str:
        return model_name(self.name, self.namespace)


@frozen
class Tools:
    """The tools of a request.

    :ivar functions: declarations for `ServeRequest`.
    :ivar origins: what a call of such a function is to the client.
    :ivar strict: functions whose arguments must follow their schema to the letter.
    :ivar left_out: types of the tools that only OpenAI's servers run.
    """

    functions: tuple[dict[str, Any], ...] = ()
    origins: Mapping[str, Origin] = field(factory=dict)
    strict: frozenset[str] = frozenset()
    left_out: tuple[str, ...] = ()

    def item(self, call: ToolCall) -> dict[str, Any]:
        """What the API calls a call, without its ids and status."""
        origin = self.origins[call.name]
        namespace = {"namespace": origin.namespace} if origin.namespace else {}
        if origin.kind == "custom":
            return {"type": "custom_tool_call", "name": origin.name, **namespace,
                    "input": custom_input(call.arguments)}
        return {"type": "function_call", "name": origin.name, **namespace,
                "arguments": call.arguments}


def model_name(name: str, namespace: str | None) -> str:
    """How the model knows a tool."""
    return f"{namespace}{SEPARATOR}{name}" if namespace else name


def custom_arguments(text: str) -> str:
    """What a model wrote to give ``text`` to a custom tool."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """The text for a custom tool, also if the model named its parameter otherwise."""
    values = json.loads(arguments)
    if INPUT not in values and len(values) == 1:
        values = {INPUT: next(iter(values.values()))}
    text = values.get(INPUT)
    return text if isinstance(text, str) else arguments


def read_tools(body: Members) -> Tools:
    """Functions, custom tools and namespaces of them. What clients declare besides, and a model
    here could not use, is left out: they send it whether or not anybody serves it.

    :raises RequestError: for a malformed one, or two of one name.
    """
    functions, origins, strict, left_out = [], dict[str, Origin](), set(), []
    for tool, namespace in _flat(body.objects("tools")):
        kind = tool.need_text("type")
        if kind not in ("function", "custom"):
            left_out.append(kind)
            continue
        origin = Origin("custom" if kind == "custom" else "function", _name(tool), namespace)
        if origin.model_name in origins:
            raise RequestError("two tools have one name", where=tool.place("name"),
                               why=f"{origin.model_name} was declared before")
        origins[origin.model_name] = origin
        functions.append(_function(tool, origin))
        if kind == "function" and tool.flag("strict"):
            strict.add(origin.model_name)
    return Tools(tuple(functions), origins, frozenset(strict), tuple(left_out))


def read_choice(body: Members, tools: Tools) -> CallRules:
    """``tool_choice`` and ``parallel_tool_calls``, for tools that there are.

    :raises RequestError: if a tool must be called that was not declared, or that is left out.
    """
    parallel = body.flag("parallel_tool_calls") is not False or not tools.functions
    choice = body.values.get("tool_choice")
    if choice is None or choice == "auto":
        return CallRules(parallel=parallel, strict=tools.strict)
    if choice == "none":
        return CallRules(names=() if tools.functions else None)
    if choice == "required":
        return _required(body, tools, None, parallel)
    made = Members.of(choice, "tool_choice")
    if made.need_text("type") != "allowed_tools":
        return _required(body, tools, (_chosen(made, tools),), parallel)
    allowed = made.objects("tools")
    names = tuple(_chosen(each, tools) for each in allowed if each.need_text("type") in _CALLED)
    if made.one_of("mode", ("auto", "required")) == "required":
        return _required(body, tools, names, parallel)
    return CallRules(names=names, parallel=parallel, strict=tools.strict)


_CALLED = ("function", "custom")


def _required(
    body: Members, tools: Tools, names: tuple[str, ...] | None, parallel: bool
) -> CallRules:
    if not (tools.functions if names is None else names):
        raise RequestError("a tool must be called, and there is none", where="tool_choice",
                           fix="declare a function or a custom tool in 'tools'")
    return CallRules(required=True, names=names, parallel=parallel, strict=tools.strict)


def _chosen(choice: Members, tools: Tools) -> str:
    """The function that a choice names; without its namespace, if no other has the name."""
    if choice.need_text("type") not in _CALLED:
        raise RequestError("the tool cannot be chosen", where=choice.place("type"),
                           why=f"nobody here runs {choice.values['type']!r}")
    name, namespace = choice.need_text("name"), choice.text("namespace")
    wanted = model_name(name, namespace)
    if wanted in tools.origins:
        return wanted
    found = [each for each, origin in tools.origins.items() if origin.name == name]
    if namespace or len(found) != 1:
        refuse(choice.place("name"), "the name of a tool in 'tools'", name)
    return found[0]


def _flat(tools: Iterable[Members]) -> Iterator[tuple[Members, str | None]]:
    for tool in tools:
        if tool.values.get("type") != "namespace":
            yield tool, None
            continue
        namespace = _name(tool)
        for each in tool.objects("tools"):
            yield each, namespace


def _name(tool: Members) -> str:
    name = tool.need_text("name")
    if not _NAME.fullmatch(name):
        refuse(tool.place("name"), "1 to 64 letters, digits, _ or -", name)
    return name


def _function(tool: Members, origin: Origin) -> dict[str, Any]:
    description = tool.text("description")
    if origin.kind == "custom":
        parameters = _custom_parameters(tool.object("format"))
    else:
        given = tool.object("parameters")
        parameters = dict(given.values) if given else {"type": "object", "properties": {}}
    about = {"description": description} if description else {}
    function = {"name": origin.model_name, **about, "parameters": parameters}
    return {"type": "function", "function": function}


def _custom_parameters(layout: Members | None) -> dict[str, Any]:
    """The schema of a text, with the grammar that it must follow as its description."""
    text: dict[str, Any] = {"type": "string", "description": "The tool's input, as plain text."}
    if layout and layout.one_of("type", ("text", "grammar")) == "grammar":
        syntax = layout.one_of("syntax", ("lark", "regex")) or "lark"
        text["description"] += (
            f" It must match this {syntax} grammar:\n{layout.need_text('definition')}"
        )
    return {"type": "object", "properties": {INPUT: text}, "required": [INPUT],
            "additionalProperties": False}
