"""Output items and their events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import ToolCall
from ninfer_core.engine.request import TextDelta
from ninfer_serve.members import Members
from ninfer_serve.responses.items import read_input, unsealed
from ninfer_serve.responses.output import Output
from ninfer_serve.responses.tools import read_tools

TOOLS = read_tools(Members({"tools": [
    {"type": "function", "name": "add"}, {"type": "custom", "name": "patch"},
    {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "close"}]},
]}))
CALLS = {"add": '{"a": 1}', "patch": '{"input": "x\\n"}', "agents__close": "{}"}


def play(parts, *, seals=False, status="completed"):
    """Events and items of an answer of these parts."""
    output, events = Output("7", TOOLS, seals=seals), []
    for part in parts:
        take = output.call(part) if isinstance(part, ToolCall) else output.text(part, [])
        events += take
    events += output.close(status)
    return events, output.items


def names(events):
    return [each["type"].removeprefix("response.") for each in events]


def test_the_order_of_events():
    events, _ = play([TextDelta("reasoning", "hm"), TextDelta("content", "a"),
                      TextDelta("content", "b"), ToolCall(0, "add", "{}")])
    text = ["output_item.added", "content_part.added"]
    ends = ["content_part.done", "output_item.done"]
    assert names(events) == [
        *text, "reasoning_text.delta", "reasoning_text.done", *ends,
        *text, "output_text.delta", "output_text.delta", "output_text.done", *ends,
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done",
    ]


def test_a_custom_call_has_events_of_its_own():
    events, [item] = play([ToolCall(0, "patch", CALLS["patch"])])
    assert names(events) == ["output_item.added", "custom_tool_call_input.delta",
                             "custom_tool_call_input.done", "output_item.done"]
    assert events[0]["item"] == {**item, "input": "", "status": "in_progress"}
    assert item == {"type": "custom_tool_call", "id": "ctc_7_0", "call_id": "call_7_0",
                    "name": "patch", "input": "x\n", "status": "completed"}


def test_an_answer_that_was_cut_says_so():
    _, [done, cut] = play([TextDelta("reasoning", "hm"), TextDelta("content", "a")],
                          status="incomplete")
    assert (done["status"], cut["status"]) == ("completed", "incomplete")


def test_reasoning_is_sealed_on_request():
    events, [item] = play([TextDelta("reasoning", "hm "), TextDelta("reasoning", "é")], seals=True)
    assert unsealed(item["encrypted_content"]) == "hm é"
    assert "encrypted_content" not in events[0]["item"]
    assert "encrypted_content" not in play([TextDelta("reasoning", "hm")])[1][0]


PARTS = st.lists(st.one_of(
    st.builds(TextDelta, st.sampled_from(["content", "reasoning"]), st.text(min_size=1)),
    st.sampled_from(sorted(CALLS)),
), max_size=12)


@given(PARTS)
def test_what_was_streamed_is_what_is_in_the_response(parts):
    """Bug 73: ids, places and texts of events are those of the items, and each item is whole."""
    number = iter(range(len(parts)))
    parts = [ToolCall(next(number), each, CALLS[each]) if isinstance(each, str) else each
             for each in parts]
    events, items = play(parts)
    done = [each for each in events if each["type"] == "response.output_item.done"]
    assert [each["item"] for each in done] == items
    assert [each["output_index"] for each in done] == [*range(len(items))]
    assert len({each["id"] for each in items}) == len(items)
    for index, item in enumerate(items):
        own = [each for each in events
               if each["output_index"] == index and each.get("item_id", item["id"]) == item["id"]]
        assert own[0]["type"] == "response.output_item.added"
        assert own[0]["item"]["id"] == item["id"] and own[0]["item"]["status"] == "in_progress"
        streamed = "".join(each.get("delta", "") for each in own)
        assert streamed == (item.get("arguments") or item.get("input")
                            or item["content"][0]["text"])


@given(PARTS)
def test_the_output_can_be_sent_back(parts):
    number = iter(range(len(parts)))
    _, items = play([ToolCall(next(number), each, CALLS[each]) if isinstance(each, str) else each
                     for each in parts])
    again = read_input(Members({"input": items}), lambda _: None)
    assert [each["id"] for each in again] == [each["id"] for each in items]
    assert [each["type"] for each in again] == [each["type"] for each in items]
