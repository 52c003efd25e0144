"""Messages of a chat completion in the shape that every frontend takes."""

from __future__ import annotations

from typing import Any

from ninfer_serve.members import Members, refuse

ROLES = ("assistant", "developer", "function", "system", "tool", "user")


def read_messages(body: Members) -> tuple[dict[str, Any], ...]:
    """A conversation, with the older members for calls of one function in their newer shape.

    :raises RequestError: naming the place of what is malformed; contents are the frontend's.
    """
    messages = tuple(_message(each) for each in body.objects("messages"))
    return messages or refuse("messages", "an array of messages", body.values.get("messages"))


def split_prefill(
    body: Members, messages: tuple[dict[str, Any], ...]
) -> tuple[tuple[dict[str, Any], ...], str]:
    """The conversation, and the beginning of the answer: what the assistant's last message says, if
    it is to be gone on with.

    :raises RequestError: if there is no such message.
    """
    if not body.flag("continue_final_message"):
        return messages, ""
    *others, last = messages
    text = last.get("content")
    if not others or last["role"] != "assistant" or not isinstance(text, str) or not text:
        refuse("continue_final_message", "left out unless an assistant's text comes last", True)
    return tuple(others), text


def _message(message: Members) -> dict[str, Any]:
    message.need_text("role")
    role = message.one_of("role", ROLES)
    made = {**message.values}
    if role == "function":
        made |= {"role": "tool", "tool_call_id": message.need_text("name")}
    elif role == "assistant":
        if call := message.object("function_call"):
            made["tool_calls"] = [_call(call)]
        if "content" not in message and (refusal := message.text("refusal")):
            made["content"] = refusal
    if isinstance(content := made.get("content"), list):
        made["content"] = [_part(each) for each in content]
    return made


def _call(call: Members) -> dict[str, Any]:
    name = call.need_text("name")
    return {"id": name, "type": "function", "function": {**call.values}}


def _part(part: Any) -> Any:
    """Refusals are text to a model."""
    if isinstance(part, dict) and part.get("type") == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    return part
