"""Members of JSON objects, read with their places."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import RequestError
from ninfer_serve.members import Members

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
READERS = [
    lambda m: m.text("a"), lambda m: m.need_text("a"), lambda m: m.flag("a"),
    lambda m: m.integer("a", 0), lambda m: m.integer("a", 0, 9), lambda m: m.number("a", 0, 2),
    lambda m: m.one_of("a", ("x", "y")), lambda m: m.object("a"), lambda m: list(m.objects("a")),
    lambda m: m.text("a", longest=3),
]


@pytest.mark.parametrize("reader", READERS)
@given(value=JSON)
def test_any_value_is_read_or_refused_with_its_place(reader, value):
    try:
        reader(Members({"a": value}, "body.b[1]"))
    except RequestError as error:
        assert error.where.startswith("body.b[1].a")


def test_absent_and_null_are_alike():
    for members in (Members({}), Members({"a": None})):
        assert members.text("a") is members.integer("a", 0) is members.object("a") is None
        assert members.array("a") == []
        assert "a" not in members


def test_numbers_are_what_they_say():
    assert Members({"a": 8.0}).integer("a", 0) == 8
    assert type(Members({"a": 1}).number("a", 0, 2)) is float
    for value in (True, "8", 8.5, -1, 10**400, float("nan"), float("inf")):
        with pytest.raises(RequestError):
            Members({"a": value}).integer("a", 0, 100)
    for value in (True, "1", 10**400, float("nan"), float("-inf")):
        with pytest.raises(RequestError):
            Members({"a": value}).number("a", 0, 2)


def test_elements_have_their_index_in_the_place():
    with pytest.raises(RequestError, match=r"tools\[1\]"):
        list(Members({"tools": [{}, 3]}).objects("tools"))
