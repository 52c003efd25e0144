"""Input items: what is taken, what is refused and where."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import RequestError
from ninfer_serve.members import Members
from ninfer_serve.responses.items import read_input, sealed, unsealed, with_ids

STORED = {"type": "message", "id": "msg_1", "role": "user", "status": "completed",
          "content": [{"type": "input_text", "text": "before"}]}


def read(given, known=(lambda name: STORED if name == "msg_1" else None)):
    return read_input(Members({"input": given}), known)


def test_a_text_is_a_message_of_the_user():
    assert read("hi") == [{"type": "message", "role": "user", "status": "completed",
                           "content": [{"type": "input_text", "text": "hi"}]}]
    assert read(None) == []


def test_messages_in_their_shorter_forms():
    [user, assistant] = read([{"role": "user", "content": "hi"},
                              {"role": "assistant", "content": "hello", "phase": "final_answer"}])
    assert user["content"] == [{"type": "input_text", "text": "hi"}]
    assert assistant["content"] == [{"type": "output_text", "text": "hello", "annotations": []}]
    assert assistant["phase"] == "final_answer"


def test_what_the_server_gave_comes_back_as_it_was():
    given = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed("hm"),
         "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "add",
         "namespace": "math", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "3",
         "status": "completed"},
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_2", "name": "patch",
         "input": "x", "status": "completed"},
        {"type": "custom_tool_call_output", "id": "ctco_1", "call_id": "call_2",
         "output": [{"type": "input_text", "text": "done"}], "status": "completed"},
    ]
    assert read(given) == given


def test_pictures_films_and_markers_are_kept():
    content = [
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
        {"type": "input_video", "video_url": "https://x/y.mp4"},
        {"type": "input_text", "text": "what?", "prompt_cache_breakpoint": {"mode": "explicit"}},
    ]
    assert read([{"role": "user", "content": content}])[0]["content"] == content


def test_references_are_what_they_refer_to():
    assert read([{"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}]) == [STORED, STORED]
    with pytest.raises(RequestError) as error:
        read([{"type": "item_reference", "id": "msg_2"}])
    assert error.value.where == "input[0].id"


@pytest.mark.parametrize(("given", "where"), [
    (3, "input"), ({"role": "user"}, "input"), ([3], "input[0]"), ([{}], "input[0].id"),
    ([{"type": "web_search_call", "id": "ws_1"}], "input[0].type"),
    ([{"type": "compaction", "encrypted_content": "x"}], "input[0].type"),
    ([{"role": "king", "content": "x"}], "input[0].role"),
    ([{"role": "user"}], "input[0].content"),
    ([{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}],
     "input[0].content[0].type"),
    ([{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}],
     "input[0].content[0].type"),
    ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
    ([{"role": "assistant", "content": [{"type": "input_image", "image_url": "x"}]}],
     "input[0].content[0].type"),
    ([{"type": "function_call", "name": "a"}], "input[0].call_id"),
    ([{"type": "function_call", "call_id": "c", "name": "a", "arguments": {}}],
     "input[0].arguments"),
    ([{"type": "function_call_output", "call_id": "c", "output": 3}], "input[0].output"),
    ([{"type": "reasoning", "summary": "x"}], "input[0].summary"),
])
def test_what_the_model_cannot_see_is_refused_where_it_is(given, where):
    with pytest.raises(RequestError) as error:
        read(given)
    assert error.value.where == where


@given(st.text())
def test_reasoning_survives_its_seal(text):
    assert unsealed(sealed(text)) == text


@pytest.mark.parametrize("foreign", [
    "gAAAAABpM0Yj-", "ninfer:1:%%%", "ninfer:1:" + base64.b64encode(b"\xff").decode(), "ninfer:2:",
])
def test_foreign_seals_are_not_opened(foreign):
    assert unsealed(foreign) is None


def test_every_item_gets_an_id_and_keeps_its_own():
    items = read([{"role": "user", "content": "a"}, {"id": "mine", "role": "user", "content": "b"},
                  {"type": "function_call_output", "call_id": "c", "output": "x"}])
    assert [each["id"] for each in with_ids(items, "7")] == ["msg_7_i0", "mine", "fco_7_i2"]
    assert "id" not in items[0]
