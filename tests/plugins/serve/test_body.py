"""Any bytes become an object or a refusal."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import RequestError
from ninfer_serve.body import read_object
from ninfer_serve.sse import dumps

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(st.dictionaries(st.text(), values), st.booleans())
def test_objects_come_through(value, ascii_only):
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert read_object(body) == value


def test_lone_surrogates_are_replaced():
    body = rb'{"a\ud83d": ["ok \ud83d end", "\ud83e\udd8a", "\\ud83d"], "\udc00": 1}'
    assert read_object(body) == {
        "a\ufffd": ["ok \ufffd end", "🦊", "\\ud83d"], "\ufffd": 1,
    }


@pytest.mark.parametrize("body", [
    b"", b"[]", b"1", b'"x"', b"null", b"{", b'{"a": NaN}', b'{"a": 1e999}', b'{"a": \xff}',
    b'{"a": "\xed\xa0\xbd"}', b"{'a': 1}", b'{"a": 1}{}', b'{"a":' + b"[" * 100_000,
    '{"a": 1}'.encode("utf-16"), b'{"a": ' + b"9" * 5000 + b"}",
])
def test_anything_else_is_refused(body):
    with pytest.raises(RequestError) as caught:
        read_object(body)
    assert caught.value.where == "body"


@given(st.binary())
def test_no_bytes_crash(body):
    with suppress(RequestError):
        dumps(read_object(body))
