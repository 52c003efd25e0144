"""Stop strings in a stream of text."""

from __future__ import annotations

from collections.abc import Sequence


def held_length(text: str, patterns: Sequence[str]) -> int:
    """Length of the longest end of ``text`` with which one of ``patterns`` may be beginning."""
    longest = min(len(text), max(map(len, patterns)) - 1)
    ends = (length for length in range(longest, 0, -1)
            if any(pattern.startswith(text[-length:]) for pattern in patterns))
    return next(ends, 0)


class StopStrings:
    """Cuts a stream before the first stop string; independent of how the stream is cut.

    The match that completes first wins; of those completed by one character, the longest.

    :ivar matched: the stop string that was found, else None.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self._held = tuple(stops), ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text that can be released; what may begin a stop string is withheld."""
        if not self._stops:
            return text
        text = self._held + text
        found = [(text.find(stop) + len(stop), -len(stop), stop)
                 for stop in self._stops if stop in text]
        if found:
            end, _, self.matched = min(found)
            cut, self._held = end - len(self.matched), ""
        else:
            cut = len(text) - held_length(text, self._stops)
            self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """The text still withheld, now that no match can follow."""
        held, self._held = self._held, ""
        return held
