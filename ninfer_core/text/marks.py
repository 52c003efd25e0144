"""Cache markers of clients: where in a prompt what they follow ends.

A content part, a message or a tool with a ``cache_control`` member says that the prompt up to its
end will come again. A marked conversation is rendered once more, with a sign behind each marked
text, and the signs are looked for; so a template may do with its content whatever it likes, and
what it leaves out, or changes because of a sign, marks nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any
from unicodedata import normalize

from ninfer_core.api import PreparedPrompt, Tokenizer

MARKER = "cache_control"
_SIGN = "\U0010fffd"


def is_marked(messages: Sequence[Any], tools: Sequence[Any]) -> bool:
    """Whether there is a marker anywhere."""
    members = [*tools, *messages, *(part for each in messages for part in _parts(each))]
    return any(isinstance(each, Mapping) and MARKER in each for each in members)


def without_markers(members: Sequence[Any]) -> list[Any]:
    """Messages or tools, the markers taken out."""
    return [_cleared(each) for each in members]


def with_signs(members: Sequence[Any]) -> list[Any]:
    """The same, with a sign behind each marked text that is not empty."""
    return [_signed(each) for each in members]


def marks_of(prompt: PreparedPrompt, shown: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Numbers of tokens up to each sign, if the prompt is what ``shown`` is without signs. A token
    that goes on beyond a sign does not count."""
    *pieces, _ = shown.split(_SIGN)
    if not pieces or shown.replace(_SIGN, "") != prompt.text:
        return ()
    lengths = [*accumulate(len(tokenizer.token_bytes(each)) for each in prompt.token_ids)]
    for form in (str, partial(normalize, "NFC")):  # as it was tokenised
        if len(form(prompt.text).encode()) == lengths[-1]:
            ends = (len(form(text).encode()) for text in accumulate(pieces))
            return tuple(sorted({bisect_right(lengths, end) for end in ends} - {0}))
    return ()


def _parts(member: Any) -> Sequence[Any]:
    content = member.get("content") if isinstance(member, Mapping) else None
    return content if isinstance(content, list) else ()


def _cleared(member: Any) -> Any:
    if not isinstance(member, Mapping):
        return member
    made = {name: value for name, value in member.items() if name != MARKER}
    return {**made, "content": without_markers(parts)} if (parts := _parts(member)) else made


def _signed(member: Any) -> Any:
    made = _cleared(member)
    if not isinstance(member, Mapping):
        return made
    if parts := _parts(member):
        made["content"] = with_signs(parts)
    if member.get(MARKER) is not None:
        return _sign(made)
    return made


def _sign(value: Any) -> Any:
    """A copy with a sign behind its last text, if it has any; of messages and parts, behind the
    content."""
    if isinstance(value, str):
        text = value.rstrip()
        return text + _SIGN + value[len(text) :] if text else value
    if isinstance(value, list):
        return [*_with_one(dict(enumerate(value))).values()]
    if isinstance(value, Mapping):
        own = next((name for name in ("content", "text") if name in value), None)
        return _with_one(value) if own is None else {**value, own: _sign(value[own])}
    return value


def _with_one(members: Mapping[Any, Any]) -> dict[Any, Any]:
    """The last member that takes a sign has one."""
    pairs = ((name, _sign(members[name])) for name in reversed([*members]))
    found = next(((name, made) for name, made in pairs if made != members[name]), None)
    return {**members, **dict([found] if found else [])}
