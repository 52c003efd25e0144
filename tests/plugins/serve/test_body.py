"""Any bytes become an object or a refusal."""

from __future__ import annotations

import gzip
import json
import threading
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar.testing import TestClient

from ninfer_core.api import RequestError
from ninfer_serve import body
from ninfer_serve.body import read_object
from ninfer_serve.members import Members
from ninfer_serve.sse import dumps

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(st.dictionaries(st.text(), values), st.booleans())
def test_objects_come_through(value, ascii_only):
    assert read_object(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


def test_lone_surrogates_are_replaced():
    text = rb'{"a\ud83d": ["ok \ud83d end", "\ud83e\udd8a", "\\ud83d"], "\udc00": 1}'
    assert read_object(text) == {
        "a\ufffd": ["ok \ufffd end", "🦊", "\\ud83d"], "\ufffd": 1,
    }


@pytest.mark.parametrize("text", [
    b"", b"[]", b"1", b'"x"', b"null", b"{", b'{"a": NaN}', b'{"a": 1e999}', b'{"a": \xff}',
    b'{"a": "\xed\xa0\xbd"}', b"{'a': 1}", b'{"a": 1}{}', b'{"a":' + b"[" * 100_000,
    '{"a": 1}'.encode("utf-16"), b'{"a": ' + b"9" * 5000 + b"}",
])
def test_anything_else_is_refused(text):
    with pytest.raises(RequestError) as caught:
        read_object(text)
    assert caught.value.where == "body"


@given(st.binary())
def test_no_bytes_crash(text):
    with suppress(RequestError):
        dumps(read_object(text))


def test_more_values_than_are_good_for_the_others_are_refused_unread(monkeypatch):
    monkeypatch.setattr(body, "MAX_VALUES", 100)
    read_object(b'{"a": [' + b"1," * 98 + b"1]}")
    monkeypatch.setattr(body, "_value", None)
    with pytest.raises(RequestError, match="more than 100 commas and brackets"):
        read_object(b'{"a": [' + b"1," * 99 + b"1]}")


@pytest.fixture
def lines(make_app):
    """Over a route that says which thread read its body, and what was in it."""
    return TestClient(make_app("ninfer_serve.openai.routes:routes", "ninfer_serve.tokens:routes",
                               "ninfer_serve.anthropic.routes:routes",
                               "ninfer_serve.responses.routes:routes").app)


MANY = [{"role": "user", "content": "a"}] * 9000


@pytest.mark.parametrize(("path", "large"), [
    ("/tokenize", {"prompt": "a" * body.LARGE_BYTES}), ("/detokenize", {"tokens": [1] * 200_000}),
    ("/v1/chat/completions", {"messages": MANY}), ("/v1/messages", {"messages": MANY}),
    ("/v1/completions", {"prompt": "a" * body.LARGE_BYTES}), ("/v1/responses", {"input": MANY}),
])
def test_a_large_body_is_read_beside_the_event_loop(lines, monkeypatch, path, large):
    threads = set()
    real = Members.of.__func__

    def of(cls, value, path=""):
        threads.add(threading.current_thread())
        return real(cls, value, path)

    monkeypatch.setattr(Members, "of", classmethod(of))
    with lines:
        lines.post(path, json={"tokens": []})
        small, threads = threads, set()
        lines.post(path, json={**large, "model": "m", "max_tokens": 1})
    assert len(small) == len(threads) == 1
    assert small != threads


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize", "/v1/messages"])
def test_compressed_bodies_are_refused_by_name(lines, path):
    content = gzip.compress(b'{"prompt": "a"}')
    answer = lines.post(path, content=content, headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 415
    assert "encoded [content-encoding]: as 'gzip'" in answer.json()["error"]["message"]
    plain = lines.post("/tokenize", json={"prompt": "a"}, headers={"Content-Encoding": "identity"})
    assert plain.status_code == 200


@pytest.mark.parametrize("path", ["/", "/health"])
def test_a_head_has_no_body(make_app, path):
    app = make_app("ninfer_serve.anthropic.routes:routes").app
    with TestClient(app) as client:
        answer = client.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
