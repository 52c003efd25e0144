"""Messages of a conversation as chat templates take them."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from ninfer_core.api import RequestError
from ninfer_core.text.strict_json import parse_json

Message = dict[str, Any]


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Content as one string, absent content of assistants and tools as an empty one; arguments of
    earlier calls as objects; other members as they are.

    Arguments that are no JSON object are a model's fault that its conversation must survive: such
    a call becomes text of the content. Results are in the order of their calls, because templates
    tell no ids.

    :raises RequestError: naming the place of what is malformed, or if there are no messages.
    """
    if not messages:
        raise RequestError("there are no messages", fix="send at least one")
    made = [_message(each, f"messages[{index}]") for index, each in enumerate(messages)]
    return list(_with_results_in_order(made))


def check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Raise `RequestError`, naming the place, unless all are functions with a name."""
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not (isinstance(function, Mapping) and _is_name(function.get("name"))):
            raise RequestError("malformed tool", where=f"tools[{index}]",
                               why='it is no {"type": "function", "function": {"name": ...}}')


def split_reasoning(message: Message, opening: str, closing: str) -> Message:
    """Make of a reasoning block in an assistant's content the ``reasoning_content`` that a
    template wants; a message that has one, if only an empty one, tells of tags in its content."""
    content = message["content"]
    is_told = isinstance(message.get("reasoning_content"), str)
    if message["role"] != "assistant" or is_told or closing not in content:
        return message
    reasoning = content.partition(closing)[0].rpartition(opening)[2]
    answer = content.rpartition(closing)[2]
    return {**message, "content": answer.lstrip("\n"), "reasoning_content": reasoning.strip("\n")}


def member_problems(message: Mapping[str, Any], place: str) -> Iterator[tuple[str, str]]:
    """What is wrong with the members about tools and reasoning: ``(place, what it must be)``."""
    for name in ("tool_call_id", "reasoning_content", "reasoning"):
        if not isinstance(message.get(name), str | None):
            yield f"{place}.{name}", "a string"
    calls = message.get("tool_calls")
    if not isinstance(calls, list | None):
        yield f"{place}.tool_calls", "an array"
        return
    for index, call in enumerate(calls or ()):
        function = call.get("function") if isinstance(call, Mapping) else None
        at = f"{place}.tool_calls[{index}].function"
        if not (isinstance(function, Mapping) and _is_name(function.get("name"))):
            yield at, "an object with a 'name'"
        elif not isinstance(function.get("arguments"), str | Mapping | None):
            yield f"{at}.arguments", "a JSON object, or the text of one"


def _with_results_in_order(messages: Iterable[Message]) -> Iterator[Message]:
    """Results in the order of their calls; as they are, where ids do not say which is whose."""
    calls: list[Any] = []
    for are_results, run in groupby(messages, key=lambda message: message["role"] == "tool"):
        each = list(run)
        if are_results:
            ids = [result.get("tool_call_id") for result in each]
            if _are_names(calls) and _are_names(ids) and {*ids} <= {*calls}:
                each.sort(key=lambda result: calls.index(result["tool_call_id"]))
        else:
            calls = [call.get("id") for call in each[-1].get("tool_calls") or ()]
        yield from each


def _are_names(ids: Sequence[Any]) -> bool:
    """Whether each has one of its own."""
    return all(isinstance(each, str) for each in ids) and len({*ids}) == len(ids)


def _message(message: Mapping[str, Any], place: str) -> Message:
    if not isinstance(message, Mapping):
        raise RequestError("malformed message", where=place, why="must be an object")
    if not _is_name(message.get("role")):
        raise RequestError("malformed message", where=f"{place}.role", why="must be a string")
    for where, wanted in member_problems(message, place):
        raise RequestError("malformed message", where=where, why=f"must be {wanted}")
    made = {**message, "content": _content(message, f"{place}.content")}
    if message["role"] == "assistant":
        if reasoning := message.get("reasoning_content") or message.get("reasoning"):
            made["reasoning_content"] = reasoning
        calls = made.pop("tool_calls", None) or ()
        made |= _calls_and_content(calls, made["content"])
    return made


def _content(message: Mapping[str, Any], place: str) -> str:
    content = message.get("content")
    if content is None and message.get("role") in ("assistant", "tool"):  # a call, no output
        return ""
    if isinstance(content, list) and all(map(_is_text, content)):
        return "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise RequestError("the model takes text only", where=place,
                           why=f"it is {reprlib.repr(content)}")
    return content


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, Mapping) and part.get("type") == "text"
        and isinstance(part.get("text"), str)
    )


def _calls_and_content(calls: Sequence[Mapping[str, Any]], content: str) -> Message:
    made, texts = [], [content] if content else []
    for call in calls:
        function = call["function"]
        arguments = _arguments(given := function.get("arguments"))
        if arguments is None:
            texts.append(f"{function['name']}({given})")
        else:
            made.append({**call, "function": {**function, "arguments": arguments}})
    return {"content": "\n\n".join(texts), **({"tool_calls": made} if made else {})}


def _arguments(given: str | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Arguments as an object, which clients leave out or empty without any; None if they are no
    object."""
    if isinstance(given, str) and given.strip():
        try:
            value = parse_json(given)
        except ValueError:
            return None
        return value if isinstance(value, Mapping) else None
    return given if isinstance(given, Mapping) else {}


def _is_name(found: Any) -> bool:
    return isinstance(found, str) and bool(found)
