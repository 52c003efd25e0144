"""Output parsers: the channels of an answer's text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ninfer_core.api import AnswerPart, OutputParser, OutputPart
from ninfer_core.text.calls import CallScanner, FoundCall
from ninfer_core.text.tags import TagLexer


class PlainParser:
    """Everything is content."""

    def feed(self, text: str) -> Sequence[AnswerPart]:
        """``text`` as it is."""
        return (OutputPart("content", text),) if text else ()

    def finish(self) -> Sequence[AnswerPart]:
        """Nothing is ever withheld."""
        return ()


class ReasoningParser:
    """Splits leading reasoning blocks from the answer; independent of how the text is cut.

    The opening tag counts only before any other text, the closing tag only inside a block;
    elsewhere tags are text. White space before an opening tag, and newlines next to a tag, are
    dropped with it. A block that is never closed is all reasoning, up to the first complete call
    that it has at the start of a line: there the answer begins. In a block that is closed later
    such a call was a thought.

    :param reasoning_open: whether the prompt ended inside a block.
    :param content: parser of what follows the blocks.
    :param calls: finds calls in a block.
    """

    def __init__(
        self, *, reasoning_open: bool, content: OutputParser | None = None,
        opening: str = "<think>", closing: str = "</think>",
        calls: Callable[[], CallScanner] | None = None,
    ) -> None:
        self._content, self._new_scanner = content or PlainParser(), calls
        self._opening, self._closing = opening, closing
        self._lexer = TagLexer((opening, closing))
        self._space: list[str] = []  # before a block that may follow
        self._block: _Block | None = None
        self._closed, self._answering = False, False
        if reasoning_open:
            self._open()

    def feed(self, text: str) -> Sequence[AnswerPart]:
        """What ``text`` adds to each channel; what may belong to a tag is withheld."""
        if self._answering:
            return self._content.feed(text)
        parts = [part for atom in self._lexer.feed(text) for part in self._take(atom)]
        if self._answering:
            parts += [part for atom in self._lexer.finish() for part in self._content.feed(atom)]
        return parts

    def finish(self) -> Sequence[AnswerPart]:
        """What was withheld."""
        parts = [part for atom in self._lexer.finish() for part in self._take(atom)]
        if self._block:
            parts += self._block.finish()
            rest = self._block.from_call()
        else:
            rest = self._leading_space()
        return [*parts, *(self._content.feed(rest) if rest else ()), *self._content.finish()]

    def _take(self, atom: str) -> Iterable[AnswerPart]:
        if self._answering:
            return self._content.feed(atom)
        if self._block and atom == self._closing:
            parts, self._block, self._closed = self._block.close(), None, True
            return parts
        if self._block:
            return self._block.feed(atom)
        if atom == self._opening:
            self._open()
        elif atom.isspace():
            self._space.append(atom)
        else:
            self._answering = True
            return self._content.feed(self._leading_space(atom))
        return ()

    def _open(self) -> None:
        self._space = []
        self._block = _Block(self._new_scanner and self._new_scanner())

    def _leading_space(self, text: str = "") -> str:
        """White space before the answer, with the text behind it."""
        text, self._space = "".join([*self._space, text]), []
        return text.lstrip("\n") if self._closed else text


class _Block:
    """The inside of one reasoning block."""

    def __init__(self, scanner: CallScanner | None) -> None:
        self._scanner = scanner
        self._newlines, self._begun = 0, False
        self._from_call: list[str] = []

    def feed(self, text: str) -> Iterator[OutputPart]:
        return self._say(self._scanner.feed(text) if self._scanner else [text])

    def close(self) -> Iterator[OutputPart]:
        """The block ends with its tag: all of it was reasoning."""
        yield from self._say(self._scanner.finish() if self._scanner else ())
        yield from self._reason(self.from_call())

    def finish(self) -> Iterator[OutputPart]:
        """The output ends inside the block."""
        yield from self._say(self._scanner.finish() if self._scanner else ())
        if self._newlines and not self._from_call:
            yield OutputPart("reasoning", "\n" * self._newlines)

    def from_call(self) -> str:
        """What has been withheld since the first call, which must be used up."""
        text, self._from_call = "".join(self._from_call), []
        return text

    def _say(self, pieces: Iterable[str | FoundCall]) -> Iterator[OutputPart]:
        for piece in pieces:
            if isinstance(piece, FoundCall) or self._from_call:
                self._from_call.append(piece if isinstance(piece, str) else piece.text)
            else:
                yield from self._reason(piece)

    def _reason(self, text: str) -> Iterator[OutputPart]:
        """Newlines wait for text behind them; the first are dropped."""
        body = text.rstrip("\n")
        if body:
            before = "\n" * self._newlines
            yield OutputPart("reasoning", before + body if self._begun else body.lstrip("\n"))
            self._newlines, self._begun = 0, True
        self._newlines += len(text) - len(body) if self._begun else 0
