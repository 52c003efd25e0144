"""Calls in the model's own syntax: what the mask allows is what the parser finds."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest

from ninfer_core.api import CallRules, RequestError, ToolCall
from ninfer_core.text.calls import ToolCallParser
from ninfer_tool_calls.function_calls import FunctionCalls

CITY = {"type": "object", "required": ["city"], "additionalProperties": False, "properties": {
    "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}}
WRITE = {"type": "object", "required": ["path", "content"], "properties": {
    "path": {"type": "string"}, "content": {"type": "string"},
    "options": {"$ref": "#/$defs/options"}},
    "$defs": {"options": {"type": "object", "additionalProperties": False, "required": ["mode"],
                          "properties": {"mode": {"enum": ["a", "w"]}, "more": {
                              "type": "array", "items": {"$ref": "#/$defs/options"}}}}}}
CALL = ("<tool_call>\n<function=city>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>")
PING = "<tool_call>\n<function=ping>\n</function>\n</tool_call>"


@pytest.fixture(params=["tags are tokens", "tags are text"])
def any_lab(request, lab, plain_lab):
    return lab if request.param == "tags are tokens" else plain_lab


@pytest.fixture(scope="module")
def tools(kit):
    return [kit.tool("city", CITY), kit.tool("ping"), kit.tool("write", WRITE)]


def parse(text, tools):
    """Content, and calls with their arguments."""
    parser = ToolCallParser(FunctionCalls(tools))
    parts = [*parser.feed(text), *parser.finish()]
    calls = [(each.name, json.loads(each.arguments)) for each in parts
             if isinstance(each, ToolCall)]
    return "".join(each.text for each in parts if not isinstance(each, ToolCall)), calls


STRICT = frozenset({"city", "write"})
RULES = {
    "auto": (CallRules(strict=STRICT), ["", "hello", CALL, "hi\n\n" + CALL, f"{CALL}\n{PING}"],
             ["<function=", CALL + "x", CALL.replace("3", "15"), CALL.replace("=city", "=town")]),
    "none": (CallRules(names=()), ["", "hello <tool"], [CALL, "<function=", "a" + CALL]),
    "required": (CallRules(required=True), [CALL, PING, f"{CALL}\n{CALL}"],
                 ["", "hello", "a" + CALL]),
    "named": (
        CallRules(required=True, names=("ping",)), [PING, f"{PING}\n{PING}"], [CALL, "", "a"]),
    "one": (CallRules(parallel=False), ["a", CALL, "a" + PING], [f"{CALL}\n{PING}"]),
    "one named": (
        CallRules(required=True, names=("city",), parallel=False), [CALL], [PING]),
    "some": (CallRules(names=("ping", "city")), ["a", CALL], [CALL.replace("=city>", "=write>")]),
}


@pytest.mark.parametrize("name", RULES)
def test_rules(any_lab, tools, name):
    rules, right, wrong = RULES[name]
    for text in right:
        assert any_lab.reads(None, "", text, calls=rules, tools=tools) is True, text
    for text in wrong:
        assert not any_lab.reads(None, "", text, calls=rules, tools=tools), text


@pytest.mark.parametrize("name", RULES)
def test_what_is_allowed_is_what_is_parsed(any_lab, tools, name):
    rules = RULES[name][0]
    schemas = {each["function"]["name"]: each["function"].get("parameters", {}) for each in tools}
    constraint = any_lab.compiler.compile(None, rules, tools)
    for seed in range(25):
        text = any_lab.walk(constraint(any_lab.end_ids), seed, patience=40)
        content, calls = parse(text, tools)
        assert len(calls) == text.count("</function>")
        assert not (rules.required and content)
        assert len(calls) >= rules.required and (rules.parallel or len(calls) < 2)
        for function, arguments in calls:
            assert rules.names is None or function in rules.names
            jsonschema_rs.validate(schemas[function], arguments)


def test_arguments_may_come_in_any_order_but_once(any_lab, tools):
    rules = CallRules(required=True)
    lines = {key: f"<parameter={key}>\n{value}\n</parameter>\n"
             for key, value in (("city", "Oslo"), ("days", "3"), ("unit", "celsius"))}

    def read(*keys):
        body = "".join(lines[key] for key in keys)
        text = f"<tool_call>\n<function=city>\n{body}</function>\n</tool_call>"
        return any_lab.reads(None, "", text, calls=rules, tools=tools)

    assert read("city") and read("unit", "city") and read("days", "unit", "city")
    assert not read() and not read("unit", "days") and not read("city", "city")


def test_strings_are_kept_as_they_are(any_lab, tools):
    """Line breaks, quotes and tags that end nothing, but no tag that might."""
    def read(content):
        text = ("<tool_call>\n<function=write>\n<parameter=path>\na\n</parameter>\n"
                f"<parameter=content>\n{content}\n</parameter>\n</function>\n</tool_call>")
        taken = any_lab.reads(None, "", text, calls=CallRules(required=True), tools=tools)
        return taken, parse(text, tools)[1]

    for content in ("", "\n", '\n  x = "1"\n\n', "<b>&</b> {", "a </parameter"):
        taken, [(_, arguments)] = read(content)
        assert taken and arguments["content"] == content
    for tag in ("</parameter>", "</function>", "<parameter=b>", "<function=c>"):
        assert not read(f"a {tag} b")[0]


LIMITED = [  # strings beside tags that they must not have: two things at once
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "é東x"], ["a", "abcd"]),
    ({"type": "string", "pattern": "^(\\d+|k:[a-z]+)$"}, ["12", "k:a"], ["k:", "x"]),
    ({"type": "string", "pattern": "b"}, ["abc"], ["ac"]),
    ({"type": "string", "pattern": "^a", "maxLength": 2}, ["ab"], ["ba", "abc"]),
    ({"anyOf": [{"type": "string", "minLength": 5}, {"type": "null"}]}, ["null", "abcde"], ["ab"]),
    ({"$ref": "#/$defs/id"}, ["ab"], ["a"]),
]
VALUES = [
    ({"enum": ["x", "y"]}, ["x"], ["z"]), ({"const": "x y"}, ["x y"], ["x"]),
    ({"enum": ["a", 1, None]}, ["a", "1", "null"], ["2", "b"]),
    ({"enum": ["true", False, "b"]}, ["false", "b"], ["true"]),  # which would be read as a boolean
    ({"type": ["string", "null"]}, ["any", "null", ""], []),
    ({"anyOf": [{"enum": ["a"]}, {"type": "integer"}]}, ["a", "-3"], ["b", "3.5"]),
    ({"$ref": "#/$defs/n"}, ["7"], ["5", "x"]),
    ({"type": "integer", "minimum": 5}, ["5"], ["4", "x"]), ({"type": "boolean"}, ["true"], ["1"]),
    ({"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2}, ["[6, 7]"], ["[5]", "6"]),
    ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
     ['{"a": "</parameter>"}'], ["{}"]),
    ({}, ["any"], []), ({"description": "free"}, ["any", "3"], []),
]


@pytest.mark.parametrize(("schema", "right", "wrong"), [*LIMITED, *VALUES],
                         ids=[json.dumps(each[0]) for each in (*LIMITED, *VALUES)])
def test_values_of_a_strict_tool(any_lab, kit, schema, right, wrong):
    whole = {"type": "object", "properties": {"v": schema}, "required": ["v"], "$defs": {
        "id": {"type": "string", "minLength": 2}, "n": {"type": "integer", "minimum": 6}}}
    tools, rules = [kit.tool("f", whole)], CallRules(required=True, strict=frozenset({"f"}))

    def text(value):
        return ("<tool_call>\n<function=f>\n<parameter=v>\n"
                f"{value}\n</parameter>\n</function>\n</tool_call>")

    if any_lab.engine == "xgrammar" and (schema, right, wrong) in LIMITED:
        with pytest.raises(RequestError, match=r"f\.v .*(Length|pattern)"):
            any_lab.constraint(calls=rules, tools=tools)
        return
    for value in right:
        assert any_lab.reads(None, "", text(value), calls=rules, tools=tools), value
        [(_, arguments)] = parse(text(value), tools)[1]
        jsonschema_rs.validate(whole, arguments)
    for value in wrong:
        assert not any_lab.reads(None, "", text(value), calls=rules, tools=tools), value
    new = any_lab.compiler.compile(None, rules, tools)
    for seed in range(4):
        for _, arguments in parse(any_lab.walk(new(any_lab.end_ids), seed, 30), tools)[1]:
            jsonschema_rs.validate(whole, arguments)


HARD = [
    ({"type": "string", "format": "date"}, "format"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
    ({"type": "string", "pattern": "^a|b$"}, "anchor"),
    ({"type": "string", "pattern": "a$b"}, "anchor"),
    ({"type": ["string", "integer"], "minimum": 3}, "minimum"),
    ({"anyOf": [{"type": "string"}], "minLength": 3}, "minLength"),
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems"),
    (False, "false"), ({"enum": ["a", "b"], "minLength": 3}, "minLength"),
    ({"not": {"type": "string"}}, "not"), ({"type": "array", "contains": {}}, "contains"),
    ({"type": "array", "minItems": 1, "items": {"$ref": "#/properties/v"}}, "no finite value"),
]


@pytest.mark.parametrize(("schema", "word"), HARD, ids=[json.dumps(each[0]) for each in HARD])
def test_what_is_hard_is_refused_by_name_if_strict_and_else_relaxed(any_lab, kit, schema, word):
    whole = {"type": "object", "properties": {"v": schema, "w": {"type": "integer"}}}
    tools = [kit.tool("hard", whole), kit.tool("other", CITY)]
    with pytest.raises(RequestError, match=word) as caught:
        any_lab.constraint(calls=CallRules(strict=frozenset({"hard"})), tools=tools)
    assert "hard.v" in str(caught.value)
    constraint = any_lab.constraint(calls=CallRules(required=True), tools=tools)
    assert parse(any_lab.walk(constraint, 1, 20), tools)[1]


def test_one_odd_tool_does_not_break_the_others(any_lab, kit):
    tools = [
        kit.tool("noop", {"type": "object", "properties": {}}),
        kit.tool("big", {"type": "object", "properties": {
            "s": {"type": "string", "maxLength": 200_000}}, "required": ["s"]}),
        kit.tool("ids", {"type": "object", "properties": {"ids": {
            "type": "array", "items": {"type": "string", "pattern": "^(\\d+|k:[a-z]+)$"}}}}),
        kit.tool("odd", {"type": "object", "properties": {"v": {"type": "array", "items": False},
                                                          "w": None, "x": 3}, "required": "v"}),
        kit.tool("none", None), kit.tool("list", ["not", "a schema"]), kit.tool("city", CITY),
    ]
    constraint = any_lab.compiler.compile(None, CallRules(required=True), tools)
    for seed in range(12):
        assert parse(any_lab.walk(constraint(any_lab.end_ids), seed, 20), tools)[1]
    text = ('<tool_call>\n<function=ids>\n<parameter=ids>\n["12", "k:a"]\n</parameter>\n'
            "</function>\n</tool_call>\n" + CALL)
    assert any_lab.takes(constraint(any_lab.end_ids), text)
    for name in ("big", "ids", "noop")[any_lab.engine == "xgrammar" :]:
        any_lab.constraint(calls=CallRules(strict=frozenset({name})), tools=tools)


@pytest.mark.parametrize(("schema", "word"), [
    ({"type": "object", "patternProperties": {}}, "patternProperties"),
    ({"anyOf": [{"required": ["a"]}]}, "anyOf"),
    ({"type": "object", "required": ["a"]}, "'a' is not declared"), ([1], "malformed"),
])
def test_a_strict_tool_whose_arguments_depend_on_each_other_is_refused(lab, kit, schema, word):
    with pytest.raises(RequestError, match=word):
        lab.constraint(calls=CallRules(strict=frozenset({"f"})), tools=[kit.tool("f", schema)])


def test_a_tool_of_many_arguments(any_lab, kit):
    """More than can be told apart in any order come in theirs."""
    names = [f"p{i}" for i in range(70)]
    schema = {"type": "object", "properties": {n: {"type": "integer"} for n in names},
              "required": names[1::2]}
    rules, tools = CallRules(required=True, parallel=False), [kit.tool("many", schema)]
    text = any_lab.walk(any_lab.constraint(calls=rules, tools=tools), 1)
    [(_, arguments)] = parse(text, tools)[1]
    assert arguments.keys() >= {*names[1::2]}
    assert [*arguments] == [name for name in names if name in arguments]


@pytest.mark.parametrize("kind", [
    ("json_schema", CITY), ("regex", "[xy]{3}"), ("choice", ["x", "xyx"]),
    ("grammar", 'root ::= "x" root | "y"'), ("json", ""),
])
def test_an_answer_of_a_grammar_or_calls(any_lab, tools, kind):
    content = {"json_schema": '{"city": "Paris"}', "json": "{}", "regex": "xyx", "choice": "xyx",
               "grammar": "xy"}[kind[0]]
    for rules in (CallRules(), CallRules(parallel=False)):
        for text in (content, CALL):
            assert any_lab.reads(*kind, text, calls=rules, tools=tools), text
        assert not any_lab.reads(*kind, "hello", calls=rules, tools=tools)
        assert not any_lab.reads(*kind, content + CALL, calls=rules, tools=tools)
    assert any_lab.reads(*kind, content, calls=CallRules(names=()), tools=tools)
    assert not any_lab.reads(*kind, CALL, calls=CallRules(names=()), tools=tools)
    assert not any_lab.reads(*kind, content, calls=CallRules(required=True), tools=tools)


MALFORMED = [
    {"enum": 5}, {"enum": None}, {"anyOf": 7}, {"oneOf": None}, {"type": {"x": 1}},
    {"type": ["string", {}]}, {"type": "string", "pattern": 5}, {"$ref": 5},
    {"type": "object", "required": [{}]}, {"type": "object", "required": 3},
    {"type": "object", "properties": []},
]


@pytest.mark.parametrize("schema", MALFORMED, ids=map(json.dumps, MALFORMED))
def test_a_malformed_argument_is_refused_if_strict_and_else_left_free(lab, kit, schema):
    tools = [kit.tool("odd", {"type": "object", "properties": {"v": schema}}), kit.tool("ping")]
    with pytest.raises(RequestError, match="malformed") as caught:
        lab.constraint(calls=CallRules(strict=frozenset({"odd"})), tools=tools)
    assert "odd.v" in str(caught.value)
    assert lab.reads(None, "", PING, calls=CallRules(required=True), tools=tools)


@pytest.mark.parametrize("required", [5, [["x"]], [{"a": 1}], "v", {"v": 1}, None])
def test_malformed_required_arguments(lab, kit, required):
    schema = {"type": "object", "properties": {"v": {"type": "integer"}}, "required": required}
    tools = [kit.tool("odd", schema), kit.tool("ping")]
    with pytest.raises(RequestError, match="odd /required"):
        lab.constraint(calls=CallRules(strict=frozenset({"odd"})), tools=tools)
    assert lab.reads(None, "", PING, calls=CallRules(required=True), tools=tools)


TWICE = [[{"$ref": f"#/$defs/a{i + 1}"}] * 2 for i in range(60)]
ENDLESS = {
    "itself": {"a0": {"$ref": "#/$defs/a0"}},
    "among others": {"a0": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/a0"}]}},
    "twice as many each time": {f"a{i}": {"anyOf": each} for i, each in enumerate([*TWICE, []])},
}


@pytest.mark.parametrize("definitions", ENDLESS.values(), ids=ENDLESS)
def test_references_of_a_text_that_have_no_end(lab, kit, definitions):
    whole = {"type": "object", "properties": {"v": {"$ref": "#/$defs/a0"}}, "$defs": definitions}
    tools = [kit.tool("odd", whole), kit.tool("ping")]
    with pytest.raises(RequestError, match=r"odd\.v"):
        lab.constraint(calls=CallRules(strict=frozenset({"odd"})), tools=tools)
    assert lab.reads(None, "", PING, calls=CallRules(required=True), tools=tools)
