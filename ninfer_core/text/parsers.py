"""Output parsers: the channels of an answer's text."""

from __future__ import annotations

from collections.abc import Sequence

from ninfer_core.api import OutputParser, OutputPart
from ninfer_core.text.stops import held_length


class PlainParser:
    """Everything is content."""

    def feed(self, text: str) -> Sequence[OutputPart]:
        """``text`` as it is."""
        return (OutputPart("content", text),) if text else ()

    def finish(self) -> Sequence[OutputPart]:
        """Nothing is ever withheld."""
        return ()


class ReasoningParser:
    """Splits a leading reasoning block from the answer; independent of how the text is cut.

    The opening tag counts only before any other text, the closing tag only inside the block;
    elsewhere tags are text. White space before an opening tag, and newlines next to a tag, are
    dropped with it. A block that is never closed is all reasoning.

    :param reasoning_open: whether the prompt ended inside a block.
    :param content: parser of what follows the block.
    """

    def __init__(
        self, *, reasoning_open: bool, content: OutputParser | None = None,
        opening: str = "<think>", closing: str = "</think>",
    ) -> None:
        self._content = content or PlainParser()
        self._opening, self._closing = opening, closing
        self._state = "reasoning" if reasoning_open else "start"
        self._after_tag = reasoning_open
        self._held = ""

    def feed(self, text: str) -> Sequence[OutputPart]:
        """What ``text`` adds to each channel; what may belong to a tag is withheld."""
        self._held += text
        parts: list[OutputPart] = []
        if self._state == "start":
            self._open()
        if self._state == "reasoning":
            parts += self._reason()
        if self._state == "content":
            parts += self._content.feed(self._take())
        return parts

    def finish(self) -> Sequence[OutputPart]:
        """What was withheld."""
        held = self._take()
        if self._state == "reasoning":
            return (OutputPart("reasoning", held),) if held else ()
        return [*self._content.feed(held), *self._content.finish()]

    def _open(self) -> None:
        text = self._held.lstrip()
        if text.startswith(self._opening):
            self._held = text.removeprefix(self._opening)
            self._state, self._after_tag = "reasoning", True
        elif not self._opening.startswith(text):
            self._state = "content"

    def _reason(self) -> Sequence[OutputPart]:
        before, closed, after = self._take().partition(self._closing)
        maybe = 0 if closed else held_length(before, (self._closing,))
        body = before[: len(before) - maybe].rstrip("\n")
        self._held = after if closed else before[len(body) :]
        if closed:
            self._state, self._after_tag = "content", True
        return (OutputPart("reasoning", body),) if body else ()

    def _take(self) -> str:
        text, self._held = self._held, ""
        if self._after_tag:
            text = text.lstrip("\n")
            self._after_tag = not text
        return text
