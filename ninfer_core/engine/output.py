"""From tokens to the text of channels and to tool calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ninfer_core.api import AnswerPart, OutputParser, OutputPart
from ninfer_core.text.detokenizer import IncrementalDetokenizer
from ninfer_core.text.stops import StopStrings


class TextOutput:
    """Detokeniser, parser and stop strings of a request, in this order: stop strings are searched
    in the content alone and never cut a reasoning block.

    :param num_unsearched: first tokens whose text is part of no stop string.
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], parser: OutputParser, stops: Sequence[str],
        num_unsearched: int = 0,
    ) -> None:
        self._token_bytes, self._parser, self._num_unsearched = token_bytes, parser, num_unsearched
        self._detokenizer, self._stops = IncrementalDetokenizer(), StopStrings(stops)

    @property
    def matched(self) -> str | None:
        """The stop string that was found; nothing may be fed after it."""
        return self._stops.matched

    def feed(self, token_id: int) -> list[AnswerPart]:
        """What a token adds."""
        self._num_unsearched -= 1
        text = self._detokenizer.feed(self._token_bytes(token_id))
        return list(self._cut(self._parser.feed(text)))

    def finish(self) -> list[AnswerPart]:
        """What was withheld, at the end of the output."""
        last = [*self._parser.feed(self._detokenizer.finish()), *self._parser.finish()]
        return [*self._cut(last), *self._held()]

    def _cut(self, parts: Iterable[AnswerPart]) -> Iterator[AnswerPart]:
        for part in parts:
            if self.matched:
                return
            if not isinstance(part, OutputPart) or part.channel != "content":
                yield from self._held()
                yield part
            elif self._num_unsearched >= 0:
                yield part
            elif text := self._stops.feed(part.text):
                yield OutputPart("content", text)

    def _held(self) -> Iterator[OutputPart]:
        """Content that no stop string can begin with any more."""
        if held := self._stops.finish():
            yield OutputPart("content", held)
