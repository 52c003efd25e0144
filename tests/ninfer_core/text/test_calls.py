"""Calls in a stream: the same however it is cut (reported bug 13), in linear time."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.api import OutputPart
from ninfer_core.text.calls import CallScanner, FoundCall, ToolCallParser
from ninfer_tool_calls.function_calls import TAGS, FunctionCalls

GRAMMAR = FunctionCalls([
    {"type": "function", "function": {"name": "f", "parameters": {"properties": {
        "a": {"type": "integer"}, "b": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "ff"}},
])
CALL = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
FRAGMENTS = st.sampled_from([
    *TAGS, "f>", "ff>", "g>", "a>", "b>", "<function=f>", "<parameter=a>\n", "<parameter=b>\n",
    "\n", " ", "\r\n", "x", "<", ">", "</", "1", "{}", "true",
    "\n</parameter>\n</function>\n</tool_call>", "<tool_call>\n<function=f>\n<parameter=a>\n", CALL,
    "<tool_", "</function", "</think>", "é",
])
TEXTS = st.lists(FRAGMENTS, max_size=14).map("".join)
CUTS = st.lists(st.integers(0, 120), max_size=20)
FIVE = [
    f"so:\n\n{CALL}", f"{CALL}\n{CALL}", CALL.replace("</parameter>\n", ""),
    CALL.replace("1", "see </tool_call> and </parameter> here"), CALL.replace("=f>", "=g>") + "\n",
]


def answer(pieces):
    """Content and calls."""
    parser = ToolCallParser(GRAMMAR)
    parts = [part for piece in pieces for part in parser.feed(piece)] + [*parser.finish()]
    texts = [part.text for part in parts if isinstance(part, OutputPart)]
    assert all(texts)
    return "".join(texts), [part for part in parts if not isinstance(part, OutputPart)]


def scanned(pieces):
    """Text and calls in order, of prose."""
    scanner, out = CallScanner(GRAMMAR, in_prose=True), []
    found = [each for piece in pieces for each in scanner.feed(piece)] + [*scanner.finish()]
    for each in found:
        if isinstance(each, str) and out and isinstance(out[-1], str):
            out[-1] += each
        else:
            out.append(each)
    return out


@settings(max_examples=500)
@given(text=TEXTS, cuts=CUTS)
def test_independent_of_cutting(cut, text, cuts):
    whole = answer([text])
    assert answer(cut(text, cuts)) == whole
    assert answer(text) == whole
    assert scanned(cut(text, cuts)) == scanned([text])


@pytest.mark.parametrize("width", [1, 2, 3, 7])
@pytest.mark.parametrize("text", FIVE)
def test_independent_of_even_pieces(text, width):
    assert answer(text[i : i + width] for i in range(0, len(text), width)) == answer([text])


@given(text=TEXTS)
def test_without_calls_the_content_is_the_text(text):
    content, calls = answer([text])
    if not calls:
        assert content == text
    for index, call in enumerate(calls):
        assert call.index == index and call.name in ("f", "ff")
        assert isinstance(json.loads(call.arguments), dict)


@given(text=TEXTS)
def test_a_scanner_gives_back_every_character(text):
    assert "".join(each if isinstance(each, str) else each.text for each in scanned([text])) == text


@pytest.mark.parametrize("space", ["\r\n", " \n", "\n\n"])
def test_white_space_behind_a_call_is_not_part_of_it(space):
    text = f"{CALL}{space}x"
    [call, rest] = scanned([text])
    assert scanned(text) == [call, rest] and (call.text, rest) == (CALL, f"{space}x")


def test_prose_has_calls_at_the_start_of_a_line_alone():
    [before, call] = scanned([f"a {CALL}\n  {CALL}"])
    assert before == f"a {CALL}\n  " and isinstance(call, FoundCall)
    [text] = scanned([CALL.removeprefix("<tool_call>\n")])
    assert isinstance(text, str)


SIZE = 50_000
LONG = {
    "a value": "<tool_call>\n<function=f>\n<parameter=b>\n" + "x" * 200_000,
    "closing tags": "<tool_call>\n<function=f>\n<parameter=b>\n" + "</parameter>" * (SIZE // 12),
    "space after a closing tag": "<tool_call><function=f><parameter=b></parameter>" + " " * SIZE,
    "parameters in a value": "<tool_call><function=f><parameter=b>"
    + "\n<parameter=" * (SIZE // 12),
    "examples in a value": "<tool_call><function=f><parameter=b>" + "\n<function=" * (SIZE // 11),
    "openings": "<tool_call>\n" * (SIZE // 12),
    "a name": "<tool_call><function=" + "f" * SIZE,
    "space": "\n " * (SIZE // 2),
    "calls": CALL * (SIZE // len(CALL)),
    "broken calls": "<tool_call>\n<function=g>\n" * (SIZE // 25),
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG.keys())
def test_one_character_after_another_takes_linear_time(text):
    started = time.monotonic()
    content, calls = answer(text)
    assert calls or content == text
    assert time.monotonic() - started < 20  # it takes one; searching anew takes minutes
