"""The reasoning split: every character once, independent of cutting, and calls in it."""

import re
import time
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.api import OutputPart
from ninfer_core.text.calls import CallScanner, ToolCallParser
from ninfer_core.text.parsers import PlainParser, ReasoningParser
from ninfer_tool_calls.function_calls import FunctionCalls

PING = "<tool_call>\n<function=ping>\n</function>\n</tool_call>"
READ = "<tool_call>\n<function=read>\n<parameter=path>\n/a\n</parameter>\n</function>\n</tool_call>"
GRAMMAR = FunctionCalls([{"type": "function", "function": {"name": each}}
                         for each in ("ping", "read")])
PIECES = st.sampled_from([
    "<think>", "</think>", "<thi", "nk>", "</", "think>", "\n", " ", "a", "<", ">", "b\n\n", PING,
    "<tool_call>\n<function=read>\n<parameter=path>\n", "</function>", "</tool_call>", "\n</",
])
TEXTS = st.lists(PIECES, max_size=12).map("".join)
CUTS = st.lists(st.integers(0, 90), max_size=12)
OPEN = st.booleans()


def channels(parser, pieces):
    """Reasoning, content and names of calls."""
    joined, calls = {"reasoning": "", "content": ""}, []
    for part in [part for piece in pieces for part in parser.feed(piece)] + [*parser.finish()]:
        if isinstance(part, OutputPart):
            assert part.text, "an empty part was emitted"
            joined[part.channel] += part.text
        else:
            calls.append(part.name)
    return joined["reasoning"], joined["content"], calls


def plain(*, reasoning_open=False):
    return ReasoningParser(reasoning_open=reasoning_open)


def with_tools(*, reasoning_open=True):
    return ReasoningParser(
        reasoning_open=reasoning_open, content=ToolCallParser(GRAMMAR),
        calls=partial(CallScanner, GRAMMAR, in_prose=True),
    )


@pytest.mark.parametrize("make", [plain, with_tools])
@pytest.mark.parametrize(("text", "reasoning_open", "reasoning", "content"), [
    ("<think>\nhm\n</think>\n\nyes", False, "hm", "yes"),
    ("hm\n</think>\n\nyes", True, "hm", "yes"),
    ("\n\n<think></think>yes", False, "", "yes"),
    ("plain answer", False, "", "plain answer"),
    ("  indented", False, "", "  indented"),
    ("the tag <think> is text here", False, "", "the tag <think> is text here"),
    ("Let me count: one, two", True, "Let me count: one, two", ""),
    ("a </thin", True, "a </thin", ""),
    ("a\n\n", True, "a\n\n", ""),
    ("<thi", False, "", "<thi"),
    ("use `<call>` so.</think>Done </think>.", True, "use `<call>` so.", "Done </think>."),
    ("why <think> so</think>\n  code", True, "why <think> so", "  code"),
])
def test_split(make, text, reasoning_open, reasoning, content):
    parser = make(reasoning_open=reasoning_open)
    assert channels(parser, [text]) == (reasoning, content, [])


def test_a_block_that_is_opened_again_is_reasoning_too():
    """As after a closing tag that was forced on a model."""
    text = "hm\n</think>\n\n<think>\n</think>\n\nyes"
    assert channels(plain(reasoning_open=True), [text]) == ("hm", "yes", [])


