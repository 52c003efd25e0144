"""Answers of Qwen's models: reasoning, calls, and what the frontend says of their tokens."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_core.api import ArtifactError, PromptOptions, SamplingParams
from ninfer_core.sampling.thinking import ThinkingBudget
from ninfer_core.text.detokenizer import IncrementalDetokenizer
from ninfer_fixtures.answering import AnswerTests
from ninfer_fixtures.conversation import read_answer

USER = {"role": "user", "content": "hi"}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {
    "type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
}}} for name in ("read", "clock")]
READ = ("<tool_call>\n<function=read>\n<parameter=path>\n/東京.txt\n</parameter>\n"
        "<parameter=lines>\n3\n</parameter>\n</function>\n</tool_call>")
NO_THINKING = PromptOptions(thinking=False)


def answer(frontend, text, *, tools=TOOLS, options=PromptOptions(), stop=()):
    """Reasoning, content and calls."""
    return read_answer(frontend, frontend.prepare([USER], tools=tools, options=options), text, stop)


class TestAnswers(AnswerTests):
    """What all answers are tested for."""

    answer, call = staticmethod(answer), READ
    about = "Qwen wraps a call in `<tool_call>`:\n<tool_call> here, GLM nests `<arg_key>`."


def test_reasoning_then_an_answer_with_a_call(frontend):
    text = f"Let me look.\n</think>\n\nReading.\n\n{READ}"
    call = (0, "read", '{"path": "/東京.txt", "lines": 3}')
    assert answer(frontend, text) == ("Let me look.", "Reading.", [call])


def test_without_reasoning_all_is_content(frontend):
    text = f"Reading.\n{READ}\n{READ}"
    reasoning, content, calls = answer(frontend, text, options=NO_THINKING)
    assert (reasoning, content) == ("", "Reading.")
    assert [(index, name) for index, name, _ in calls] == [(0, "read"), (1, "read")]


def test_a_call_that_is_cut_is_no_call(frontend):
    cut = READ.partition("</parameter>\n</function>")[0]
    assert answer(frontend, cut, options=NO_THINKING) == ("", cut, [])


WORDS = st.lists(st.sampled_from([
    "\n", "\r\n", "    ", "x = a<b>c", "<", "</", "</param", "</parameter> and", "</tool_call>",
    "+</function>\n", "</think>", "<tool_response>", "<|im_end|>", "東京😀", "null", "5",
    '{"a": 1}', "see <tool_call><function=read></function></tool_call>.", "\u2028", "e\u0301", "\0",
]), max_size=6).map("".join)
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | WORDS, lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3)), max_leaves=5)
ARGUMENTS = st.fixed_dictionaries(
    {"path": WORDS, "lines": st.integers()}, optional={"more": st.lists(VALUES, max_size=3)})


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
        return frontend.prepare(
            [USER, *messages], tools=tools, options=PromptOptions(preserve_thinking=True))

    def turn(reasoning, content, calls):
        called = [{"function": {"name": "read", "arguments": each}} for each in calls]
        return {"role": "assistant", "content": content, "reasoning_content": reasoning,
                "tool_calls": called}

    prompt, said = prepare(), prepare(turn(reasoning, content, calls), USER)
    assert said.token_ids[: len(prompt.token_ids)] == prompt.token_ids
    end = said.text.rindex("<|im_end|>\n<|im_start|>user")
    read = answer(frontend, said.text[len(prompt.text) : end], tools=tools)
    assert [json.loads(arguments) for _, _, arguments in read[2]] == calls
    assert prepare(turn(*read[:2], [arguments for _, _, arguments in read[2]]), USER) == said


@pytest.mark.parametrize("text", ["\N{FOX FACE}ok", "👨‍👩‍👧‍👦 東京"])
def test_characters_over_several_tokens_come_whole(frontend, text):
    """Reported bug 40."""
    ids = frontend.tokenizer.encode(text)
    assert len(ids) > len(text)
    detokenizer = IncrementalDetokenizer()
    deltas = [detokenizer.feed(frontend.tokenizer.token_bytes(token)) for token in ids]
    assert "".join(deltas) == text and not detokenizer.finish()
    assert all("\ufffd" not in delta for delta in deltas)


def test_tokens_of_reasoning(frontend):
    tokens, tokenizer = frontend.reasoning_tokens, frontend.tokenizer
    spell = b"".join(map(tokenizer.token_bytes, tokens.forced)).decode()
    assert tokenizer.token_bytes(tokens.opening) == b"<think>"
    assert tokenizer.token_bytes(tokens.closing) == b"</think>"
    assert spell == "\n</think>\n\n" and tokens.forced.count(tokens.closing) == 1
    assert {*tokens.forced} <= {tokens.closing, *tokens.spaces}
    assert frontend.prepare([USER]).token_ids.count(tokens.opening) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.sampled_from(["<think>", "</think>", "\n", " ", "x"]), max_size=10),
       options=st.sampled_from([PromptOptions(), NO_THINKING]), budget=st.integers(1, 3))
def test_a_budget_counts_what_the_parser_calls_reasoning(frontend, words, options, budget):
    """Reported bugs 28 and 29: it ends blocks, and never an answer about their tags."""
    marks, used, is_open = frontend.reasoning_tokens, 0, options is not NO_THINKING
    limit = ThinkingBudget(
        marks, budget, is_open=is_open, vocab_size=frontend.tokenizer.vocab_size)
    for index, word in enumerate([*words, "x"]):
        said, _, _ = answer(frontend, "".join(words[:index]) + "HERE", options=options)
        is_open, mask = said.endswith("HERE"), limit.mask(())
        assert (mask is not None and mask.sum() == 1) == (is_open and used == budget)
        if is_open and used == budget:
            break
        [token] = frontend.tokenizer.encode(word, special=True)
        limit.commit([token])
        used += is_open and token != marks.closing


def test_all_end_tokens_of_the_generation_config_end_an_answer(frontend):
    texts = {frontend.tokenizer.token_bytes(each) for each in frontend.eos_token_ids}
    assert texts == {b"<|im_end|>", b"<|endoftext|>"}


def test_sampling_depends_on_reasoning(frontend, make_frontend):
    thinking, instruct = (frontend.sampling_defaults(frontend.prepare([USER], options=options))
                          for options in (PromptOptions(), NO_THINKING))
    assert thinking == SamplingParams(temperature=1.0, top_p=0.95, top_k=20)
    assert instruct == SamplingParams(
        temperature=0.7, top_p=0.8, top_k=20, presence_penalty=1.5)
    with pytest.raises(ArtifactError, match="generation_config"):
        make_frontend("{{ messages }}", temperature=9)
