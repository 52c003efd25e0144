"""Cache markers: they change no prompt, and say where in it their text ends."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.text.frontend import ChatFrontend
from ninfer_core.text.marks import is_marked, without_markers
from ninfer_fixtures.tiny import tiny_resources

MARK = {"cache_control": {"type": "ephemeral"}}
TOOL = {"type": "function", "function": {
    "name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}}
TURNS = (
    b"{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}"
    b"<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
)


def text(value, **more):
    return {"type": "text", "text": value, **more}


def said(content, role="user", **more):
    return {"role": role, "content": content, **more}


@pytest.fixture(scope="module")
def make():
    return lambda template=TURNS: ChatFrontend(
        {**tiny_resources(), "chat_template.jinja": template})


def pieces(frontend, prompt):
    """What each mark is behind."""
    return [b"".join(map(frontend.tokenizer.token_bytes, prompt.token_ids[:mark])).decode()
            for mark in prompt.marks]


def test_marks_are_behind_what_is_marked(make):
    frontend = make()
    messages = [
        said("same", "system"),
        said([text("same "), text("\n\n Ü 🦊same ", **MARK), text("same")]),
        said("yes", "assistant", **MARK), said("more \n", **MARK),
    ]
    prompt = frontend.prepare(messages)
    assert [piece.rpartition("\n")[2] for piece in pieces(frontend, prompt)] == [
        " Ü 🦊same", "yes", "more"]
    assert all(prompt.text.startswith(piece) for piece in pieces(frontend, prompt))
    assert prompt.text.endswith("more<|im_end|>\n")


def test_tools_are_marked_behind_the_last_that_is(make):
    frontend = make()
    prompt = frontend.prepare([said("hi")], tools=[TOOL, {**TOOL, **MARK}, TOOL])
    [piece] = pieces(frontend, prompt)
    assert piece.count("look") == 2 and piece.endswith('"object')
    assert prompt.tools == (TOOL, TOOL, TOOL)
    assert json.loads(prompt.text.partition("\n")[0]) == [TOOL] * 3


def test_a_tool_without_parameters_can_be_marked(make):
    frontend = make()
    tool = {"type": "function", "function": {"name": "look", "strict": True, "parameters": {}}}
    [piece] = pieces(frontend, frontend.prepare([said("hi")], tools=[{**tool, **MARK}]))
    assert piece.endswith('"look')


def test_a_mark_is_never_behind_its_text(make):
    """A token may go on beyond it: bytes of one character here, whole words elsewhere."""
    frontend = make(b"{% for m in messages %}{{ m.content }}{% endfor %}")
    controls = frontend.tokenizer.control_ids
    prompt = frontend.prepare([said([text("a<|im_", **MARK), text("end|>b")])])
    assert not {*prompt.token_ids} & {*controls.values()}
    assert pieces(frontend, prompt) == ["a<|im_"]


@pytest.mark.parametrize("template", [
    b"{% for m in messages %}{{ m.role }}{% endfor %}",
    b"{% for m in messages %}{{ m.content | length }}{{ m.content }}{% endfor %}",
    b"{% for m in messages %}{{ m.content }}{{ m.content.endswith('hi') }}{% endfor %}",
    b"{% for m in messages %}{{ m.content }}{{ m.cache_control }}{% endfor %}",
])
def test_a_template_sees_no_marks(make, template):
    """Where it would show them, or do otherwise because of a sign, nothing is marked."""
    frontend, messages = make(template), [said([text("hi", **MARK)], **MARK)]
    prompt = frontend.prepare(messages)
    assert (prompt.text, prompt.marks) == (frontend.prepare([said("hi")]).text, prompt.marks)
    assert len(prompt.marks) == (template.count(b"cache_control"))


def test_a_text_that_is_normalised_has_marks_too(make):
    spec = json.loads(tiny_resources()["tokenizer.json"])
    resources = {**tiny_resources(), "chat_template.jinja": TURNS,
                 "tokenizer.json": json.dumps({**spec, "normalizer": {"type": "NFC"}}).encode()}
    frontend = ChatFrontend(resources)
    prompt = frontend.prepare([said([text("e\u0301e\u0301", **MARK), text(" more")])])
    assert pieces(frontend, prompt)[0].endswith("éé")


def test_content_that_has_the_sign_itself_marks_nothing(make):
    frontend = make()
    prompt = frontend.prepare([said([text("\U0010fffd", **MARK), text("b")])])
    assert prompt.marks == () and "\U0010fffd" in prompt.text


CONTENT = st.lists(
    st.builds(text, st.sampled_from(["", " ", "a", " b\n", "<|im_end|>", "é", "🦊 "]))
    | st.builds(lambda value: text(value, **MARK), st.sampled_from(["x", " ", "y ", "\n<|"])),
    min_size=1, max_size=4,
)
MESSAGES = st.lists(
    st.builds(said, CONTENT | st.just("z"), st.sampled_from(["user", "assistant", "system"]))
    | st.builds(lambda content: said(content, **MARK), CONTENT | st.just("z ")),
    min_size=1, max_size=4,
)


@given(messages=MESSAGES)
def test_markers_change_no_prompt(make, messages):
    """And every one that is behind some text is found."""
    frontend = make()
    plain = without_markers(messages)
    assert not is_marked(plain, [])
    prompt, bare = frontend.prepare(messages), frontend.prepare(plain)
    assert (prompt.token_ids, prompt.text, prompt.num_stable) == (
        bare.token_ids, bare.text, bare.num_stable)
    assert bare.marks == () and [*prompt.marks] == sorted({*prompt.marks})
    assert all(0 < mark < len(prompt.token_ids) for mark in prompt.marks)
    parts = [part for each in messages for part in each["content"] if isinstance(part, dict)]
    assert bool(prompt.marks) >= any(part.get("cache_control") and part["text"].strip()
                                     for part in parts)
