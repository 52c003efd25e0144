"""Text to tokens and back over HTTP."""

import pytest
from litestar.testing import TestClient

from ninfer_core.text.template import MAX_CHARS

ROUTES = "ninfer_serve.tokens:routes"


@pytest.fixture
def post(make_app):
    with TestClient(make_app(ROUTES).app) as client:
        yield lambda path, **body: client.post(path, json=body)


def test_text_goes_to_tokens_and_back(post, frontend):
    text = "Hello, 世界 🦊"
    for name in ("content", "prompt"):
        found = post("/tokenize", **{name: text}).json()
        assert found["tokens"] == frontend.tokenizer.encode(text)
        assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), 4096)
    assert post("/detokenize", tokens=found["tokens"]).json() == {"content": text, "prompt": text}


def test_control_tokens_are_such_unless_they_are_not_to_be(post):
    assert post("/tokenize", content="<|im_end|>").json()["count"] == 1
    assert post("/tokenize", content="<|im_end|>", parse_special=False).json()["count"] > 1


def test_pieces_are_texts_or_bytes(post):
    found = post("/tokenize", content="aé", with_pieces=True).json()["tokens"]
    assert [each["piece"] for each in found] == ["a", [0xC3], [0xA9]]


def test_a_conversation_is_counted_as_it_would_be_read(post, frontend):
    messages = [{"role": "user", "content": "hi"}]
    found = post("/tokenize", messages=messages, enable_thinking=False).json()
    assert "</think>" in post("/detokenize", tokens=found["tokens"]).json()["content"]
    assert found["count"] == len(found["tokens"])


@pytest.mark.parametrize("path, body, where", [
    ("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": "a", "content": "a"}, "prompt"),
    ("/tokenize", {"prompt": 3}, "prompt"), ("/tokenize", {"messages": [{}]}, "messages[0].role"),
    ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": [10**9]}, "tokens[0]"),
    ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
])
def test_what_is_wrong_is_named(post, path, body, where):
    response = post(path, **body)
    assert response.status_code == 400 and response.json()["error"]["param"] == where


def test_a_text_that_no_context_holds_is_not_even_tokenised(post):
    for name in ("prompt", "content"):
        response = post("/tokenize", **{name: "a" * (MAX_CHARS + 1)})
        assert response.status_code == 400
        assert "characters" in response.json()["error"]["message"]


def test_nothing_is_no_tokens(post):
    assert post("/tokenize", content="").json()["tokens"] == []
    assert post("/detokenize", tokens=[]).json()["content"] == ""
