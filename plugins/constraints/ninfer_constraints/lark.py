"""Grammars in llguidance's variant of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llguidance import regex_to_lark

JSON_OPTIONS = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,8}"}
"""A model that prefers blanks has to go on after eight of them."""


class Lark:
    """Rules under construction; names are made up.

    :param control_ids: ids of control tokens by their text.
    """

    def __init__(self, control_ids: Mapping[str, int]) -> None:
        self._control_ids = control_ids
        texts = sorted(control_ids, key=len, reverse=True)
        self._controls = re.compile(f"({'|'.join(map(re.escape, texts)) or '(?!)'})")
        self._lines: list[str] = []
        self._others: list[dict[str, str]] = []

    def rule(self, body: str, options: str = "") -> str:
        """A rule's name."""
        return self._define(f"r{len(self._lines)}", body, options)

    def terminal(self, body: str) -> str:
        """A terminal's name."""
        return self._define(f"T{len(self._lines)}", body)

    def line(self, text: str) -> None:
        """A definition as it is."""
        self._lines.append(text)

    def spelt(self, text: str) -> str:
        """The text with its control tokens as such; in rules only."""
        pieces = self._controls.split(text)
        return " ".join(
            f"<[{self._control_ids[piece]}]>" if index % 2 else quoted(piece)
            for index, piece in enumerate(pieces) if piece
        )

    def is_control(self, text: str) -> bool:
        """Whether a text is one control token."""
        return text in self._control_ids

    def other(self, source: str) -> str:
        """A reference to a whole grammar of its own."""
        name = f"g{len(self._others)}"
        self._others.append({"name": name, "lark_grammar": source})
        return f"@{name}"

    def source(self, start: str) -> str:
        """The grammar that begins with a rule's body."""
        own = "\n".join([f"start: {start}", *self._lines])
        return json.dumps({"grammars": [{"name": "own", "lark_grammar": own}, *self._others]})

    def _define(self, name: str, body: str, options: str = "") -> str:
        self._lines.append(f"{name}{options}: {body}")
        return name


def quoted(text: str) -> str:
    """A text as a string."""
    return json.dumps(text, ensure_ascii=False)


def pattern(regex: str) -> str:
    """A regular expression as a terminal's body; digits and word characters are those of ASCII, as
    in JSON schemas."""
    return f"/{regex_to_lark(regex, 'dw')}/"


def json_value(schema: Mapping[str, Any]) -> str:
    """JSON of a schema, for the body of a rule."""
    return "%json " + json.dumps({**schema, "x-guidance": JSON_OPTIONS}, ensure_ascii=False)


def text_without(tags: Iterable[str]) -> str:
    """Any text that has none of some tags, as a terminal's body.

    Spelt out instead of negated: a negation that meets a limited length takes too much. Each tag
    begins with a character that none has elsewhere.
    """
    given = [*tags]
    firsts = "".join(sorted({tag[0] for tag in given}))
    chunks = "|".join(
        _escaped(first) + _unlike([tag[1:] for tag in given if tag[0] == first], firsts)
        for first in firsts
    )
    plain = _other_than(firsts)
    return f"/{plain}*({chunks})*/"


def _unlike(endings: Sequence[str], firsts: str) -> str:
    """Text without ``firsts`` that begins with none of these."""
    nexts = sorted({ending[0] for ending in endings})
    options = ["", f"{_other_than(firsts + ''.join(nexts))}{_other_than(firsts)}*"]
    for char in nexts:
        after = [ending[1:] for ending in endings if ending[0] == char]
        if all(after):
            options.append(_escaped(char) + _unlike(after, firsts))
    return f"({'|'.join(options)})"


def _other_than(chars: str) -> str:
    return f"[^{''.join(map(_escaped, chars))}]"


def _escaped(char: str) -> str:
    return f"\\x{{{ord(char):x}}}"
