"""The reasoning split: every character once, independent of cutting."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.text.parsers import PlainParser, ReasoningParser

PIECES = st.sampled_from(
    ["<think>", "</think>", "<thi", "nk>", "</", "think>", "\n", " ", "a", "<", ">", "b\n\n"]
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


def channels(parser, pieces):
    joined = {"reasoning": "", "content": ""}
    for piece in pieces:
        for part in parser.feed(piece):
            assert part.text, "an empty part was emitted"
            joined[part.channel] += part.text
    for part in parser.finish():
        joined[part.channel] += part.text
    return joined["reasoning"], joined["content"]


def split(text, *, reasoning_open=False):
    return channels(ReasoningParser(reasoning_open=reasoning_open), [text])


@pytest.mark.parametrize(("text", "reasoning_open", "expected"), [
    ("<think>\nhm\n</think>\n\nyes", False, ("hm", "yes")),
    ("hm\n</think>\n\nyes", True, ("hm", "yes")),
    ("\n\n<think></think>yes", False, ("", "yes")),
    ("plain answer", False, ("", "plain answer")),
    ("  indented", False, ("", "  indented")),
    ("the tag <think> is text here", False, ("", "the tag <think> is text here")),
    ("Let me count: one, two", True, ("Let me count: one, two", "")),
    ("a </thin", True, ("a </thin", "")),
    ("<thi", False, ("", "<thi")),
    ("use `<call>` so.</think>Done </think>.", True, ("use `<call>` so.", "Done </think>.")),
])
def test_split(text, reasoning_open, expected):
    assert split(text, reasoning_open=reasoning_open) == expected


@given(text=TEXTS, reasoning_open=st.booleans(), cuts=st.lists(st.integers(0, 60)))
def test_independent_of_cutting(text, reasoning_open, cuts):
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    whole = split(text, reasoning_open=reasoning_open)
    assert channels(ReasoningParser(reasoning_open=reasoning_open), pieces) == whole


@given(text=TEXTS, reasoning_open=st.booleans())
def test_no_text_is_lost_or_said_twice(text, reasoning_open):
    reasoning, content = split(text, reasoning_open=reasoning_open)
    kept = (reasoning + content).replace("\n", "").replace(" ", "")
    bare = text.replace("\n", "").replace(" ", "")
    assert kept in {bare, bare.replace("<think>", "", 1), bare.replace("</think>", "", 1),
                    bare.replace("<think>", "", 1).replace("</think>", "", 1)}


def test_content_goes_through_the_parser_given_for_it():
    class Shouting(PlainParser):
        def feed(self, text):
            return super().feed(text.upper())

    parser = ReasoningParser(reasoning_open=True, content=Shouting())
    assert channels(parser, ["so", "</think>", "yes"]) == ("so", "YES")


@given(pieces=st.lists(st.text(max_size=5)))
def test_plain_is_all_content(pieces):
    assert channels(PlainParser(), pieces) == ("", "".join(pieces))
