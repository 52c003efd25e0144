"""Conversations of content blocks, as messages."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import RequestError
from ninfer_serve.anthropic.content import conversation, system_messages
from ninfer_serve.members import Members

BILLING = "x-anthropic-billing-header: cc_version=9.9.9; cc_entrypoint=cli; cch={};"
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}


def text(value, **more):
    return {"type": "text", "text": value, **more}


def messages_of(*messages):
    return conversation(Members({"messages": list(messages)}))


def only(message):
    made, prefill = messages_of(message, {"role": "user", "content": "next"})
    assert prefill == ""
    return made[:-1]


def system(given):
    return system_messages(Members({"system": given}))


def test_texts_alone_are_blocks():
    made, prefill = messages_of({"role": "user", "content": "hi"})
    assert (made, prefill) == ([{"role": "user", "content": [text("hi")]}], "")
    assert system("Be brief") == [{"role": "system", "content": [text("Be brief")]}]
    assert system(None) == system([]) == system("") == []


def test_blocks_are_paragraphs():
    made = only({"role": "user", "content": [
        text("a"), text("b\n"), text("c"), text(""), text(" d"), IMAGE, text("e")
    ]})
    parts = made[0]["content"]
    texts = [part.get("text") for part in parts]
    assert texts == ["a", "\n\nb\n", "c", " d", None, "e"]
    assert parts[4]["image_url"]["url"] == "data:image/png;base64,QUJD"


@pytest.mark.parametrize("nonce", ["a1b2c", "d3e4f"])
def test_the_billing_line_is_dropped_and_what_follows_kept(nonce):
    line = BILLING.format(nonce)
    wanted = [{"role": "system", "content": [text("You help."), text("\n\nMore")]}]
    assert system([text(line), text("You help."), text("More")]) == wanted
    assert system([text(f"{line}\nYou help."), text("More")]) == wanted
    assert system(f"{line}\nYou help.")[0]["content"] == [text("You help.")]
    assert system(line) == []


def test_only_the_head_of_the_system_prompt_is_searched_for_it():
    line = BILLING.format("a1b2c")
    assert system([text("You help."), text(line)])[0]["content"][1]["text"] == f"\n\n{line}"
    assert only({"role": "user", "content": line})[0]["content"] == [text(line)]


def test_later_system_messages_stay_in_place():
    made, _ = messages_of(
        {"role": "user", "content": "hi"}, {"role": "system", "content": "tokens left: 9000"},
        {"role": "assistant", "content": "hello"},
        {"role": "system", "content": [text("French")]}, {"role": "user", "content": "colour?"},
    )
    assert [each["role"] for each in made] == ["user", "system", "assistant", "system", "user"]
    assert made[1]["content"] == [text("tokens left: 9000")]


def test_a_turn_of_thinking_and_calls():
    made = only({"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "any"},
        {"type": "redacted_thinking", "data": "xx"}, text("I look."),
        {"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "."}},
        {"type": "tool_use", "id": "t2", "name": "ls", "input": {}},
    ]})
    assert made == [{
        "role": "assistant", "content": [text("I look.")], "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": each, "type": "function", "function": {"name": "ls", "arguments": arguments}}
            for each, arguments in (("t1", {"path": "."}), ("t2", {}))
        ],
    }]


def test_text_of_tags_in_an_answer_is_told_apart_from_thinking():
    made = only({"role": "assistant", "content": "use </think> so"})
    assert made[0]["reasoning_content"] == ""


def test_arguments_that_are_text_are_passed_on_for_the_model_to_see():
    made = only({"role": "assistant", "content": [
        {"type": "tool_use", "id": "t1", "name": "ls", "input": '{"broken'}
    ]})
    assert made[0]["tool_calls"][0]["function"]["arguments"] == '{"broken'


def test_results_are_messages_between_what_is_around_them():
    made = only({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": "one"},
        {"type": "tool_result", "tool_use_id": "t2", "content": [text("two"), IMAGE]},
        text("and now?"),
    ]})
    assert [each["role"] for each in made] == ["tool", "tool", "user"]
    assert [each.get("tool_call_id") for each in made] == ["t1", "t2", None]
    assert [part["type"] for part in made[1]["content"]] == ["text", "image_url"]


@pytest.mark.parametrize("content", [None, [], ""])
def test_results_may_be_empty(content):
    block = {"type": "tool_result", "tool_use_id": "t1", "content": content}
    assert only({"role": "user", "content": [block]})[0]["content"] == []


@pytest.mark.parametrize(("content", "wanted"), [
    ("no such file", ["Error:", "\n\nno such file"]), ("Error: no such file", None),
    ("<tool_use_error>x</tool_use_error>", None), ("", ["Error:"]),
])
def test_a_failed_result_says_so(content, wanted):
    made = only({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": content, "is_error": True}
    ]})
    assert [part["text"] for part in made[0]["content"]] == (wanted or [content])


def test_documents_and_search_results_are_text():
    made = only({"role": "user", "content": [
        {"type": "document", "title": "T", "context": "C",
         "source": {"type": "text", "media_type": "text/plain", "data": "body"}},
        {"type": "document", "source": {"type": "content", "content": [text("in"), IMAGE]}},
        {"type": "search_result", "title": "S", "source": "http://s", "content": [text("found")]},
    ]})
    texts = [part.get("text", "").strip() for part in made[0]["content"]]
    assert texts == ["T", "C", "body", "in", "", "S (http://s)", "found"]


def test_markers_stay_where_they_are():
    mark = {"cache_control": {"type": "ephemeral"}}
    made = only({"role": "user", "content": [
        text("a"), text("b", **mark), {**IMAGE, **mark},
        {"type": "tool_result", "tool_use_id": "t", "content": "r", **mark},
    ]})
    assert ["cache_control" in part for part in made[0]["content"]] == [False, True, True]
    assert made[1]["cache_control"] == mark["cache_control"]
    assert system([text("s", **mark)])[0]["content"] == [text("s", **mark)]


def test_a_text_of_the_assistant_at_the_end_is_gone_on_from():
    user = {"role": "user", "content": "hi"}
    for content in ("The answer is (", [text("The answer is (")]):
        made, prefill = messages_of(user, {"role": "assistant", "content": content})
        assert (len(made), prefill) == (1, "The answer is (")
    assert messages_of(user, {"role": "assistant", "content": []})[1] == ""


@pytest.mark.parametrize(("block", "what"), [
    ({"type": "tool_use", "id": "t", "name": "ls", "input": {}}, "ends with calls"),
    ({"type": "thinking", "thinking": "Hm."}, "ends with thinking"),
])
def test_other_ends_of_the_assistant_are_refused(block, what):
    with pytest.raises(RequestError, match=what) as error:
        messages_of({"role": "user", "content": "hi"}, {"role": "assistant", "content": [block]})
    assert error.value.where == "messages[1]"


@pytest.mark.parametrize(("message", "where"), [
    ({"content": "x"}, "messages[0].role"), ({"role": "tool", "content": "x"}, "messages[0].role"),
    ({"role": "user", "content": 3}, "messages[0].content"),
    ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
    ({"role": "user", "content": [{"text": "x"}]}, "messages[0].content[0].type"),
    ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
    ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[0].content[0].text"),
    ({"role": "user", "content": [{"type": "container_upload"}]}, "messages[0].content[0].type"),
    ({"role": "user", "content": [{"type": "image"}]}, "messages[0].content[0].source"),
    ({"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]},
     "messages[0].content[0].source.type"),
    ({"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]},
     "messages[0].content[0].source.type"),
    ({"role": "user", "content": [{"type": "tool_result"}]},
     "messages[0].content[0].tool_use_id"),
    ({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_use"}]}
    ]}, "messages[0].content[0].content[0].type"),
    ({"role": "system", "content": [IMAGE]}, "messages[0].content[0].type"),
    ({"role": "assistant", "content": [IMAGE]}, "messages[0].content[0].type"),
    ({"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "n", "input": 3}]},
     "messages[0].content[0].input"),
    ({"role": "assistant", "content": [{"type": "tool_use", "name": "n", "input": {}}]},
     "messages[0].content[0].id"),
])
def test_what_is_malformed_is_named(message, where):
    with pytest.raises(RequestError) as error:
        messages_of(message)
    assert error.value.where == where


@pytest.mark.parametrize("messages", [None, [], {}, "x", [3], [None]])
def test_conversations_that_are_none(messages):
    with pytest.raises(RequestError) as error:
        conversation(Members({"messages": messages}))
    assert error.value.where.startswith("messages")


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["type", "text", "content", "role", "source", "input", "id", "name", "tool_use_id"]
    ), inner, max_size=4), max_leaves=12,
)
_blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "thinking", "tool_use", "tool_result", "document"])},
    optional=dict.fromkeys(
        ["text", "thinking", "source", "input", "content", "id", "name", "tool_use_id", "is_error"],
        _values,
    ),
)
_messages = st.fixed_dictionaries({
    "role": st.sampled_from(["user", "assistant", "system"]),
    "content": st.lists(_blocks, max_size=3) | _values,
})


@given(st.lists(_messages, max_size=4) | _values, _values | st.lists(_blocks, max_size=2))
def test_any_json_is_read_or_refused(messages, system_prompt):
    body = Members({"messages": messages, "system": system_prompt})
    try:
        made = [*system_messages(body), *conversation(body)[0]]
    except RequestError as error:
        assert error.where
    else:
        json.dumps(made)
