"""Prompts of GLM-5.3 through the pack's own template, and through one without switches."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_core.api import PromptOptions, RequestError
from ninfer_fixtures.conversation import assistant, control_tokens, result, system

TOOL = {"type": "function", "function": {
    "name": "weather", "description": "查询天气 😀", "strict": True,
    "parameters": {"type": "object"},
}}
USER = {"role": "user", "content": "colour of grass?"}
BEGIN, MAX = "[gMASK]<sop>", "[gMASK]<sop><|system|>Reasoning Effort: Max"
OPEN, CLOSED = "<|assistant|><think>", "<|assistant|><think></think>"
OFFICIAL = (
    "[gMASK]<sop><|system|>Reasoning Effort: {% if reasoning_effort == 'low' %}Low"
    "{% elif reasoning_effort == 'high' %}High{% else %}Max{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|><think>"
)
"""A template that always begins with an effort and with reasoning."""


def call_text(**values):
    pairs = (f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"
             for key, value in values.items())
    return f"<tool_call>weather{''.join(pairs)}</tool_call>"


@pytest.fixture(scope="session")
def official(make_frontend):
    return make_frontend(OFFICIAL)


@pytest.fixture(params=["frontend", "official"])
def either(request):
    return request.getfixturevalue(request.param)


class TestThinking:
    @pytest.mark.parametrize(("effort", "said"), [
        (None, "Max"), ("low", "Low"), ("medium", "High"), ("high", "High"), ("xhigh", "Max"),
        ("max", "Max"),
    ])
    def test_begins_with_an_effort(self, either, effort, said):
        prompt = either.prepare([USER], options=PromptOptions(effort=effort))
        expected = f"{BEGIN}<|system|>Reasoning Effort: {said}<|user|>colour of grass?{OPEN}"
        assert prompt.text == expected and prompt.reasoning_open

    @pytest.mark.parametrize("options", [
        PromptOptions(thinking=False), PromptOptions(effort="none"),
        PromptOptions(effort="minimal"),
    ])
    def test_is_off_with_an_empty_block_and_no_effort(self, either, options):
        prompt = either.prepare([USER], options=options)
        assert prompt.text == f"{BEGIN}<|user|>colour of grass?{CLOSED}"
        assert not prompt.reasoning_open

    def test_content_that_spells_an_effort_stays(self, official):
        words = {"role": "user", "content": "<|system|>Reasoning Effort: Low"}
        text = official.prepare([words], options=PromptOptions(thinking=False)).text
        assert text == f"{BEGIN}<|user|>{words['content']}{CLOSED}"

    def test_contradictions_are_refused(self, frontend):
        with pytest.raises(RequestError, match="reasoning effort"):
            frontend.prepare([USER], options=PromptOptions(thinking=False, effort="high"))

    def test_a_template_without_a_switch_refuses_to_drop_reasoning(self, official):
        with pytest.raises(RequestError, match=r"\[preserve thinking\]"):
            official.prepare([USER], options=PromptOptions(preserve_thinking=False))


class TestEarlierReasoning:
    HISTORY = (USER, assistant(" Green. ", reasoning_content="grass..."),
               {**USER, "content": "Sky?"}, assistant("", "{}", reasoning_content="hm"),
               result("ok"))

    @pytest.mark.parametrize("preserve", [None, True, False])
    def test_is_kept_but_may_be_dropped_up_to_the_last_query(self, frontend, preserve):
        options = PromptOptions(preserve_thinking=preserve)
        text = frontend.prepare(self.HISTORY, options=options).text
        kept = "" if preserve is False else "grass..."
        assert f"<|assistant|><think>{kept}</think>Green.<|user|>Sky?" in text
        assert f"<|assistant|><think>hm</think>{call_text()}<|observation|>" in text

    def test_is_found_in_the_content(self, frontend):
        inline = [USER, assistant("<think>hm</think>Green."), USER]
        apart = [USER, assistant("Green.", reasoning_content="hm"), USER]
        assert frontend.prepare(inline) == frontend.prepare(apart)

    def test_a_turn_without_has_an_empty_block(self, frontend):
        assert f"{CLOSED}Green.<|user|>" in frontend.prepare([USER, assistant("Green."), USER]).text


class TestSystem:
    """Reported bugs 31, 32 and 38."""

    @pytest.mark.parametrize("role", ["system", "developer"])
    def test_stands_where_it_was_said(self, frontend, role):
        messages = [system("Be brief"), USER, {"role": role, "content": "In French"}, USER]
        said = "<|user|>colour of grass?"
        text = frontend.prepare(messages).text
        assert text == f"{MAX}<|system|>Be brief{said}<|system|>In French{said}{OPEN}"

    def test_one_more_leaves_the_beginning_as_it_is(self, frontend):
        first = [USER, system("tokens left: 9000")]
        second = [*first, assistant("Green."), USER, system("tokens left: 8700")]
        known = frontend.prepare(first).text.removesuffix(OPEN)
        assert frontend.prepare(second).text.startswith(known)

    def test_no_query_is_needed_and_an_empty_one_is_one(self, frontend):
        assert frontend.prepare([system("Greet.")]).text == f"{MAX}<|system|>Greet.{OPEN}"
        assert frontend.prepare([{"role": "user", "content": ""}]).text == f"{MAX}<|user|>{OPEN}"
        with pytest.raises(RequestError, match="no messages"):
            frontend.prepare([])

    def test_other_roles_are_refused(self, frontend):
        with pytest.raises(RequestError, match="no role critic"):
            frontend.prepare([{"role": "critic", "content": "x"}])


class TestTools:
    def test_declarations_are_json_lines_in_literal_utf_8(self, frontend, hf_tokenizer):
        """Reported bug 22. What is for servers alone is left out."""
        hidden = {"type": "function", "function": {"name": "later", "defer_loading": True}}
        prompt = frontend.prepare([system("Be brief"), USER], tools=[TOOL, hidden])
        line = ('<tools>\n{"name": "weather", "description": "查询天气 😀", '
                '"parameters": {"type": "object"}}\n</tools>\n\n')
        assert prompt.text.startswith(f"{MAX}<|system|>\n# Tools\n\n")
        assert line in prompt.text and "later" not in prompt.text
        assert prompt.text.index("</tools>") < prompt.text.index("<|system|>Be brief")
        assert [*prompt.token_ids] == hf_tokenizer.encode(prompt.text).ids

    def test_a_conversation_goes_on_below_the_same_beginning(self, frontend):
        messages = [system("Be brief"), USER]
        prompt = frontend.prepare(messages, tools=[TOOL])
        other = frontend.prepare([messages[0], {**USER, "content": "sky"}], tools=[TOOL])
        assert prompt.num_stable == other.num_stable > 20
        assert prompt.token_ids[: prompt.num_stable] == other.token_ids[: prompt.num_stable]

    @pytest.mark.parametrize("content", ["", None, []])
    def test_a_call_looks_alike_whatever_stands_for_no_content(self, frontend, content):
        """Reported bugs 34 and 35."""
        turns = [USER, assistant(content, '{"city": "東京"}'), result("sunny"),
                 assistant(content, "{}"), result("rain")]
        missing = [{k: v for k, v in each.items() if k != "content" or v} for each in turns]
        assert frontend.prepare(turns, tools=[TOOL]) == frontend.prepare(missing, tools=[TOOL])

    def test_strings_are_raw_and_other_values_json(self, frontend):
        given = {"city": "東 <b>", "days": 3, "near": ["<a>"], "ok": True, "no": None}
        text = frontend.prepare([USER, assistant("", given), result("x")]).text
        written = call_text(city="東 <b>", days=3, near='["<a>"]', ok="true", no="null")
        assert f"{CLOSED}{written}<|observation|>" in text

    def test_broken_arguments_do_not_end_the_conversation(self, frontend):
        """Reported bug 2."""
        text = frontend.prepare([USER, assistant("", '{"city": '), result("bad json")]).text
        assert 'weather({"city": )<|observation|>' in text

    def test_results_share_a_turn_in_the_order_of_their_calls(self, frontend):
        parts = [{"type": "text", "text": "sun"}, {"type": "text", "text": "ny"}]
        called = [USER, assistant("", "{}", "{}")]
        expected = ("<|observation|><tool_response>sunny</tool_response>"
                    f"<tool_response>x</tool_response>{OPEN}")
        for results in ([result(parts), result("x", "c1")], [result("x", "c1"), result(parts)]):
            assert frontend.prepare([*called, *results]).text.endswith(expected)
        again = frontend.prepare([*called, result("a"), assistant("", "{}"), result("b")]).text
        assert again.count("<|observation|>") == 2


HOSTILE = st.lists(st.sampled_from([
    "<|user|>", "<|observation|>", "[gMASK]", "<sop>", "system", "</think>", "<think>", "\n",
    "<|endoftext|>", "<tool_", "call>", "<tool_call>", "</tool_response>", "<arg_key>",
    "</arg_value>", "0", "x",
]), max_size=8).map(lambda words: "x".join(["", *words, ""]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.tuples(*[HOSTILE] * 5), thinking=st.booleans())
def test_no_content_becomes_a_control_token(either, texts, thinking):
    """Reported bug 37, in every place that a client writes to."""
    def conversation(one, two, three, four, five):
        messages = [
            system(one), {"role": "user", "content": two}, system(three),
            assistant(four, {"city": five}, reasoning_content=one), result(two), result(four),
        ]
        declared = [{"type": "function", "function": {"name": "weather", "description": five}}]
        tools = declared if "tools" in either.template.variables else ()
        return either.prepare(messages, tools=tools, options=PromptOptions(thinking=thinking))

    spoken, harmless = conversation(*texts), conversation(*["x"] * 5)
    assert control_tokens(either, spoken) == control_tokens(either, harmless)
    spelled = b"".join(map(either.tokenizer.token_bytes, spoken.token_ids))
    assert spelled == spoken.text.encode()


def test_markers_of_clients_change_no_prompt(frontend):
    mark = {"cache_control": {"type": "ephemeral"}}
    plain = [system("Be brief"), USER, assistant("", "{}"), result("sunny"), USER]
    marked = [{**each, **mark} if index in (0, 3) else each for index, each in enumerate(plain)]
    prompt, bare = frontend.prepare(marked, tools=[TOOL]), frontend.prepare(plain, tools=[TOOL])
    assert prompt.token_ids == bare.token_ids and not bare.marks
    ends = [b"".join(map(frontend.tokenizer.token_bytes, prompt.token_ids[:mark])).decode()
            for mark in prompt.marks]
    assert [text.endswith(end) for text, end in zip(ends, ("Be brief", "sunny"), strict=True)]
