"""JSON schemas: whatever a model says, its answer is valid, or the schema is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_core.api import RequestError

LINES = (Path(__file__).parent / "data" / "schemas.jsonl").read_text().splitlines()
SCHEMAS = [json.loads(line) for line in LINES]
REFUSED = {
    "oneOf": [{"oneOf": [{"type": "integer"}, {"type": "number"}]}],
    "uniqueItems": [{"type": "array", "uniqueItems": True}],
    "not": [{"properties": {"a": {"not": {}}}}], "if": [{"if": {}, "then": {}}],
    "propertyNames": [{"type": "object", "propertyNames": {"pattern": "a"}}],
    "contains": [{"items": {"contains": {}}}], "format": [{"type": "string", "format": "iri"}],
    "dependentRequired": [{"dependentRequired": {"a": ["b"]}}],
    "unevaluatedProperties": [{"unevaluatedProperties": False}],
    "minProperties": [{"type": "object", "minProperties": 2}],
}


def test_every_answer_is_valid_or_its_schema_is_refused(lab, schemas):
    """More than 200 schemas, and nothing but the mask to keep to them."""
    valid = refused = 0
    for number, schema in enumerate(schemas):
        try:
            texts = [lab.walk(lab.constraint("json_schema", schema), seed * 1000 + number)
                     for seed in range(2)]
        except RequestError:
            refused += 1
            continue
        for text in texts:
            jsonschema_rs.validate(schema, lab.parsed(text))
        valid += 1
    least, most = (200, 40) if lab.engine == "llguidance" else (175, 60)
    assert valid >= least
    assert 20 <= refused <= most  # the last twenty lines, and what is composed of them


@pytest.mark.parametrize("keyword", REFUSED)
def test_what_is_not_supported_is_refused_by_name(lab, keyword):
    for schema in REFUSED[keyword]:
        with pytest.raises(RequestError, match=keyword) as caught:
            lab.constraint("json_schema", schema)
        assert "/" in caught.value.where


@pytest.mark.parametrize("schema", SCHEMAS[-20:], ids=LINES[-20:])
def test_each_of_these_is_refused(lab, schema):
    with pytest.raises(RequestError):
        lab.constraint("json_schema", schema)


@pytest.mark.parametrize("source", ["{", "[]", "3", '"x"', "null", "", '{"type": NaN}', "[" * 3000])
def test_a_schema_that_is_none_is_refused(lab, source):
    with pytest.raises(RequestError):
        lab.constraint("json_schema", source)


@pytest.mark.parametrize(("keyword", "value"), [
    ("required", None), ("required", 5), ("required", [{}]), ("required", [["x"]]), ("type", None),
    ("type", {"x": 1}), ("type", [5]), ("anyOf", 5), ("enum", None), ("properties", []),
    ("pattern", 5), ("$ref", []), ("format", 1), ("prefixItems", {}),
])
def test_keywords_of_another_kind_are_refused_with_their_place(lab, keyword, value):
    schema = {"type": "object", "properties": {"a": {"type": "object", keyword: value}}}
    with pytest.raises(RequestError, match="malformed") as caught:
        lab.constraint("json_schema", schema)
    assert caught.value.where == f"/properties/a/{keyword}"


def test_one_that_is_too_large_is_refused(lab):
    with pytest.raises(RequestError, match="too large"):
        lab.constraint("json_schema", {"enum": ["x" * 1000 + str(i) for i in range(1100)]})


def test_options_of_the_compiler_are_not_the_clients(lab):
    schema = {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}
    with pytest.raises(RequestError, match="uniqueItems"):
        lab.constraint("json_schema", schema)
    schema = {"type": "object", "x-guidance": {"whitespace_pattern": "z"},
              "properties": {"x-guidance": {"type": "integer"}}}
    assert lab.reads("json_schema", schema, '{ "x-guidance": 3}')
    assert lab.reads("json_schema", schema, "{z}") is False


NODE = {"$ref": "#/$defs/node", "$defs": {"node": {
    "type": "object", "additionalProperties": False, "required": ["v", "kids"],
    "properties": {"v": {"type": "integer"}, "kids": {
        "type": "array", "items": {"$ref": "#/$defs/node"}}}}}}


class TestRecursion:
    @pytest.mark.parametrize("depth", [1, 20, 60])
    def test_a_tree_of_any_depth(self, lab, depth):
        text = '{"v": 1, "kids": [' * depth + "]}" * depth
        assert lab.reads("json_schema", NODE, text)
        assert lab.reads("json_schema", NODE, text[:-1]) is None

    @pytest.mark.parametrize("schema", [
        {"$ref": "#"}, {"anyOf": [{"$ref": "#"}]}, {"allOf": [{"$ref": "#"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
        {"type": "object", "required": ["a"], "additionalProperties": {"$ref": "#"}},
        {"type": "array", "minItems": 1, "prefixItems": [{"$ref": "#"}]},
    ])
    def test_what_has_no_end_is_refused(self, lab, schema):
        with pytest.raises(RequestError, match="no finite value"):
            lab.constraint("json_schema", schema)

    @pytest.mark.parametrize("schema", [
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": ["object", "null"], "required": ["a"], "properties": {"a": {"$ref": "#"}}},
    ])
    def test_what_can_end_is_not(self, lab, schema):
        assert json.loads(lab.walk(lab.constraint("json_schema", schema), 1)) is not False

    def test_references_that_multiply_are_refused_in_time(self, lab):
        defs = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 4, "type": "array",
                          "minItems": 1, "items": {"$ref": "#/$defs/d0"}} for i in range(40)}
        with pytest.raises(RequestError):
            lab.constraint("json_schema", {"$ref": "#/$defs/d0", "$defs": defs | {"d40": {}}})

    def test_a_chain_of_references_is_no_crash(self, lab):
        defs = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3000)} | {"d3000": {}}
        with pytest.raises(RequestError, match="refers too deeply"):
            lab.constraint("json_schema", {"$ref": "#/$defs/d0", "$defs": defs})


def test_blanks_are_bounded_between_tokens_and_free_in_strings(lab):
    """A model that prefers blanks wherever it may."""
    schema = {"type": "object", "additionalProperties": False, "required": ["a"], "properties": {
        "a": {"type": "array", "minItems": 1, "maxItems": 2, "items": {
            "type": "object", "required": ["b"], "additionalProperties": False,
            "properties": {"b": {"type": "string", "maxLength": 30}}}}}}
    constraint, ids = lab.constraint("json_schema", schema), []
    blank = lab.ids(" ")[0]
    while len(ids) < 400:
        mask = constraint.mask(())
        token = blank if mask[blank] else int(mask.nonzero()[0])
        if token in lab.end_ids:
            break
        ids.append(token)
        constraint.commit([token])
    text = lab.text(ids)
    jsonschema_rs.validate(schema, json.loads(text))
    inside = [each["b"] for each in json.loads(text)["a"]]
    assert " " * 30 in inside
    outside = re.sub(r'"[^"]*"', '""', text)
    assert max(map(len, re.findall(r"\s+", outside))) == 8


LIMITS = st.dictionaries(
    st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
    st.integers(-10**6, 10**6) | st.decimals(-1000, 1000, places=3).map(float), min_size=1,
    max_size=2)


@given(st.sampled_from(["integer", "number"]), LIMITS, st.integers(0, 99))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_numbers_keep_to_their_limits(lab, kind, limits, seed):
    schema = {"type": kind, **limits}
    try:
        constraint = lab.constraint("json_schema", schema)
    except RequestError:  # nothing is between them
        return
    jsonschema_rs.validate(schema, lab.parsed(lab.walk(constraint, seed, 12)))
