"""Conversations of content blocks, as messages of chat completions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ninfer_core.api import RequestError
from ninfer_serve.members import Members, refuse

Message = dict[str, Any]
Part = dict[str, Any]

BILLING = "x-anthropic-billing-header:"
"""What Claude Code's system prompt begins with; the line differs from request to request, so that
no prompt would ever begin like another."""


def system_messages(body: Members) -> list[Message]:
    """The system prompt as a message, or nothing."""
    if "system" not in body:
        return []
    blocks = _blocks(body, "system")
    parts = [part for block in blocks for part in _text(block)]
    if parts:
        parts[0]["text"] = _without_billing(parts[0]["text"])
    made = _paragraphs(parts)
    return [{"role": "system", "content": made}] if made else []


def conversation(body: Members) -> tuple[list[Message], str]:
    """Messages, and the text that the answer is to go on from: an assistant's at the end.

    :raises RequestError: naming the place of a block that is malformed or cannot be read.
    """
    given = list(body.objects("messages"))
    if not given:
        raise RequestError("there are no messages", where="messages", fix="send at least one")
    made = [each for message in given for each in _messages(message)]
    if made and made[-1]["role"] == "assistant":
        return made[:-1], _prefill(made[-1], given[-1].path)
    return made, ""


def _messages(message: Members) -> list[Message]:
    role = message.one_of("role", ("assistant", "system", "user"))
    if role == "user":
        return _of_user(_blocks(message, "content"))
    if role == "assistant":
        return [_of_assistant(_blocks(message, "content"))]
    if role == "system":
        parts = [part for block in _blocks(message, "content") for part in _text(block)]
        return [{"role": "system", "content": _paragraphs(parts)}]
    refuse(message.place("role"), "user, assistant or system", None)


def _of_user(blocks: Iterable[Members]) -> list[Message]:
    """Results of calls become messages of their own; what is around them keeps its place."""
    made: list[Message] = []
    for block in blocks:
        if block.need_text("type") == "tool_result":
            made.append(_result(block))
            continue
        if not made or made[-1]["role"] != "user":
            made.append({"role": "user", "content": []})
        made[-1]["content"] += _parts(block)
    for message in made:
        message["content"] = _paragraphs(message["content"])
    return made or [{"role": "user", "content": []}]


def _result(block: Members) -> Message:
    parts = [part for each in _blocks(block, "content") for part in _parts(each)]
    if block.flag("is_error") and not any("error" in _lower(part) for part in parts):
        parts.insert(0, {"type": "text", "text": "Error:"})  # the model has no other sign of it
    return {
        "role": "tool", "tool_call_id": block.need_text("tool_use_id"), "content": parts,
        **_marker(block),
    }


def _of_assistant(blocks: Iterable[Members]) -> Message:
    texts, reasoning, calls = list[Part](), list[str](), list[Message]()
    for block in blocks:
        kind = block.one_of("type", ("text", "thinking", "redacted_thinking", "tool_use"))
        if kind == "text":
            texts += _text(block)
        elif kind == "thinking":
            reasoning.append(block.text("thinking") or "")
        elif kind == "tool_use":
            calls.append(_call(block))
        elif kind is None:
            refuse(block.place("type"), "the type of a block", None)
    return {  # always with reasoning, so that tags in the text are text
        "role": "assistant", "content": _paragraphs(texts),
        "reasoning_content": "\n".join(filter(None, reasoning)),
        **({"tool_calls": calls} if calls else {}),
    }


def _call(block: Members) -> Message:
    arguments = block.values.get("input")
    if not isinstance(arguments, dict | str):
        refuse(block.place("input"), "an object", arguments)
    return {
        "id": block.need_text("id"), "type": "function",
        "function": {"name": block.need_text("name"), "arguments": arguments}, **_marker(block),
    }


def _prefill(message: Message, place: str) -> str:
    if message.get("tool_calls"):
        raise RequestError("the conversation ends with calls", where=place,
                           why="a message with their results must follow")
    if message["reasoning_content"]:
        raise RequestError("the conversation ends with thinking", where=place,
                           why="an answer can go on from text alone")
    return "".join(part["text"] for part in message["content"])


def _blocks(owner: Members, name: str) -> list[Members]:
    """A text alone is a block, and nothing is none."""
    content = owner.values.get(name)
    if isinstance(content, str):
        return [Members({"type": "text", "text": content}, owner.place(name))]
    if content is not None and not isinstance(content, list):
        refuse(owner.place(name), "a string or an array of blocks", content)
    return list(owner.objects(name))


def _parts(block: Members) -> list[Part]:
    kind = block.need_text("type")
    if kind not in _READERS:
        refuse(block.place("type"), f"one of {', '.join(_READERS)}", kind)
    return _READERS[kind](block)


def _text(block: Members) -> list[Part]:
    if block.need_text("type") != "text":
        refuse(block.place("type"), "text", block.values["type"])
    text = block.text("text")
    if text is None:
        refuse(block.place("text"), "a string", None)
    return [{"type": "text", "text": text, **_marker(block)}]


def _image(block: Members) -> list[Part]:
    source = _source(block)
    if source.one_of("type", ("base64", "url")) == "url":
        url = source.need_text("url")
    else:
        url = f"data:{source.need_text('media_type')};base64,{source.need_text('data')}"
    return [{"type": "image_url", "image_url": {"url": url}, **_marker(block)}]


def _document(block: Members) -> list[Part]:
    """Documents of text; pages of others would have to be drawn."""
    source = _source(block)
    if source.one_of("type", ("text", "content")) == "text":
        parts: list[Part] = [{"type": "text", "text": source.text("data") or ""}]
    else:
        parts = [part for each in _blocks(source, "content") for part in _parts(each)]
    heading = [text for name in ("title", "context") if (text := block.text(name))]
    return [*({"type": "text", "text": text} for text in heading), *_marked(parts, block)]


def _search_result(block: Members) -> list[Part]:
    heading = f"{block.text('title') or ''} ({block.text('source') or ''})"
    parts = [part for each in _blocks(block, "content") for part in _text(each)]
    return [{"type": "text", "text": heading}, *_marked(parts, block)]


def _tool_reference(block: Members) -> list[Part]:
    """All tools are declared from the start, so that a found one needs no more than its name."""
    return [{"type": "text", "text": block.need_text("tool_name"), **_marker(block)}]


_READERS: Mapping[str, Callable[[Members], list[Part]]] = {
    "text": _text, "image": _image, "document": _document, "search_result": _search_result,
    "tool_reference": _tool_reference,
}


def _source(block: Members) -> Members:
    source = block.object("source")
    if source is None:
        refuse(block.place("source"), "an object", None)
    source.need_text("type")
    return source


def _marker(block: Members) -> dict[str, Any]:
    marker = block.values.get("cache_control")
    return {} if marker is None else {"cache_control": marker}


def _marked(parts: list[Part], block: Members) -> list[Part]:
    """Marked where the block ends."""
    return [*parts[:-1], *({**part, **_marker(block)} for part in parts[-1:])]


def _paragraphs(parts: Iterable[Part]) -> list[Part]:
    """Neighbouring texts begin new paragraphs where there is no white space between them; empty
    ones are left out."""
    made: list[Part] = []
    for part in parts:
        before = made[-1].get("text", "\n") if made else "\n"
        text = part.get("text")
        if text == "":
            continue
        if text is not None and not (before[-1].isspace() or text[0].isspace()):
            part = {**part, "text": f"\n\n{text}"}
        made.append(part)
    return made


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(BILLING) else text


def _lower(part: Part) -> str:
    return str(part.get("text", "")).casefold()
