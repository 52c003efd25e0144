"""Input items of the Responses API: checked, and in the form in which they are given back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ninfer_core.api import RequestError
from ninfer_serve.members import Members, refuse

Item = dict[str, Any]
"""As the API writes it: ``type``, ``id`` (perhaps), ``status`` and what belongs to the type."""

_SEAL = "ninfer:1:"


def sealed(reasoning: str) -> str:
    """Reasoning as ``encrypted_content``: for clients that give nothing else of it back."""
    return _SEAL + base64.b64encode(reasoning.encode()).decode()


def unsealed(content: str) -> str | None:
    """None if it is from another server."""
    if not content.startswith(_SEAL):
        return None
    try:
        return base64.b64decode(content.removeprefix(_SEAL), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def read_input(body: Members, known: Callable[[str], Item | None]) -> list[Item]:
    """The items of ``input``.

    :param known: finds the item that a reference means, by its id.
    :raises RequestError: for an item or part that is malformed, or that the model could not see:
        what an answer depends on is never left out.
    """
    given = body.values.get("input")
    if given is None:
        return []
    if isinstance(given, str):
        return [message("user", given)]
    if not isinstance(given, list):
        refuse("input", "a string or an array of items", given)
    return [_item(each, known) for each in body.objects("input")]


def message(role: str, text: str) -> Item:
    """A message of one text."""
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "status": "completed",
            "content": [_text_part(kind, text)]}


def with_ids(items: Sequence[Item], suffix: str) -> list[Item]:
    """The items, each with an id: its own, or one that ``suffix`` makes unique."""
    return [{"id": f"{_PREFIXES[each['type']]}_{suffix}_i{index}", **each}
            for index, each in enumerate(items)]


_PREFIXES = {
    "message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco",
    "custom_tool_call": "ctc", "custom_tool_call_output": "ctco",
}


def _item(item: Members, known: Callable[[str], Item | None]) -> Item:
    kind = item.text("type") or ("message" if "role" in item else "item_reference")
    if kind == "item_reference":
        return _known(item, known)
    if kind not in _READERS:
        raise RequestError("the item cannot be given to the model", where=item.place("type"),
                           why=f"{kind!r} is none of {', '.join(sorted(_READERS))}")
    name = item.text("id")
    return {"type": kind, **({"id": name} if name else {}), **_READERS[kind](item)}


def _known(reference: Members, known: Callable[[str], Item | None]) -> Item:
    name = reference.need_text("id")
    if (found := known(name)) is None:
        raise RequestError("unknown item", where=reference.place("id"), why=f"no item is {name!r}",
                           fix="send the item itself")
    return found


def _message(item: Members) -> Item:
    role = item.one_of("role", ("user", "assistant", "system", "developer"))
    if role is None:
        refuse(item.place("role"), "a role", None)
    if "content" not in item:
        refuse(item.place("content"), "a string or an array of parts", None)
    content = _parts(item, "content", "output_text" if role == "assistant" else "input_text")
    for index, part in enumerate(content if role == "assistant" else ()):
        if part["type"] in _MEDIA:
            refuse(f"{item.place('content')}[{index}].type", "text in a message of the assistant",
                   part["type"])
    phase = item.text("phase")
    return {"role": role, "status": "completed", "content": content,
            **({"phase": phase} if phase else {})}


def _function_call(item: Members) -> Item:
    return {**_call(item), "arguments": item.text("arguments") or "", "status": "completed"}


def _custom_call(item: Members) -> Item:
    return {**_call(item), "input": item.text("input") or "", "status": "completed"}


def _call(item: Members) -> Item:
    namespace = item.text("namespace")
    return {"call_id": item.need_text("call_id"), "name": item.need_text("name"),
            **({"namespace": namespace} if namespace else {})}


def _output(item: Members) -> Item:
    given = item.values.get("output")
    output = given if isinstance(given, str) else _parts(item, "output", "input_text")
    call_id = item.text("call_id")
    return {**({"call_id": call_id} if call_id else {}), "output": output, "status": "completed"}


def _reasoning(item: Members) -> Item:
    made: Item = {
        name: [{"type": kind, "text": part.text("text") or ""} for part in item.objects(name)]
        for name, kind in (("summary", "summary_text"), ("content", "reasoning_text"))
    }
    encrypted = item.text("encrypted_content")
    return {**made, **({"encrypted_content": encrypted} if encrypted else {})}


_READERS: Mapping[str, Callable[[Members], Item]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "function_call_output": _output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _output,
}


_MEDIA = ("input_image", "input_video")


def _parts(item: Members, name: str, kind: str) -> list[Item]:
    """Content: a string alone is one part."""
    given = item.values.get(name)
    if isinstance(given, str):
        return [_text_part(kind, given)]
    return [_part(each) for each in item.objects(name)]


def _part(part: Members) -> Item:
    kind = part.need_text("type")
    mark = part.object("prompt_cache_breakpoint")
    marked = {"prompt_cache_breakpoint": dict(mark.values)} if mark else {}
    if kind in ("input_text", "output_text", "text"):
        return {**_text_part(kind, _need(part, "text")), **marked}
    if kind == "refusal":
        return {"type": kind, "refusal": _need(part, "refusal")}
    if kind == "input_image" and "image_url" in part:
        return {"type": kind, "image_url": part.need_text("image_url"),
                "detail": part.text("detail") or "auto", **marked}
    if kind == "input_video":
        return {"type": kind, "video_url": part.need_text("video_url"), **marked}
    raise RequestError("the part cannot be given to the model", where=part.place("type"),
                       why=f"{kind!r} is neither text nor an image or video with its URL")


def _text_part(kind: str, text: str) -> Item:
    return {"type": kind, "text": text, **({"annotations": []} if kind == "output_text" else {})}


def _need(part: Members, name: str) -> str:
    text = part.text(name)
    return refuse(part.place(name), "a string", None) if text is None else text
