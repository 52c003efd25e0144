"""Grammars in the variant of Lark that constraint engines read, each a little differently."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from attrs import frozen


@frozen
class Fault:
    """Why a grammar is none. :ivar keyword: of a JSON schema, which is to blame, or ""."""

    why: str
    keyword: str = ""


class Lark(ABC):
    """Rules under construction; names are made up.

    :param control_ids: ids of control tokens by their text.
    :cvar most_in_any_order: parts that `any_order` takes.
    :cvar no_text: what classes of all but some characters have to leave out besides.
    """

    most_in_any_order: ClassVar[int]
    no_text: ClassVar[str] = ""

    def __init__(self, control_ids: Mapping[str, int]) -> None:
        self._control_ids = control_ids
        texts = sorted(control_ids, key=len, reverse=True)
        self._controls = re.compile(f"({'|'.join(map(re.escape, texts)) or '(?!)'})")
        self._lines: list[str] = []

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

    def text_without(self, tags: Iterable[str]) -> str:
        """Any text that has none of some tags, as a terminal's body.

        Spelt out instead of negated: a negation that meets a limited length takes too much. Each
        tag begins with a character that none has elsewhere.
        """
        given = [*tags]
        firsts = "".join(sorted({tag[0] for tag in given}))
        chunks = "|".join(
            escaped(first) + self._unlike([tag[1:] for tag in given if tag[0] == first], firsts)
            for first in firsts
        )
        return f"/{self._other_than(firsts)}*({chunks})*/"

    def source(self, start: str) -> str:
        """The grammar that begins with a rule's body."""
        return "\n".join([f"start: {start}", *self._lines])

    @abstractmethod
    def pattern(self, regex: str) -> str:
        """A regular expression, for the body of a terminal; digits and word characters are those of
        ASCII, as in JSON schemas.

        :raises RequestError: if the engine sees that it cannot be held to.
        """

    @abstractmethod
    def json_value(self, schema: Mapping[str, Any]) -> str:
        """JSON of a prepared schema, for the body of a rule; at most eight blanks between tokens.

        :raises RequestError: if the engine sees that it cannot be held to.
        """

    @abstractmethod
    def both(self, body: str, other: str) -> str:
        """What two bodies of terminals have in common, for another such.

        :raises UnsupportedError: if the engine cannot.
        """

    @abstractmethod
    def until(self, text: str, closing: str) -> str:
        """The text of a terminal and, behind it, what it does not contain, for the body of a rule.
        """

    @abstractmethod
    def text_then(self, text: str, lead: str) -> str:
        """The same of a free text and what may or may not follow."""

    @abstractmethod
    def any_order(self, parts: Sequence[str], required: int) -> str:
        """Each part at most once, the first ``required`` of them for certain; the body of a rule.
        """

    def _unlike(self, endings: Sequence[str], firsts: str) -> str:
        """Text without ``firsts`` that begins with none of these."""
        nexts = sorted({ending[0] for ending in endings})
        other, more = self._other_than(firsts + "".join(nexts)), self._other_than(firsts)
        options = ["", f"{other}{more}*"]
        for char in nexts:
            after = [ending[1:] for ending in endings if ending[0] == char]
            if all(after):
                options.append(escaped(char) + self._unlike(after, firsts))
        return f"({'|'.join(options)})"

    def _other_than(self, chars: str) -> str:
        return f"[^{''.join(map(escaped, chars))}{self.no_text}]"

    def _define(self, name: str, body: str, options: str = "") -> str:
        self._lines.append(f"{name}{options}: {body}")
        return name


def quoted(text: str) -> str:
    """A text as a string."""
    return json.dumps(text, ensure_ascii=False)


def escaped(char: str) -> str:
    """A character in a regular expression."""
    code = ord(char)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
