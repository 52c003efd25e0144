"""Where output goes: the answer alone on stdout, everything else on stderr."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any, Self, TextIO

from ninfer_core.api import ToolCall

UNLIMITED = 10_000
"""Columns of what is no terminal."""
LOG_LEVELS = {
    "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING,
    "error": logging.ERROR, "off": logging.CRITICAL + 1,
}


class _Brief(logging.Formatter):
    """Names the cause of a record in a line; only debug shows tracebacks."""

    def formatException(self, ei: Any) -> str:
        return f"  {ei[0].__name__}: {ei[1]}"


def open_missing_streams() -> None:
    """Put an empty stream in the place of one that the process was started without."""
    for name, mode in ("stdin", "r"), ("stdout", "w"), ("stderr", "w"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def set_up_streams(log_level: str) -> None:
    """Send log records to stderr, and let stdout take whatever a model writes in any locale."""
    level = LOG_LEVELS[log_level]
    handler = logging.StreamHandler()
    formatter = logging.Formatter if log_level == "debug" else _Brief
    handler.setFormatter(formatter("%(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger().setLevel(max(level, logging.WARNING))  # libraries chatter below that
    logging.getLogger("ninfer_core").setLevel(level)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


class Console:
    """The streams of a command. Progress is one line, on a terminal only, that leaves no trace."""

    def __init__(self, log_level: str) -> None:
        self._verbose = LOG_LEVELS[log_level] <= logging.INFO
        self._unfinished: set[TextIO] = set()
        self._calls: list[ToolCall] = []
        self._bar: ProgressLine | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._clear()

    def stream(self, channel: str, text: str) -> None:
        """A piece of an answer: content goes to stdout, any other channel to stderr."""
        self._clear()
        if channel == "content":
            self._end_line(sys.stderr)
            self._write(sys.stdout, text)
        elif self._verbose:
            self._write(sys.stderr, text)

    def call(self, call: ToolCall) -> None:
        """A tool call: a line of JSON on stdout, when the answer has ended."""
        self._calls.append(call)

    def end_answer(self) -> None:
        """Close the lines that the answer left open, and write its calls."""
        self._end_line(sys.stderr)
        self._end_line(sys.stdout)
        for call in self._calls:
            line = {"name": call.name, "arguments": json.loads(call.arguments)}
            self._write(sys.stdout, json.dumps(line, ensure_ascii=False) + "\n")
        self._calls = []

    def note(self, text: str) -> None:
        """A line for the reader, at log level info and debug."""
        self._clear()
        if self._verbose:
            print(text, file=sys.stderr, flush=True)

    def progress(self, phase: str, done: int, total: int) -> None:
        """A :data:`~ninfer_core.api.Progress` callback."""
        if self._verbose and sys.stderr.isatty():
            self._bar = self._bar or ProgressLine()
            self._bar.show(phase, done, total)

    def _clear(self) -> None:
        """Take the progress line away."""
        if self._bar:
            self._bar.stop()
            self._bar = None

    def _write(self, file: TextIO, text: str) -> None:
        file.write(text)
        file.flush()
        (self._unfinished.discard if text.endswith("\n") else self._unfinished.add)(file)

    def _end_line(self, file: TextIO) -> None:
        if file in self._unfinished:
            self._write(file, "\n")


class ProgressLine:
    """One line on a terminal that leaves no trace."""

    def __init__(self) -> None:
        # rich takes longer to import than the help of a command may take
        from rich.console import Console as Terminal
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        columns = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn()
        # the answer must never pass through the bar, whoever holds stdout while it runs
        self._progress = Progress(*columns, console=Terminal(file=sys.stderr), transient=True,
                                  redirect_stdout=False)
        self._task = self._progress.add_task("")
        self._progress.start()

    def show(self, phase: str, done: int, total: int) -> None:
        """Put a phase in the line; without a total the bar only moves."""
        self._progress.update(self._task, description=phase, completed=done, total=total or None)

    def stop(self) -> None:
        self._progress.stop()


def table(*rows: Sequence[object]) -> str:
    """Rows in aligned columns. On a terminal the last column wraps, elsewhere nothing does."""
    from rich.console import Console as Terminal
    from rich.table import Table
    from rich.text import Text

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in rows[0][:-1]:
        grid.add_column(no_wrap=True)
    grid.add_column()
    for row in rows:
        grid.add_row(*(Text(" ".join(str(cell).split())) for cell in row))
    terminal = Terminal(file=io.StringIO(), width=width, color_system=None)
    with terminal.capture() as capture:
        terminal.print(grid)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
