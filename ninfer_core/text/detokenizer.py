"""Bytes of tokens to text."""

from __future__ import annotations

import codecs


class IncrementalDetokenizer:
    """Decodes UTF-8 as it arrives and never splits a character; independent of how it is cut."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """The text that ``data`` completes; may be empty."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """One U+FFFD if a character was left unfinished."""
        return self._decoder.decode(b"", final=True)
