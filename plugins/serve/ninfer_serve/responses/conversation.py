"""Items as the messages of a conversation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ninfer_serve.responses.items import Item, unsealed
from ninfer_serve.responses.tools import custom_arguments, model_name

Message = dict[str, Any]


def conversation(items: Iterable[Item], instructions: str | None = None) -> list[Message]:
    """Messages in the shape of chat completions.

    Reasoning, texts and calls that follow each other are one turn of the assistant, as they were
    when the model wrote them; reasoning behind an answer begins another turn.
    """
    messages: list[Message] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    turn: Message | None = None
    for item in items:
        if not _is_of_assistant(item):
            turn = None
            messages.append(_tool_message(item) if "output" in item else _message(item))
            continue
        if item["type"] == "reasoning" and not reasoning_text(item):
            continue
        if turn is None or _begins_turn(item, turn):
            turn = {"role": "assistant", "content": ""}
            messages.append(turn)
        _extend(turn, item)
    return messages


def reasoning_text(item: Item) -> str:
    """What is readable of a reasoning item: its text, sealed or not, or a summary."""
    if text := _joined(item["content"]):
        return text
    return unsealed(item.get("encrypted_content", "")) or _joined(item["summary"], "\n\n")


def _is_of_assistant(item: Item) -> bool:
    if item["type"] == "message":
        return bool(item["role"] == "assistant")
    return item["type"] in ("reasoning", "function_call", "custom_tool_call")


def _begins_turn(item: Item, turn: Message) -> bool:
    """Whether the model cannot have written ``item`` in the same turn."""
    if item["type"] == "reasoning":
        return bool(turn["content"] or "tool_calls" in turn)
    return bool(item["type"] == "message" and turn["content"] and "tool_calls" not in turn)


def _extend(turn: Message, item: Item) -> None:
    if item["type"] == "reasoning":
        turn["reasoning_content"] = turn.get("reasoning_content", "") + reasoning_text(item)
    elif item["type"] == "message":
        turn["content"] += _joined(item["content"])
    else:
        turn.setdefault("tool_calls", []).append(_call(item))


def _call(item: Item) -> Message:
    is_custom = item["type"] == "custom_tool_call"
    arguments = custom_arguments(item["input"]) if is_custom else item["arguments"]
    name = model_name(item["name"], item.get("namespace"))
    return {"id": item["call_id"], "type": "function",
            "function": {"name": name, "arguments": arguments}}


def _tool_message(item: Item) -> Message:
    output = item["output"]
    content = output if isinstance(output, str) else [_part(part) for part in output]
    call = {"tool_call_id": item["call_id"]} if "call_id" in item else {}
    return {"role": "tool", **call, "content": content}


def _message(item: Item) -> Message:
    return {"role": item["role"], "content": [_part(part) for part in item["content"]]}


def _part(part: Item) -> Message:
    mark = {"cache_control": {"type": "ephemeral"}} if "prompt_cache_breakpoint" in part else {}
    if part["type"] == "input_image":
        image = {"url": part["image_url"], "detail": part["detail"]}
        return {"type": "image_url", "image_url": image, **mark}
    if part["type"] == "input_video":
        return {"type": "video_url", "video_url": {"url": part["video_url"]}, **mark}
    return {"type": "text", "text": _text(part), **mark}


def _joined(parts: Iterable[Item], between: str = "") -> str:
    return between.join(map(_text, parts))


def _text(part: Item) -> str:
    return str(part["refusal"] if part["type"] == "refusal" else part["text"])
