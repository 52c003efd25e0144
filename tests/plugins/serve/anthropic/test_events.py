"""Answers as stream events, and as one message."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import PreparedPrompt, ReasoningTokens, ToolCall
from ninfer_core.engine.request import Finished, Reuse, TextDelta, Timings, Usage
from ninfer_serve.anthropic.events import BlockStream, Head, content_of, stop_of

TIMINGS = Timings(0, 0, 0, 0, 0, 0, 0)


def streamed(*events):
    blocks = BlockStream("a1")
    made = [each for event in events for each in blocks.feed(event)]
    return [*made, *blocks.close()]


def say(text, channel="content"):
    return TextDelta(channel, text)


def kinds(events):
    return [
        (event["type"].removeprefix("content_block_"), event["index"],
         (event.get("content_block") or event.get("delta") or {}).get("type"))
        for event in events
    ]


def plain(blocks):
    return json.loads(msgspec.json.encode(blocks))


def test_each_kind_is_a_block_of_its_own():
    events = streamed(say("Hm", "reasoning"), say(".", "reasoning"), say("I look."),
                      ToolCall(0, "ls", '{"path": "東"}'), say("Done."))
    assert kinds(events) == [
        ("start", 0, "thinking"), ("delta", 0, "thinking_delta"), ("delta", 0, "thinking_delta"),
        ("delta", 0, "signature_delta"), ("stop", 0, None),
        ("start", 1, "text"), ("delta", 1, "text_delta"), ("stop", 1, None),
        ("start", 2, "tool_use"), ("delta", 2, "input_json_delta"), ("stop", 2, None),
        ("start", 3, "text"), ("delta", 3, "text_delta"), ("stop", 3, None),
    ]
    thinking, text, call, last = plain(content_of(events))
    assert thinking["thinking"] == "Hm."
    assert len(thinking["signature"]) == 44
    assert text == {"type": "text", "text": "I look."}
    assert call == {"type": "tool_use", "id": "toolu_a100", "name": "ls", "input": {"path": "東"}}
    assert last == {"type": "text", "text": "Done."}


def test_blocks_begin_empty():
    starts = [event["content_block"] for event in streamed(
        say("a", "reasoning"), say("b"), ToolCall(0, "ls", "{}")
    ) if event["type"] == "content_block_start"]
    assert starts == [
        {"type": "thinking", "thinking": "", "signature": ""}, {"type": "text", "text": ""},
        {"type": "tool_use", "id": "toolu_a100", "name": "ls", "input": {}},
    ]


def test_calls_of_one_tool_have_ids_of_their_own():
    made = plain(content_of(streamed(
        ToolCall(0, "read", '{"path": "/a"}'), say("\n"), ToolCall(1, "read", '{"path": "/b"}')
    )))
    assert [(each["id"], each["input"]["path"]) for each in made] == [
        ("toolu_a100", "/a"), ("toolu_a101", "/b"),
    ]


def test_white_space_alone_is_no_block_and_is_kept_before_text():
    assert streamed(say(" "), say("\n")) == []
    assert plain(content_of(streamed(say("\n"), say(" a"), say("\n")))) == [
        {"type": "text", "text": "\n a\n"}
    ]
    assert kinds(streamed(say("Hm", "reasoning"), say("\n"), ToolCall(0, "ls", "{}")))[3:5] == [
        ("stop", 0, None), ("start", 1, "tool_use"),
    ]


def test_numbers_of_arguments_are_as_the_model_wrote_them():
    made = msgspec.json.encode(content_of(streamed(ToolCall(0, "f", '{"n": 1' + "0" * 30 + "}"))))
    assert b"1" + b"0" * 30 in made


@given(st.lists(st.tuples(st.sampled_from(["content", "reasoning"]), st.text(min_size=1))))
def test_blocks_are_the_same_however_text_is_cut(pieces):
    whole = streamed(*(say(text, channel) for channel, text in pieces))
    cut = streamed(*(say(letter, channel) for channel, text in pieces for letter in text))
    assert content_of(whole) == content_of(cut)
    for event in whole:
        if event["type"] == "content_block_delta":
            assert all(event["delta"].values())


def finished(reason, stop=None):
    return Finished(reason, Usage(10, 3), TIMINGS, (), stop)


@pytest.mark.parametrize(("reason", "called", "wanted"), [
    ("stop-token", False, "end_turn"), ("stop-token", True, "tool_use"),
    ("output-limit", False, "max_tokens"), ("output-limit", True, "max_tokens"),
    ("context-capacity", False, "model_context_window_exceeded"),
])
def test_why_an_answer_ended(reason, called, wanted):
    end = stop_of(finished(reason), called=called)
    assert end == {"stop_reason": wanted, "stop_sequence": None}


def test_a_stop_sequence_is_named():
    end = stop_of(finished("stop-string", "HALT"), called=False)
    assert end == {"stop_reason": "stop_sequence", "stop_sequence": "HALT"}


def test_tokens_are_counted_once():
    """Reused ones apart; thinking with its closing mark."""
    head = Head("a1", "m", PreparedPrompt(tuple(range(100)), "", reasoning_open=True),
                ReasoningTokens(7, 8, (8,)))
    reuse = Reuse(64, "turn", "pool")
    assert head.message(reuse)["usage"] == {
        "input_tokens": 36, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 64,
        "output_tokens": 0, "output_tokens_details": {"thinking_tokens": 0},
    }
    end = Finished("stop-token", Usage(100, 5), TIMINGS, (3, 4, 8, 5, 6), reuse=reuse)
    usage = head.final_usage(end)
    assert (usage["output_tokens"], usage["output_tokens_details"]) == (5, {"thinking_tokens": 3})
