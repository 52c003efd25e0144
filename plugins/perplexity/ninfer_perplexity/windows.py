"""Windows over a text: which tokens are scored in which, and what a step reads of one."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen


@frozen
class Window:
    """Tokens ``begin:end`` of a text, read from an empty state; ``first:end`` are its targets."""

    begin: int
    first: int
    end: int


@frozen
class Chunk:
    """Inputs ``begin:end`` of a window in one step; the tokens after the last ``num_targets`` of
    them are targets."""

    begin: int
    end: int
    num_targets: int


def windows(num_tokens: int, context: int, stride: int) -> Iterator[Window]:
    """Windows in which every token after the first is a target exactly once.

    The first window is tokens ``0 : context``. Every later one begins ``stride`` tokens after the
    one before; its targets begin where those ended, behind ``context - stride`` tokens of history.

    :param context: tokens of a window. :param stride: 1 to ``context - 1``.
    """
    first, begin = 1, 0
    while first < num_tokens:
        end = min(begin + context, num_tokens)
        yield Window(begin, first, end)
        first, begin = end, begin + stride


def chunks(window: Window, most: int, most_targets: int) -> Iterator[Chunk]:
    """The inputs of a window (all its tokens but the last), in steps.

    :param most: tokens of a step. :param most_targets: tokens of a step that has targets.
    """
    at, last = window.begin, window.end - 1
    while at < last:
        end = min(at + most, last)
        if end >= window.first:
            end = min(at + most_targets, last)
        yield Chunk(at, end, max(0, end - max(at, window.first - 1)))
        at = end
