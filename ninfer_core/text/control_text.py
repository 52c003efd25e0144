"""Control tokens in text: a template's own against those that content merely spells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ninfer_core.text.unicode import unicode_scalars

_STAND_IN = 0x100000  # private use plane 16


class Scaffolding(str):
    """Text of ours among content, whose control tokens are meant."""


class ControlText:
    """Keeps content from spelling control tokens while a template runs.

    :meth:`hide` replaces, in content, each character that a control token begins or ends with by a
    stand-in; :meth:`split` then finds only the control tokens that the template wrote, and
    :meth:`reveal` brings the characters back. Without such tokens the ids are those of a plain
    rendering, because text is cut nowhere else.

    :param tokens: texts of the control tokens.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        longest_first = sorted(tokens, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
        edges = {ord(token[end]) for token in longest_first for end in (0, -1)}
        self._reveal = {_STAND_IN + edge: edge for edge in edges}
        self._hide = {stand_in: 0xFFFD for stand_in in self._reveal}
        self._hide |= {edge: stand_in for stand_in, edge in self._reveal.items()}

    def hide(self, value: Any) -> Any:
        """A copy of a string, or of nested mappings and lists with all their strings; `Scaffolding`
        is left as it is, and what has no UTF-8 form becomes U+FFFD."""
        if isinstance(value, Scaffolding):
            return str(value)
        if isinstance(value, str):
            return unicode_scalars(value).translate(self._hide)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self.hide(item) for item in value]
        return value

    def reveal(self, text: str) -> str:
        """Undo :meth:`hide` in rendered text."""
        return text.translate(self._reveal)

    def split(self, text: str) -> list[str]:
        """Alternately plain text (maybe empty) and a control token, beginning with text."""
        return self._pattern.split(text)
