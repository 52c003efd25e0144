"""Values by their schema, the text itself where they do not fit, and JSON that always parses."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.text.arguments import arguments_json, typed_value

INTEGER, STRING, OBJECT = ({"type": name} for name in ("integer", "string", "object"))
NUMBER, BOOLEAN, ARRAY = ({"type": name} for name in ("number", "boolean", "array"))
MAYBE = {"anyOf": [INTEGER, {"type": "null"}]}
TEXT_OR_NUMBER = {"type": ["string", "number"]}


@pytest.mark.parametrize(("text", "schema", "expected"), [
    ("True", BOOLEAN, True), ("FALSE", BOOLEAN, False), ("true", BOOLEAN, True),
    ("maybe", BOOLEAN, "maybe"), ("1", BOOLEAN, "1"), ("True", STRING, "True"),
    ("5", INTEGER, 5), ("5.0", INTEGER, 5), ("5.5", INTEGER, "5.5"), ("true", INTEGER, "true"),
    ("2031-02-03", INTEGER, "2031-02-03"), ("9" * 5000, INTEGER, "9" * 5000),
    ("2.50", NUMBER, 2.5), ("7", NUMBER, 7), ("NaN", NUMBER, "NaN"), ("1e999", NUMBER, "1e999"),
    ('{"level": 3, "on": true}', OBJECT, {"level": 3, "on": True}),
    ("none please", OBJECT, "none please"), ("[1]", OBJECT, "[1]"), ("[" * 9999, ARRAY, "[" * 9999),
    ('{"x": Infinity}', OBJECT, '{"x": Infinity}'), (" [1, 2]\n", ARRAY, [1, 2]),
    ("null", STRING, "null"), ("null", MAYBE, None), ("5", MAYBE, 5), ("None", MAYBE, "None"),
    ("null", INTEGER, "null"), ("null", {"type": ["string", "null"]}, None),
    ("5", {"$ref": "#/$defs/id"}, 5), ("5", {}, "5"), ("5", None, "5"), ("", INTEGER, ""),
    ("7", TEXT_OR_NUMBER, 7), ("1.10", TEXT_OR_NUMBER, "1.10"), ("1e3", TEXT_OR_NUMBER, "1e3"),
    ("007", TEXT_OR_NUMBER, "007"), ("[1]", {"type": ["string", "array"]}, [1]),
    ("  padded ", STRING, "  padded "),
])
def test_typed(text, schema, expected):
    found = typed_value(text, schema, {"$defs": {"id": INTEGER}})
    assert (type(found), found) == (type(expected), expected)


def test_arguments_are_one_object_in_literal_utf_8():
    schema = {"properties": {"city": STRING, "days": INTEGER}}
    found = arguments_json({"city": "東京 😀", "days": "3", "unknown": "4"}, schema)
    assert found == '{"city": "東京 😀", "days": 3, "unknown": "4"}'


def test_members_are_declared_behind_references_too():
    """As zod-to-json-schema and others write them."""
    declared = {"type": "object", "properties": {"days": INTEGER, "next": {"$ref": "#/$defs/args"}}}
    schema = {"$ref": "#/$defs/args", "$defs": {"args": declared}}
    assert arguments_json({"days": "3", "next": "{}"}, schema) == '{"days": 3, "next": {}}'


@pytest.mark.parametrize("schema", [None, {}, {"properties": 5}, True, []])
def test_without_a_schema_all_are_strings(schema):
    assert arguments_json({"a": "1"}, schema) == '{"a": "1"}'


def test_a_lone_surrogate_has_no_place_in_json():
    found = arguments_json({"a": '{"b": "\\ud83d"}'}, {"properties": {"a": OBJECT}})
    assert json.loads(found.encode()) == {"a": {"b": "\ufffd"}}


@given(
    text=st.text() | st.sampled_from(["null", "true", "NaN", "1", "-0.0", "1e400", '{"a": NaN}']),
    schema=st.sampled_from([INTEGER, STRING, OBJECT, NUMBER, BOOLEAN, ARRAY, MAYBE, {}]),
)
def test_the_result_always_parses_and_has_a_form_in_utf_8(text, schema):
    found = arguments_json({"a": text}, {"properties": {"a": schema}})
    assert [*json.loads(found.encode(), parse_constant=pytest.fail)] == ["a"]
