"""Chat templates: conventions, errors with a place, content that cannot forge control tokens."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import ArtifactError, RequestError
from ninfer_core.text.control_text import Scaffolding
from ninfer_core.text.template import ChatTemplate

CHATML = (
    "{%- for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content | trim + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
CONTROL = re.compile(r"<\|endoftext\|>|<\|im_start\|>|<\|im_end\|>|</?think>|<tool_call>")
CONTENT = st.lists(st.one_of(
    st.text(max_size=6),
    st.sampled_from(["<", ">", "<b>", "|>", "\n", "<|im_", "end|>", "<think", "the fox", "東京"]),
), max_size=6).map("".join)


def user(*contents):
    return [{"role": "user", "content": content} for content in contents]


@given(contents=st.lists(CONTENT, max_size=3))
def test_ids_equal_the_plain_rendering_when_content_spells_no_control_token(
    tokenizer, hf_tokenizer, contents
):
    template = ChatTemplate(CHATML, tokenizer)
    text = template.render(messages=user(*contents))
    scaffolding = template.render(messages=user(*("" for _ in contents)))
    if len(CONTROL.findall(text)) == len(CONTROL.findall(scaffolding)):
        assert list(template.prepare(user(*contents)).token_ids) == hf_tokenizer.encode(text).ids


@given(system=CONTENT, contents=st.lists(CONTENT, min_size=1, max_size=3), other=CONTENT)
def test_conversations_with_one_system_prompt_share_the_stable_tokens(
    tokenizer, system, contents, other
):
    template = ChatTemplate(CHATML, tokenizer)
    leading = [{"role": "system", "content": system}]
    one = template.prepare([*leading, *user(*contents)])
    another = template.prepare([*leading, *user("x" + other)])
    alone = template.prepare([*leading, *user("0")])
    shared = one.token_ids[: one.num_stable]
    begin = tokenizer.control_ids["<|im_start|>"]
    assert shared.count(begin) == 2, "the system's turn, and what opens the user's"
    assert alone.token_ids[: one.num_stable] == shared
    assert another.token_ids[: one.num_stable - 1] == shared[:-1], "but for a space that merges"


@pytest.mark.parametrize("first", ["0 apples", "1 pear", "", " 0"])
def test_stable_tokens_end_before_the_first_message_whatever_it_is(tokenizer, first):
    template = ChatTemplate(CHATML, tokenizer)
    prompt = template.prepare([{"role": "system", "content": "Be brief."}, *user(first)])
    text = b"".join(map(tokenizer.token_bytes, prompt.token_ids[: prompt.num_stable])).decode()
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user")
    assert text.endswith(("user", "user\n"))


def test_tools_are_stable_too(tokenizer):
    template = ChatTemplate("{{ tools | tojson }}{{ messages[0].content }}", tokenizer)
    tools = [{"function": {"name": "ping"}}]
    few, many = (template.prepare(user("what?"), tools=tools * n) for n in (1, 9))
    assert 0 < few.num_stable < many.num_stable < len(many.token_ids)


def test_a_template_that_takes_no_other_message_has_no_stable_tokens(tokenizer):
    source = "{% if messages[0].content == '0' %}{{ raise_exception('no') }}{% endif %}hello"
    assert ChatTemplate(source, tokenizer).prepare(user("hi")).num_stable == 0


FORGERIES = st.lists(st.sampled_from(
    ["x", "<|im_end|>", "\n", "<|im_start|>", "system", "</think>", "<|endoftext|>", "<|", "|>",
     "im_end", "<tool_call>", "\U0010003c|im_end|>", "<|im_e", "nd|>"]), max_size=8).map("".join)


@given(contents=st.lists(FORGERIES, min_size=1, max_size=3))
def test_content_cannot_forge_control_tokens(tokenizer, contents):
    template = ChatTemplate(CHATML, tokenizer)
    prepared = template.prepare(user(*contents))
    controls = set(tokenizer.control_ids.values())
    harmless = template.prepare(user(*("x" for _ in contents)))
    assert [i for i in prepared.token_ids if i in controls] == [
        i for i in harmless.token_ids if i in controls
    ]
    assert b"".join(map(tokenizer.token_bytes, prepared.token_ids)).decode() == prepared.text


def test_two_pieces_of_content_cannot_forge_one_together(tokenizer):
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", tokenizer)
    prepared = template.prepare(user("a<|im_", "end|>b"))
    assert not set(prepared.token_ids) & set(tokenizer.control_ids.values())
    assert prepared.text == "a<|im_end|>b"


def test_tools_names_and_keys_are_content_too(tokenizer):
    template = ChatTemplate("<|im_start|>{{ tools | tojson }}", tokenizer)
    prepared = template.prepare([], tools=[{"<|im_end|>": {"name": "</think>"}}])
    controls = tokenizer.control_ids
    found = [i for i in prepared.token_ids if i in controls.values()]
    assert found == [controls["<|im_start|>"]]
    assert prepared.text == '<|im_start|>[{"<|im_end|>": {"name": "</think>"}}]'


def test_scaffolding_among_content_is_meant(tokenizer):
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", tokenizer)
    prepared = template.prepare(user(Scaffolding("<think>"), "<think>"))
    assert [*prepared.token_ids][:1] == [tokenizer.control_ids["<think>"]]
    assert [*prepared.token_ids].count(tokenizer.control_ids["<think>"]) == 1


def test_a_rewriting_sees_scaffolding_apart_from_content(tokenizer):
    template = ChatTemplate("<|im_end|>{{ messages[0].content }}", tokenizer)
    prepared = template.prepare(
        user("<|im_end|>"), rewrite=lambda text: text.replace("<|im_end|>", "<think>")
    )
    assert prepared.text == "<think><|im_end|>"


def test_variables_are_those_that_a_template_takes_from_outside(tokenizer):
    source = "{# tools #}{% set x = 1 %}{{ x }}{% if think is defined %}{{ messages }}{% endif %}"
    assert ChatTemplate(source, tokenizer).variables == {"think", "messages"}


def test_a_lone_surrogate_in_content_becomes_a_replacement_character(tokenizer):
    prepared = ChatTemplate("{{ messages[0].content }}", tokenizer).prepare(user("ok \ud83d end"))
    assert prepared.text == "ok \ufffd end"


@pytest.mark.parametrize(("generate", "content", "expected"), [
    (True, "hi", True), (False, "hi", False), (False, "say <think> now", False),
])
def test_reasoning_is_open_only_if_the_template_opened_it(tokenizer, generate, content, expected):
    template = ChatTemplate(CHATML, tokenizer, reasoning=("<think>", "</think>"))
    prepared = template.prepare(user(content), add_generation_prompt=generate)
    assert prepared.reasoning_open is expected


def test_conventions_of_chat_templates(tokenizer):
    source = (
        "{% for x in [1, 2, 3] %}\n"
        "    {% if x == 2 %}{% continue %}{% endif %}\n"
        "{{ x }}\n"
        "{% endfor %}\n"
        "{{ {'city': '東京'} | tojson }} {{ strftime_now('%Y') | length }}"
    )
    assert ChatTemplate(source, tokenizer).render() == '1\n3\n{"city": "東京"} 4'


def test_a_refusal_of_the_template_is_the_requests_fault_with_its_line(tokenizer):
    template = ChatTemplate("line one\n{{ raise_exception('roles must alternate') }}", tokenizer)
    with pytest.raises(RequestError, match=r"line 2\]: roles must alternate"):
        template.prepare([])


@pytest.mark.parametrize("source", [
    "{{ messages[0].content }}", "{{ 1 / 0 }}", "{{ ''.__class__.__mro__ }}",
    "{{ messages.append(1) }}", "{{ messages + 1 }}",
])
def test_any_fault_of_a_rendering_is_a_request_error(tokenizer, source):
    with pytest.raises(RequestError, match="line 1"):
        ChatTemplate(source, tokenizer).prepare([])


def test_a_template_that_does_not_compile_is_refused_with_its_line(tokenizer):
    with pytest.raises(ArtifactError, match="line 2"):
        ChatTemplate("fine\n{% if %}", tokenizer)


def test_the_size_of_a_rendering_is_capped(tokenizer):
    template = ChatTemplate(
        "{% for x in range(1000) %}0123456789{% endfor %}", tokenizer, max_chars=5000
    )
    with pytest.raises(RequestError, match="5000 characters"):
        template.prepare([])


def test_a_conversation_nested_too_deeply_is_a_request_error(tokenizer):
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(RequestError, match="nested too deeply"):
        ChatTemplate("{{ messages }}", tokenizer).prepare([{"role": "user", "extra": deep}])
