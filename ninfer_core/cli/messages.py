"""Reading a conversation from a JSON file, with the place of what is wrong in the error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ninfer_core.api import RequestError
from ninfer_core.text.messages import member_problems

ROLES = ("system", "developer", "user", "assistant", "tool")
Objects = list[dict[str, Any]]


def read_conversation(path: Path) -> tuple[Objects, Objects]:
    """Messages and tools of ``path`` (``-``: stdin): an array, or ``{messages, tools?}``.

    :raises RequestError: naming the file and the first place in it that is wrong.
    """
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        value = json.loads(raw.decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError("cannot read messages", where=str(path), why=str(error)) from error
    value = {"messages": value} if isinstance(value, list) else value
    for place, wanted in _problems(value):
        raise RequestError("malformed messages", where=f"{path}: {place}", why=f"must be {wanted}")
    return value["messages"], value.get("tools", [])


def _problems(value: Any) -> Iterator[tuple[str, str]]:
    """What is wrong as ``(place, what it must be)``; later checks rely on earlier ones."""
    if not isinstance(value, dict) or "messages" not in value or set(value) - {"messages", "tools"}:
        yield "top level", "an array of messages, or an object of 'messages' and 'tools' alone"
    for name in value:
        if not isinstance(value[name], list) or not value["messages"]:
            yield name, "an array, and 'messages' not an empty one"
        for index, each in enumerate(value[name]):
            if not isinstance(each, dict):
                yield f"{name}[{index}]", "an object"
    for index, message in enumerate(value["messages"]):
        yield from _message_problems(message, f"messages[{index}]")


def _message_problems(message: dict[str, Any], place: str) -> Iterator[tuple[str, str]]:
    if message.get("role") not in ROLES:
        yield f"{place}.role", "one of " + ", ".join(ROLES)
    content, calls = message.get("content"), message.get("tool_calls")
    if not isinstance(content, str | list) and not (content is None and calls):
        yield f"{place}.content", "a string or an array of parts"
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            yield f"{place}.content[{index}]", "an object with a 'type'"
    yield from member_problems(message, place)