class TestCallsInReasoning:
    """Reported bug 10 and its opposite, together."""

    @pytest.mark.parametrize(("text", "expected"), [
        (f"Let me see.\n\n{PING}", ("Let me see.", "", ["ping"])),
        (PING, ("", "", ["ping"])),
        (f"a\n{READ}\n{PING}\nDone.", ("a", "Done.", ["read", "ping"])),
        (f"a\n{PING}".removesuffix("\n</tool_call>"), ("a", "", ["ping"])),
    ])
    def test_in_a_block_that_is_never_closed_a_complete_call_is_one(self, text, expected):
        assert channels(with_tools(), [text]) == channels(with_tools(), text) == expected

    @pytest.mark.parametrize("thought", [
        "Qwen wraps a call in `<tool_call>`, GLM nests `<arg_key>`; neither is wanted here.",
        f"I could write {PING} but no.", f"An example:\n{PING}\nThat is all.",
        "It goes\n<tool_call>\nand on", "<function=ping>\n</function>",
        READ.replace("=read", "=undeclared"), READ.partition("\n</parameter>")[0],
    ])
    def test_prose_about_calls_is_a_thought(self, thought):
        text = f"{thought}</think>No tool needed."
        expected = (thought, "No tool needed.", [])
        assert channels(with_tools(), [text]) == channels(with_tools(), text) == expected

    @pytest.mark.parametrize("thought", [
        f"I could write {PING} but no.", "It goes\n<tool_call>\nand on",
        "<function=ping>\n</function>", READ.replace("=read", "=undeclared"),
        READ.partition("</parameter>")[0], f"a\n{PING.replace('</function>', 'x</function>')}",
    ])
    def test_nor_is_it_a_call_if_the_block_stays_open(self, thought):
        assert channels(with_tools(), [thought]) == (thought, "", [])

    def test_the_two_together(self):
        """Prose first, then a call that ends the reasoning."""
        prose = "In Qwen's `<tool_call>`:\n<tool_call> begins it. So:"
        assert channels(with_tools(), f"{prose}\n{PING}") == (prose, "", ["ping"])

    def test_a_thought_call_does_not_keep_the_real_one_from_being_made(self):
        text = f"Maybe\n{PING}\nno.\n</think>\n\n{READ}"
        assert channels(with_tools(), [text]) == (f"Maybe\n{PING}\nno.", "", ["read"])

    def test_only_text_from_the_tag_on_is_withheld(self):
        parser = with_tools()
        [part] = parser.feed("Let me see.\n<tool_call>\n<function=read>\n<parameter=path>\n/a")
        assert part == OutputPart("reasoning", "Let me see.")

    def test_without_tools_markup_is_text(self):
        assert channels(plain(reasoning_open=True), [PING]) == (PING, "", [])
        assert channels(plain(), [PING]) == ("", PING, [])


@settings(max_examples=300)
@given(text=TEXTS, reasoning_open=OPEN, cuts=CUTS, make=st.sampled_from([plain, with_tools]))
def test_independent_of_cutting(cut, text, reasoning_open, cuts, make):
    whole = channels(make(reasoning_open=reasoning_open), [text])
    assert channels(make(reasoning_open=reasoning_open), cut(text, cuts)) == whole


@given(text=TEXTS, reasoning_open=OPEN)
def test_no_text_is_lost_or_said_twice(text, reasoning_open):
    reasoning, content, _ = channels(plain(reasoning_open=reasoning_open), [text])

    def bare(text):
        return re.sub(r"</?think>|\s", "", text)

    assert bare(reasoning) + bare(content) == bare(text)


@given(text=TEXTS, reasoning_open=OPEN)
def test_what_is_said_as_reasoning_is_never_taken_back(text, reasoning_open):
    """Each part is said once and for all, so parts so far only ever grow."""
    parser, said = with_tools(reasoning_open=reasoning_open), ""
    for char in text:
        said += "".join(p.text for p in parser.feed(char) if isinstance(p, OutputPart))
    rest = "".join(p.text for p in parser.finish() if isinstance(p, OutputPart))
    reasoning, content, _ = channels(with_tools(reasoning_open=reasoning_open), [text])
    assert said + rest == reasoning + content


def test_content_goes_through_the_parser_given_for_it():
    class Shouting(PlainParser):
        def feed(self, text):
            return super().feed(text.upper())

    parser = ReasoningParser(reasoning_open=True, content=Shouting())
    assert channels(parser, ["so", "</think>", "yes"]) == ("so", "YES", [])


@pytest.mark.parametrize("text", ["\n" * 200_000, "a\n" * 25_000, f"{PING}\n" * 1_000])
def test_one_character_after_another_takes_linear_time(text):
    started = time.monotonic()
    channels(with_tools(), text)
    assert time.monotonic() - started < 20  # it takes one


@given(pieces=st.lists(st.text(max_size=5)))
def test_plain_is_all_content(pieces):
    assert channels(PlainParser(), pieces) == ("", "".join(pieces), [])
