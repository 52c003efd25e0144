"""Log probabilities find their text."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import ReasoningTokens
from ninfer_core.engine.request import Logprobs, TokenLogprob
from ninfer_serve.logprobs import LogprobReader, entry


class Words:
    """A tokenizer of given tokens."""

    def __init__(self, *tokens):
        self.tokens = tokens

    def token_bytes(self, token_id):
        return self.tokens[token_id]


def reader_of(*tokens, marks=None):
    return LogprobReader(SimpleNamespace(tokenizer=Words(*tokens), reasoning_tokens=marks))


def logprobs(*ids):
    return Logprobs(tuple(TokenLogprob(each, -1.0 - each) for each in ids))


def texts(entries):
    return [each["token"] for each in entries]


def test_an_entry_names_token_bytes_and_the_likeliest():
    token = TokenLogprob(0, -0.5, ((0, -0.5), (1, -1.5)))
    assert entry(Words("é".encode(), b"\xf0"), token) == {
        "token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9], "top_logprobs": [
            {"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]},
            {"token": "\ufffd", "logprob": -1.5, "bytes": [0xF0]},
        ]}


def test_marks_belong_to_no_text():
    marks = ReasoningTokens(0, 1, (1,))
    reader = reader_of(b"<think>", b"</think>", b"\n\n", b"hm", b"Hi", marks=marks)
    reader.feed(logprobs(0, 3))
    assert texts(reader.of("hm")) == ["hm"]
    reader.feed(logprobs(1, 2, 4))
    assert texts(reader.of("Hi")) == ["Hi"]


def test_a_step_of_drafts_may_end_reasoning_and_begin_the_answer():
    marks = ReasoningTokens(0, 1, (1,))
    reader = reader_of(b"<think>", b"</think>", b"\n\n", b"hm", b"h", b"i", marks=marks)
    reader.feed(logprobs(0, 3, 1, 2, 4, 5))
    assert texts(reader.of("hm")) == ["hm"]
    assert texts(reader.of("h")) == ["h"]
    assert texts(reader.of("i")) == ["i"]


def test_minus_infinity_is_a_number():
    assert entry(Words(b"a"), TokenLogprob(0, float("-inf")))["logprob"] == -9999.0


def test_a_character_of_two_tokens_has_both():
    reader = reader_of(b"\xf0\x9f", b"\xa6\x8a", b"ok")
    reader.feed(logprobs(0))
    reader.feed(logprobs(1, 2))
    assert [each["bytes"] for each in reader.of("🦊")] == [[0xF0, 0x9F], [0xA6, 0x8A]]
    assert texts(reader.of("ok")) == ["ok"]


def test_a_token_that_reaches_into_withheld_text_is_named_once():
    reader = reader_of(b"go E", b"NTER")
    reader.feed(logprobs(0))
    assert texts(reader.of("go ")) == ["go E"]
    reader.feed(logprobs(1))
    assert texts(reader.of("ENTER")) == ["NTER"]


def test_a_call_has_no_text():
    reader = reader_of(b"<tool_call>", b"...", b"after")
    reader.feed(logprobs(0, 1))
    reader.skip()
    reader.feed(logprobs(2))
    assert texts(reader.of("after")) == ["after"]


def test_text_that_is_not_its_bytes_takes_what_there_is():
    reader = reader_of(b"\xf0", b"a")
    reader.feed(logprobs(0))
    assert len(reader.of("\ufffd")) == 1
    assert reader.of("more") == []


@given(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=8), st.data())
def test_every_token_is_named_once_however_the_text_is_cut(tokens, data):
    reader = reader_of(*(each.encode() for each in tokens))
    reader.feed(logprobs(*range(len(tokens))))
    text, found = "".join(tokens), []
    while text:
        size = data.draw(st.integers(1, len(text)))
        found += reader.of(text[:size])
        text = text[size:]
    assert [each["logprob"] for each in found] == [-1.0 - i for i in range(len(tokens))]
