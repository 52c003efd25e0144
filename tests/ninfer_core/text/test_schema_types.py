"""Types that schemas admit, through unions, intersections and references."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.text.schema_types import TYPES, admitted_types, declared_properties

ROOT = {"$defs": {
    "id": {"type": "integer"}, "a/b": {"type": "null"}, "loop": {"$ref": "#/$defs/loop"},
}, "properties": {"x y": {"anyOf": [{"type": "boolean"}, {"type": "array"}]}}}


@pytest.mark.parametrize(("schema", "expected"), [
    ({"type": "string"}, {"string"}),
    ({"type": "integer"}, {"integer"}),
    ({"type": "number"}, {"number", "integer"}),
    ({"type": ["integer", "null"]}, {"integer", "null"}),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
    ({"oneOf": [{"type": "array"}, {"anyOf": [{"type": "string"}]}]}, {"array", "string"}),
    ({"allOf": [{"type": "number"}, {"type": ["integer", "string"]}]}, {"integer"}),
    ({"type": "string", "anyOf": [{"type": "string"}, {"type": "null"}]}, {"string"}),
    ({"$ref": "#/$defs/id"}, {"integer"}),
    ({"$ref": "#/$defs/a~1b"}, {"null"}),
    ({"$ref": "#/properties/x%20y"}, {"boolean", "array"}),
    ({"$ref": "#/properties/x%20y/anyOf/1"}, {"array"}),
    ({"$ref": "#/properties/x%20y/anyOf/2"}, None), ({"$ref": "#/$defs/id/type/0"}, None),
    ({"allOf": [{"$ref": "#/$defs/id"}], "description": "x"}, {"integer"}),
    ({"enum": ["a", 1]}, {"string", "integer"}),
    ({"const": True}, {"boolean"}),
    ({"properties": {}}, {"object"}),
    ({"items": {}}, {"array"}),
    ({}, None), (True, None), (None, None), ({"description": "any"}, None),
    ({"anyOf": [{"type": "integer"}, {}]}, None), ({"anyOf": []}, None),
    ({"$ref": "#/$defs/missing"}, None), ({"$ref": "other.json#/x"}, None),
    ({"$ref": "#/$defs/loop"}, None), ({"$ref": 5}, None),
    ({"type": "frobnication"}, None), ({"type": {}}, None), ({"type": [{}, 7]}, None),
])
def test_admitted(schema, expected):
    assert admitted_types(schema, ROOT) == expected


def test_a_reference_to_the_whole_schema():
    schema = {"type": "object", "properties": {"child": {"$ref": "#"}}}
    assert admitted_types(schema["properties"]["child"], schema) == {"object"}


def test_references_that_multiply_end():
    names = [f"d{index}" for index in range(30)]
    root = {"$ref": "#/$defs/d0", "properties": {"a": {}},
            "$defs": {name: {"anyOf": [{"$ref": f"#/$defs/{each}"} for each in names]}
                      for name in names}}
    assert admitted_types(root, root) is None
    assert declared_properties(root) == {"a": {}}


A, B = {"type": "integer"}, {"type": "boolean"}


@pytest.mark.parametrize(("schema", "expected"), [
    ({"properties": {"a": A}}, {"a": A}),
    ({"$ref": "#/definitions/args", "definitions": {"args": {"properties": {"a": A}}}}, {"a": A}),
    ({"allOf": [{"properties": {"a": A}}, {"$ref": "#/$defs/b"}],
      "$defs": {"b": {"properties": {"b": B}}}}, {"a": A, "b": B}),
    ({"oneOf": [{"properties": {"a": A}}, {"anyOf": [{"properties": {"a": B, "b": B}}]}]},
     {"a": A, "b": B}),
    ({"properties": {"a": A}, "allOf": [{"properties": {"a": B}}]}, {"a": A}),
    ({"$ref": "#"}, {}), ({"$ref": 5, "anyOf": 5, "properties": 5}, {}), ({"anyOf": [5]}, {}),
    (True, {}), (None, {}),
])
def test_declared_properties(schema, expected):
    assert declared_properties(schema) == expected


def test_a_schema_nested_deeply_does_not_say():
    schema = {"type": "integer"}
    for _ in range(5000):
        schema = {"allOf": [schema]}
    assert admitted_types(schema, schema) is None


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([*TYPES, "#", "#/$defs/id", "x"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["type", "anyOf", "allOf", "oneOf", "$ref", "enum", "const", "items",
                         "properties"]),
        inner, max_size=4),
))
def test_any_schema_is_read(schema):
    admitted = admitted_types(schema, schema)
    assert admitted is None or admitted <= {*TYPES}
    assert isinstance(declared_properties(schema), dict)
