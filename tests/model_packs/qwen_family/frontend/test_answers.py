"""Answers of Qwen's models: reasoning, calls, and what the frontend says of their tokens."""

from __future__ import annotations

import pytest

from ninfer_core.api import ArtifactError, OutputPart, PromptOptions, SamplingParams
from ninfer_core.engine.output import TextOutput
from ninfer_core.text.detokenizer import IncrementalDetokenizer

USER = {"role": "user", "content": "hi"}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {
    "type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
}}} for name in ("read", "clock")]
READ = ("<tool_call>\n<function=read>\n<parameter=path>\n/東京.txt\n</parameter>\n"
        "<parameter=lines>\n3\n</parameter>\n</function>\n</tool_call>")
NO_THINKING = PromptOptions(thinking=False)


def answer(frontend, text, *, tools=TOOLS, options=PromptOptions(), stop=()):
    """Reasoning, content and calls of an answer's tokens, which arrive one by one."""
    parser = frontend.parser(frontend.prepare([USER], tools=tools, options=options))
    output = TextOutput(frontend.tokenizer.token_bytes, parser, stop)
    said, parts, calls = {"reasoning": "", "content": ""}, [], []
    for token in frontend.tokenizer.encode(text, special=True):
        parts += output.feed(token)
        if output.matched:
            break
    for part in [*parts, *output.finish()]:
        if isinstance(part, OutputPart):
            said[part.channel] += part.text
        else:
            calls.append((part.index, part.name, part.arguments))
    return said["reasoning"], said["content"], calls


def test_reasoning_then_an_answer_with_a_call(frontend):
    text = f"Let me look.\n</think>\n\nReading.\n\n{READ}"
    call = (0, "read", '{"path": "/東京.txt", "lines": 3}')
    assert answer(frontend, text) == ("Let me look.", "Reading.", [call])


def test_cut_off_reasoning_is_no_answer(frontend):
    """Reported bug 25."""
    text = "Let me count: one, two"
    assert answer(frontend, text) == (text, "", [])


def test_without_reasoning_all_is_content(frontend):
    text = f"Reading.\n{READ}\n{READ}"
    reasoning, content, calls = answer(frontend, text, options=NO_THINKING)
    assert (reasoning, content) == ("", "Reading.")
    assert [(index, name) for index, name, _ in calls] == [(0, "read"), (1, "read")]


def test_stop_strings_end_the_content_alone(frontend):
    """Reported bug 26."""
    text = "I count six, seven, eight</think>8, then seven, nine"
    expected = ("I count six, seven, eight", "8, then ", [])
    assert answer(frontend, text, stop=["seven"]) == expected


def test_reasoning_that_ends_in_a_call_and_reasoning_about_calls(frontend):
    """Reported bug 10, and its opposite."""
    about = "Qwen wraps a call in `<tool_call>`:\n<tool_call> here, GLM nests `<arg_key>`."
    assert answer(frontend, f"{about}</think>No tool needed.") == (about, "No tool needed.", [])
    reasoning, content, [call] = answer(frontend, f"{about}\n{READ}")
    assert (reasoning, content, call[1]) == (about, "", "read")


def test_without_tools_a_call_is_text(frontend):
    """Reported bug 20, ``none``: markup stays text."""
    assert answer(frontend, READ, tools=[], options=NO_THINKING) == ("", READ, [])


def test_a_call_that_is_cut_is_no_call(frontend):
    cut = READ.partition("</parameter>\n</function>")[0]
    assert answer(frontend, cut, options=NO_THINKING) == ("", cut, [])


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
    assert frontend.prepare([USER]).token_ids.count(tokens.opening) == 1


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
