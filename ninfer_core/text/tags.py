"""Tags in a stream of text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ninfer_core.text.stops import held_length


class TagLexer:
    """Cuts a stream into atoms: whole tags, and text between them in pieces of any size.

    The tags found do not depend on how the stream is cut. Each begins with a character that none
    has elsewhere, so that tags cannot overlap.
    """

    def __init__(self, tags: Sequence[str]) -> None:
        self._tags, self._held = tuple(tags), ""
        self._pattern = re.compile(f"({'|'.join(map(re.escape, tags))})")

    def feed(self, text: str) -> list[str]:
        """Atoms that ``text`` completes, none empty; what may begin a tag is withheld."""
        *atoms, last = self._pattern.split(self._held + text)
        cut = len(last) - held_length(last, self._tags)
        self._held = last[cut:]
        return [atom for atom in (*atoms, last[:cut]) if atom]

    def finish(self) -> list[str]:
        """The text still withheld, now that no tag can follow."""
        held, self._held = self._held, ""
        return [held] if held else []


def ends_line(text: str, *, at_start: bool) -> bool:
    """Whether only white space stands between the last line break and the end of ``text``.

    :param at_start: whether this is so of what stands before ``text``.
    """
    line = text[text.rfind("\n") + 1 :]
    return (at_start or len(line) < len(text)) and not line.strip()
