"""Items as a conversation."""

from __future__ import annotations

import pytest

from ninfer_serve.members import Members
from ninfer_serve.responses.conversation import conversation
from ninfer_serve.responses.items import read_input, sealed


def messages(*items, instructions=None):
    return conversation(read_input(Members({"input": list(items)}), lambda _: None), instructions)


def reasoning(text):
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text",
                                                              "text": text}]}


def call(name, call_id, arguments="{}"):
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id, text):
    return {"type": "function_call_output", "call_id": call_id, "output": text}


USER = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "hello"}


def test_a_turn_of_the_assistant_is_one_message():
    user, turn, first, second, after = messages(
        USER, reasoning("hm"), SAID, call("a", "1", '{"x": 1}'), call("b", "2"),
        output("1", "one"), output("2", "two"), USER)
    assert turn == {
        "role": "assistant", "content": "hello", "reasoning_content": "hm",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "a", "arguments": '{"x": 1}'}},
            {"id": "2", "type": "function", "function": {"name": "b", "arguments": "{}"}},
        ]}
    assert first == {"role": "tool", "tool_call_id": "1", "content": "one"}
    assert second["content"] == "two"
    assert user == after == {"role": "user", "content": [{"type": "text", "text": "hi"}]}


def test_thinking_between_calls_stays_with_the_next_one():
    roles = [(m["role"], m.get("reasoning_content")) for m in messages(
        USER, reasoning("one"), call("a", "1"), output("1", "x"), reasoning("two"), call("b", "2"))]
    assert roles == [("user", None), ("assistant", "one"), ("tool", None), ("assistant", "two")]


def test_what_cannot_be_one_turn_is_two():
    assert [m["content"] for m in messages(SAID, SAID)] == ["hello", "hello"]
    assert len(messages(SAID, reasoning("hm"), SAID)) == 2
    assert len(messages(call("a", "1"), reasoning("hm"), call("b", "2"))) == 2


def test_text_behind_a_call_is_of_its_turn():
    [turn] = messages(SAID, call("a", "1"), {"role": "assistant", "content": " there"})
    assert turn["content"] == "hello there"


def test_instructions_come_first_and_later_system_messages_stay_where_they_are():
    found = messages({"role": "developer", "content": "rules"}, USER, SAID,
                     {"role": "system", "content": "more"}, USER, instructions="Be brief")
    assert [m["role"] for m in found] == [
        "system", "developer", "user", "assistant", "system", "user"]
    assert found[0]["content"] == "Be brief"


@pytest.mark.parametrize(("item", "expected"), [
    (reasoning("plain"), "plain"),
    ({"type": "reasoning", "summary": [], "encrypted_content": sealed("sealed")}, "sealed"),
    ({"type": "reasoning", "encrypted_content": "gAAAA",
      "summary": [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]},
     "a\n\nb"),
    ({**reasoning("plain"), "encrypted_content": sealed("other")}, "plain"),
])
def test_reasoning_is_read_where_it_can_be(item, expected):
    [turn] = messages(item, call("a", "1"))
    assert turn["reasoning_content"] == expected


def test_unreadable_reasoning_leaves_no_trace():
    item = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    assert messages(USER, item, SAID) == messages(USER, SAID)
    assert messages(USER, item) == messages(USER)


def test_custom_calls_and_namespaces_are_as_the_model_wrote_them():
    [turn, tool] = messages(
        {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "é\n"},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "done"})
    assert turn["tool_calls"][0]["function"] == {"name": "patch", "arguments": '{"input": "é\\n"}'}
    assert tool == {"role": "tool", "tool_call_id": "1", "content": "done"}
    [turn] = messages({**call("close", "2"), "namespace": "agents"})
    assert turn["tool_calls"][0]["function"]["name"] == "agents__close"


def test_parts_keep_pictures_and_markers():
    [message] = messages({"role": "user", "content": [
        {"type": "input_image", "image_url": "data:x", "detail": "high"},
        {"type": "input_video", "video_url": "data:y"},
        {"type": "input_text", "text": "t", "prompt_cache_breakpoint": {"mode": "explicit"}},
    ]})
    assert message["content"] == [
        {"type": "image_url", "image_url": {"url": "data:x", "detail": "high"}},
        {"type": "video_url", "video_url": {"url": "data:y"}},
        {"type": "text", "text": "t", "cache_control": {"type": "ephemeral"}},
    ]


def test_broken_arguments_of_history_become_text(frontend):
    """One bad call of a model must not end its session."""
    found = messages(USER, call("add", "1", '{"a": '), output("1", "error"))
    assert 'add({"a": )' in frontend.prepare(found).text


def test_a_result_whose_call_is_gone_is_still_read(frontend):
    assert "lost" in frontend.prepare(messages(output("1", "lost"))).text


def test_the_next_turn_goes_on_from_the_tokens_of_this_one(frontend):
    """What the model wrote is rendered to the same tokens again, so that they are read once."""
    tools = [{"type": "function", "function": {"name": "add", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}}}}}]
    before = frontend.prepare(messages(USER), tools=tools)
    wrote = ("so\n</think>\n\nOne moment.<tool_call>\n<function=add>\n<parameter=a>\n1\n"
             "</parameter>\n</function>\n</tool_call>")
    after = frontend.prepare(messages(
        USER, reasoning("so"), {"role": "assistant", "content": "One moment."},
        call("add", "1", '{"a": 1}'), output("1", "2")), tools=tools)
    assert after.text.startswith(before.text + wrote)
    assert after.token_ids[: len(before.token_ids)] == before.token_ids
