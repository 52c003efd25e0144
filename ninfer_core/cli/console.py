"""Where output goes: the answer alone on stdout, everything else on stderr."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Sequence
from typing import Self, TextIO

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
LOG_LEVELS = {
    "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING,
    "error": logging.ERROR, "off": logging.CRITICAL + 1,
}
BAR_WIDTH = 30
ERASE_LINE = "\r\x1b[2K"


def set_up_streams(log_level: str) -> None:
    """Send log records to stderr, and let stdout take whatever a model writes in any locale."""
    level = LOG_LEVELS[log_level]
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s: %(message)s")
    logging.getLogger().setLevel(max(level, logging.WARNING))  # libraries chatter below that
    logging.getLogger("ninfer_core").setLevel(level)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


class Console:
    """The streams of a command. Progress is one line, on a terminal only, that leaves no trace."""

    def __init__(self, log_level: str) -> None:
        self._verbose = LOG_LEVELS[log_level] <= logging.INFO
        self._unfinished: set[TextIO] = set()
        self._line = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._draw("")

    def stream(self, channel: str, text: str) -> None:
        """A piece of an answer: content goes to stdout, any other channel to stderr."""
        self._draw("")
        if channel == "content":
            self._end_line(sys.stderr)
            self._write(sys.stdout, text)
        elif self._verbose:
            self._write(sys.stderr, text)

    def end_lines(self) -> None:
        """Close the lines that the answer left open."""
        self._end_line(sys.stderr)
        self._end_line(sys.stdout)

    def note(self, text: str) -> None:
        """A line for the reader, at log level info and debug."""
        self._draw("")
        if self._verbose:
            print(text, file=sys.stderr, flush=True)

    def progress(self, phase: str, done: int, total: int) -> None:
        """A :data:`~ninfer_core.api.Progress` callback."""
        if self._verbose and sys.stderr.isatty():
            bar = "#" * (BAR_WIDTH * done // total) if total else ""
            share = f" [{bar:{BAR_WIDTH}}] {100 * done // total} %" if total else ""
            self._draw(f"{phase}{share}")

    def _draw(self, line: str) -> None:
        """Put ``line`` in the place of the progress line."""
        if line != self._line:
            sys.stderr.write(ERASE_LINE + line)
            sys.stderr.flush()
            self._line = line

    def _write(self, file: TextIO, text: str) -> None:
        file.write(text)
        file.flush()
        (self._unfinished.discard if text.endswith("\n") else self._unfinished.add)(file)

    def _end_line(self, file: TextIO) -> None:
        if file in self._unfinished:
            self._write(file, "\n")


def table(*rows: Sequence[object]) -> str:
    """Rows in aligned columns, each cell on one line; the last column is free."""
    cells = [[" ".join(str(cell).split()) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    aligned = (map(str.ljust, row, widths) for row in cells)
    return "\n".join("  ".join(row).rstrip() for row in aligned)
