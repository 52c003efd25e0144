"""Answers of GLM-5.3: reasoning, calls, and what the frontend says of their tokens."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_core.api import PromptOptions, SamplingParams
from ninfer_fixtures.answering import AnswerTests
from ninfer_fixtures.conversation import read_answer

USER = {"role": "user", "content": "hi"}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {
    "type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
}}} for name in ("read", "utc_now")]
READ = ("<tool_call>read<arg_key>path</arg_key><arg_value>/東京.txt</arg_value>"
        "<arg_key>lines</arg_key><arg_value>3</arg_value></tool_call>")
NO_THINKING = PromptOptions(thinking=False)


def answer(frontend, text, *, tools=TOOLS, options=PromptOptions(), stop=()):
    """Reasoning, content and calls."""
    return read_answer(frontend, frontend.prepare([USER], tools=tools, options=options), text, stop)


class TestAnswers(AnswerTests):
    """What all answers are tested for."""

    answer, call = staticmethod(answer), READ
    about = "Qwen wraps a call in `<tool_call>`, GLM nests `<arg_key>`; neither is wanted here."


def test_reasoning_then_an_answer_with_calls(frontend):
    text = f"Let me look.</think>Reading.{READ}{READ}"
    arguments = '{"path": "/東京.txt", "lines": 3}'
    expected = [(0, "read", arguments), (1, "read", arguments)]
    assert answer(frontend, text) == ("Let me look.", "Reading.", expected)


def test_a_call_without_arguments(frontend):
    """Reported bug 17."""
    text = "done.</think><tool_call>utc_now</tool_call>"
    assert answer(frontend, text) == ("done.", "", [(0, "utc_now", "{}")])


def test_a_call_that_is_cut_is_no_call(frontend):
    """Reported bug 44, also where it is cut between arguments."""
    for end in ("</arg_value><arg_key>lines", "3</arg_value></tool_call>", "</tool_call>"):
        cut = READ[: READ.index(end)]
        assert answer(frontend, cut, options=NO_THINKING) == ("", cut, [])


WORDS = st.lists(st.sampled_from([
    "\n", "    ", "x = a<b>c", "<", "</", "</arg_", "</tool_call>", "<tool_call>", "<arg_value>",
    "<arg_key>", "</arg_key>", "</think>", "<|user|>", "東京😀", "null", "5", '{"a": 1}',
    "<tool_call>utc_now</tool_call>", "\u2028", "e\u0301", "\0",
]), max_size=6).map("".join)
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | WORDS, lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3)), max_leaves=5)
ARGUMENTS = st.fixed_dictionaries(
    {}, optional={"path": WORDS, "lines": st.integers(), "more": st.lists(VALUES, max_size=3),
                  "any": st.booleans() | st.lists(st.integers(), max_size=2)})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(ARGUMENTS, min_size=1, max_size=3),
       reasoning=st.sampled_from(["hm", "a <b>\n\nc"]), content=st.sampled_from(["", "So <x>:"]))
def test_the_next_turn_begins_with_what_was_read_and_said(frontend, calls, reasoning, content):
    """What the template writes of calls is read back as they are, and nothing of a prompt changes:
    reported bugs 4, 13, 14, 32 and 35."""
    parameters = {"properties": {"lines": {"type": "integer"}, "more": {"type": "array"},
                                 "path": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "read", "parameters": parameters}}]

    def prepare(*messages):
        return frontend.prepare([USER, *messages], tools=tools)

    def turn(reasoning, content, calls):
        called = [{"function": {"name": "read", "arguments": each}} for each in calls]
        return {"role": "assistant", "content": content, "reasoning_content": reasoning,
                "tool_calls": called}

    prompt, said = prepare(), prepare(turn(reasoning, content, calls), USER)
    assert said.token_ids[: len(prompt.token_ids)] == prompt.token_ids
    end = said.text.rindex("<|user|>hi")
    read = answer(frontend, said.text[len(prompt.text) : end], tools=tools)
    assert [json.loads(arguments) for _, _, arguments in read[2]] == calls
    assert prepare(turn(*read[:2], [arguments for _, _, arguments in read[2]]), USER) == said


def test_tokens_of_reasoning(frontend):
    tokens, tokenizer = frontend.reasoning_tokens, frontend.tokenizer
    assert tokenizer.token_bytes(tokens.opening) == b"<think>"
    assert tokens.forced == (tokens.closing,)
    assert tokenizer.token_bytes(tokens.closing) == b"</think>"


@pytest.mark.parametrize("listed", [0, [0], [0, 4]])
def test_the_turn_of_another_ends_an_answer(make_frontend, listed):
    """All three stops, whatever of them the generation config lists."""
    frontend = make_frontend(eos_token_id=listed)
    texts = {frontend.tokenizer.token_bytes(each) for each in frontend.eos_token_ids}
    assert texts == {b"<|endoftext|>", b"<|user|>", b"<|observation|>"}


def test_sampling_is_what_the_checkpoint_says(frontend):
    prompt = frontend.prepare([USER], options=NO_THINKING)
    assert frontend.sampling_defaults(prompt) == SamplingParams(temperature=1.0, top_p=0.95)
