"""What goes where, and how tables are laid out."""

from __future__ import annotations

import logging
import sys
from contextlib import redirect_stdout

import pytest

from ninfer_core.api import ToolCall
from ninfer_core.cli.console import Console, set_up_streams, table

UP, ERASE_LINE = "\x1b[1A", "\x1b[2K"


@pytest.fixture
def terminal(monkeypatch):
    """Call it to make a terminal of stderr."""
    monkeypatch.setenv("TERM", "xterm")
    return lambda: monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


def use(console):
    with console:
        for done in range(3):
            console.progress("loading", done, 2)
        console.note("report")


def test_redirected_output_has_no_progress(capsys):
    use(Console("info"))
    assert capsys.readouterr() == ("", "report\n")


def test_progress_is_one_line_that_vanishes(capsys, terminal):
    terminal()
    use(Console("info"))
    out, err = capsys.readouterr()
    assert not out and "loading" in err and "100%" in err
    assert err.endswith(f"{UP}{ERASE_LINE}report\n")


def test_progress_without_a_total_names_the_phase(capsys, terminal):
    terminal()
    with Console("info") as console:
        console.progress("reading", 3, 0)
    assert "reading" in capsys.readouterr().err


@pytest.mark.parametrize("level", ["warning", "error", "off"])
def test_quiet_levels_show_nothing(capsys, terminal, level):
    terminal()
    use(Console(level))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("parts", "out", "err"),
    [
        ([("content", "one"), ("content", " two")], "one two\n", ""),
        ([("content", "one\n")], "one\n", ""),
        ([], "", ""),
        ([("reasoning", "why"), ("content", "because")], "because\n", "why\n"),
        ([("content", "a"), ("reasoning", "b\n"), ("content", "c")], "ac\n", "b\n"),
    ],
)
def test_channels_are_kept_apart_and_lines_ended(capsys, parts, out, err):
    with Console("info") as console:
        for channel, text in parts:
            console.stream(channel, text)
        console.end_answer()
    assert capsys.readouterr() == (out, err)


@pytest.mark.parametrize("content", ["", "so", "so\n"])
def test_calls_are_lines_of_json_after_the_content(capsys, content):
    with Console("off") as console:
        console.call(ToolCall(0, "read", '{"path": "/東京"}'))
        console.call(ToolCall(1, "plan", '{\n"days": [1]}'))
        if content:
            console.stream("content", content)
        console.end_answer()
    assert capsys.readouterr().out == (
        ("so\n" if content else "") + '{"name": "read", "arguments": {"path": "/東京"}}\n'
        '{"name": "plan", "arguments": {"days": [1]}}\n'
    )


def test_reasoning_is_quiet_at_quiet_levels(capsys):
    with Console("warning") as console:
        console.stream("reasoning", "why")
        console.stream("content", "because")
        console.end_answer()
    assert capsys.readouterr() == ("because\n", "")


def test_a_table_aligns_and_keeps_a_cell_on_one_line():
    assert table(("a", "bb"), ("ccc", "d\n  e")) == "a    bb\nccc  d e"


def test_progress_leaves_stdout_alone_whoever_holds_it(capsys, terminal):
    terminal()
    with Console("info") as console:
        with redirect_stdout(sys.stderr):
            console.progress("loading", 1, 2)
        console.stream("content", "answer")
    assert capsys.readouterr().out == "answer"


@pytest.mark.parametrize("level", ["info", "debug"])
def test_only_debug_shows_the_traceback_of_a_warning(capsys, monkeypatch, level):
    monkeypatch.setattr(logging, "root", logging.RootLogger(logging.WARNING))
    set_up_streams(level)
    try:
        raise ValueError("odd")
    except ValueError:
        logging.root.warning("it failed", exc_info=True)
    err = capsys.readouterr().err
    assert err.startswith("WARNING: it failed\n") and err.endswith("ValueError: odd\n")
    assert ("Traceback" in err) == (level == "debug")
