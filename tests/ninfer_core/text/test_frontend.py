"""The frontend of chat models: what it makes of resources and of conversations."""

from __future__ import annotations

import json

import pytest

from ninfer_core.api import ArtifactError, PromptOptions, RequestError, SamplingParams
from ninfer_core.text.frontend import ChatFrontend
from ninfer_fixtures.tiny import tiny_resources

PLAIN = b"{% for m in messages %}{{ bos_token }}{{ m.role }}: {{ m.content }}\n{% endfor %}"
USER = {"role": "user", "content": "hi"}


def frontend(**changes):
    """A frontend of the tiny resources, with some replaced or (None) left out."""
    resources = tiny_resources() | {name.replace("__", "."): v for name, v in changes.items()}
    return ChatFrontend({name: v for name, v in resources.items() if v is not None})


def test_a_conversation_is_rendered_and_tokenised():
    tested = frontend(chat_template__jinja=PLAIN)
    prompt = tested.prepare([USER])
    assert prompt.text == "user: hi\n"
    assert b"".join(map(tested.tokenizer.token_bytes, prompt.token_ids)) == b"user: hi\n"


@pytest.mark.parametrize("token", ["<s>", {"content": "<s>", "lstrip": False}])
def test_special_tokens_are_there_for_the_template(token):
    config = json.dumps({"bos_token": token}).encode()
    tested = frontend(chat_template__jinja=PLAIN, tokenizer_config__json=config)
    assert tested.prepare([USER]).text == "<s>user: hi\n"


@pytest.mark.parametrize(("found", "ids"), [(7, {7}), ([7, 9], {7, 9})])
def test_end_tokens(found, ids):
    config = json.dumps({"eos_token_id": found}).encode()
    assert frontend(generation_config__json=config).eos_token_ids == ids


@pytest.mark.parametrize("found", [None, [], "7", [7, None], True])
def test_end_tokens_that_are_none_are_refused(found):
    config = json.dumps({"eos_token_id": found}).encode()
    with pytest.raises(ArtifactError, match="no token ends an answer"):
        frontend(generation_config__json=config)


@pytest.mark.parametrize(
    "role", ["tokenizer.json", "chat_template.jinja", "generation_config.json"]
)
def test_a_missing_resource_is_named(role):
    with pytest.raises(ArtifactError, match=role):
        frontend(**{role.replace(".", "__"): None})


def test_parts_of_text_are_joined():
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    tested = frontend(chat_template__jinja=PLAIN)
    assert tested.prepare([{"role": "user", "content": parts}]) == tested.prepare([USER])


def test_absent_content_is_empty_and_other_members_stay():
    template = b"{% for m in messages %}[{{ m.content }}{{ m.name }}]{% endfor %}"
    message = {"role": "assistant", "content": None, "name": "x"}
    assert frontend(chat_template__jinja=template).prepare([message]).text == "[x]"


@pytest.mark.parametrize(
    "content", [[{"type": "image_url"}], [{"type": "text", "text": 5}], ["hi"], 5, None]
)
def test_what_is_no_text_is_refused(content):
    with pytest.raises(RequestError, match="text only"):
        frontend().prepare([{"role": "user", "content": content}])


def test_an_empty_conversation_is_refused():
    with pytest.raises(RequestError, match="no messages"):
        frontend().prepare([])


def test_tools_need_a_template_that_has_them():
    tools = [{"type": "function", "function": {"name": "f"}}]
    with pytest.raises(RequestError, match="takes no tools"):
        frontend(chat_template__jinja=PLAIN).prepare([USER], tools=tools)
    shown = frontend(chat_template__jinja=b"{{ tools[0].function.name }}")
    assert shown.prepare([USER], tools=tools).text == "f"


def test_a_malformed_tool_is_named():
    shown = frontend(chat_template__jinja=b"{{ tools }}")
    for bad in ({}, {"function": {}}, {"function": {"name": 5}}, {"name": "f"}, "f"):
        with pytest.raises(RequestError, match=r"tools\[1\]"):
            shown.prepare([USER], tools=[{"function": {"name": "f"}}, bad])


def test_a_prompt_keeps_its_tools_for_the_parser():
    tools = [{"type": "function", "function": {"name": "<|im_end|>"}}]
    assert frontend(chat_template__jinja=b"{{ tools }}").prepare([USER], tools=tools).tools == (
        *tools,)


@pytest.mark.parametrize(("options", "option"), [
    (PromptOptions(thinking=True), "thinking"), (PromptOptions(effort="low"), "reasoning effort"),
    (PromptOptions(preserve_thinking=True), "preserve thinking"),
])
def test_a_model_that_does_not_reason_cannot_be_asked_to(options, option):
    with pytest.raises(RequestError, match=rf"\[{option}\]"):
        frontend().prepare([USER], options=options)


@pytest.mark.parametrize("options", [
    PromptOptions(thinking=False), PromptOptions(effort="none"),
    PromptOptions(preserve_thinking=False),
])
def test_nor_need_it_be_kept_from_it(options):
    assert frontend().prepare([USER], options=options) == frontend().prepare([USER])
    assert frontend().reasoning_tokens is None


def test_sampling_parameters_of_the_generation_config():
    config = {"eos_token_id": 7, "temperature": 0.5, "top_p": 0.9, "top_k": None, "min_p": 0.1}
    tested = frontend(generation_config__json=json.dumps(config).encode())
    expected = SamplingParams(temperature=0.5, top_p=0.9, min_p=0.1)
    assert tested.sampling_defaults(tested.prepare([USER])) == expected
    assert frontend().sampling_defaults(frontend().prepare([USER])) == SamplingParams()


@pytest.mark.parametrize("changes", [{"temperature": -1}, {"top_p": "high"}, {"top_k": []}])
def test_sampling_parameters_that_make_no_sense(changes):
    config = json.dumps({"eos_token_id": 7, **changes}).encode()
    with pytest.raises(ArtifactError, match=r"\[generation_config.json\]"):
        frontend(generation_config__json=config)


def test_all_of_an_answer_is_content():
    tested = frontend()
    parser = tested.parser(tested.prepare([USER]))
    parts = [*parser.feed("<think>a</think>b"), *parser.finish()]
    assert [(part.channel, part.text) for part in parts] == [("content", "<think>a</think>b")]


@pytest.mark.parametrize("role", ["tokenizer.json", "tokenizer_config.json",
                                  "generation_config.json"])
@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[]", b"null", b"[" * 99_999])
def test_a_damaged_file_is_named(role, raw):
    with pytest.raises(ArtifactError, match=rf"damaged \[{role}\]"):
        ChatFrontend({**tiny_resources(), role: raw})


def test_add_bos_token_changes_no_ids_and_is_noted(caplog):
    template = b"{% for m in messages %}{{ m.content }}{% endfor %}"
    plain = frontend(chat_template__jinja=template).prepare([USER])
    config = b'{"add_bos_token": true, "bos_token": "<s>"}'
    with caplog.at_level("INFO"):
        noted = frontend(chat_template__jinja=template, tokenizer_config__json=config)
    assert noted.prepare([USER]).token_ids == plain.token_ids
    assert "add_bos_token" in caplog.text
