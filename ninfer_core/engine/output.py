"""From tokens to the text of channels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ninfer_core.api import OutputParser, OutputPart
from ninfer_core.text.detokenizer import IncrementalDetokenizer
from ninfer_core.text.stops import StopStrings


class TextOutput:
    """Detokeniser, parser and stop strings of a request, in this order: stop strings are searched
    in the content alone and never cut a reasoning block."""

    def __init__(
        self, token_bytes: Callable[[int], bytes], parser: OutputParser, stops: Sequence[str]
    ) -> None:
        self._token_bytes, self._parser = token_bytes, parser
        self._detokenizer, self._stops = IncrementalDetokenizer(), StopStrings(stops)

    @property
    def matched(self) -> str | None:
        """The stop string that was found; nothing may be fed after it."""
        return self._stops.matched

    def feed(self, token_id: int) -> list[OutputPart]:
        """What a token adds."""
        text = self._detokenizer.feed(self._token_bytes(token_id))
        return list(self._cut(self._parser.feed(text)))

    def finish(self) -> list[OutputPart]:
        """What was withheld, at the end of the output."""
        last = [*self._parser.feed(self._detokenizer.finish()), *self._parser.finish()]
        parts = list(self._cut(last))
        held = self._stops.finish()
        return [*parts, OutputPart("content", held)] if held else parts

    def _cut(self, parts: Iterable[OutputPart]) -> Iterator[OutputPart]:
        for part in parts:
            if self.matched:
                return
            if part.channel != "content":
                yield part
            elif text := self._stops.feed(part.text):
                yield OutputPart("content", text)
