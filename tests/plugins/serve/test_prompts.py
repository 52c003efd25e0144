"""Prompts of requests: continuations and cache markers."""

from __future__ import annotations

import pytest

from ninfer_core.api import PromptOptions, RequestError
from ninfer_serve.prompts import prepare_prompt
from ninfer_serve.serve_request import ServeRequest

DIRECT = PromptOptions(thinking=False)
MARK = {"cache_control": {"type": "ephemeral"}}


def text(value, **more):
    return {"type": "text", "text": value, **more}


def prepared(frontend, request):
    return prepare_prompt(frontend, request, request.options)


def test_text_and_ids_are_read_as_they_are(frontend):
    ids = prepared(frontend, ServeRequest(prompt="a<|im_end|>")).token_ids
    assert ids == prepared(frontend, ServeRequest(prompt=list(ids))).token_ids
    assert ids[-1] == frontend.tokenizer.control_ids["<|im_end|>"]


def test_a_conversation_is_what_the_frontend_makes_of_it(frontend):
    messages = [{"role": "user", "content": "hi"}]
    wanted = frontend.prepare(messages, options=DIRECT)
    assert prepared(frontend, ServeRequest(messages=messages, options=DIRECT)) == wanted


def test_an_answer_goes_on_from_a_text(frontend):
    request = ServeRequest(
        messages=[{"role": "user", "content": "hi"}], prefill="a <|im_end|> ", options=DIRECT)
    prompt = prepared(frontend, request)
    before = frontend.prepare(request.messages, options=DIRECT)
    assert prompt.token_ids[:len(before.token_ids)] == before.token_ids
    assert prompt.text == before.text + "a <|im_end|> "
    assert frontend.tokenizer.control_ids["<|im_end|>"] not in (
        prompt.token_ids[len(before.token_ids):]
    )


def test_an_answer_that_begins_with_reasoning_cannot_go_on_from_a_text(frontend):
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(RequestError, match="go on from a text"):
        prepared(frontend, ServeRequest(messages=messages, prefill="a"))


def test_marks_of_the_client_are_in_the_prompt(frontend):
    messages = [{"role": "user", "content": [text("a document", **MARK), text("its title?")]}]
    prompt = prepared(frontend, ServeRequest(messages=messages))
    [marked] = [b"".join(map(frontend.tokenizer.token_bytes, prompt.token_ids[:mark])).decode()
                for mark in prompt.marks]
    assert marked.endswith("a document")
