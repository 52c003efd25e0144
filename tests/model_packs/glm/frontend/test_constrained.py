"""Answers held to calls in GLM's syntax: what a mask allows is what the parser finds."""

from __future__ import annotations

import json
import random

import jsonschema_rs
import pytest

from ninfer_constraints.compiler import Compiler
from ninfer_core.api import CallRules, ConstraintContext, ToolCall
from ninfer_core.text.calls import ToolCallParser
from ninfer_pack_glm.tool_calls import KeyValueCalls

CITY = {"type": "object", "required": ["city"], "additionalProperties": False, "properties": {
    "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
    "near": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2}}}
TOOLS = [{"type": "function", "function": {"name": "city", "parameters": CITY}},
         {"type": "function", "function": {"name": "city_time"}}]
OSLO = ("<tool_call>city<arg_key>city</arg_key><arg_value>Oslo</arg_value>"
        "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>")
TIME = "<tool_call>city_time</tool_call>"
STRICT = frozenset({"city"})


@pytest.fixture(scope="module")
def compiler(frontend):
    tokenizer = frontend.tokenizer
    return Compiler(ConstraintContext(tokenizer, tokenizer.vocab_size, frontend.call_syntax))


@pytest.fixture(scope="module")
def takes(frontend, compiler):
    """``(rules, text)``: whether the whole text is allowed, with any of the ends behind it."""

    def takes(rules, text):
        constraint = compiler.compile(None, rules, TOOLS)(frontend.eos_token_ids)
        for token in frontend.tokenizer.encode(text, special=True):
            if not constraint.mask(())[token]:
                return False
            constraint.commit([token])
        ends = {bool(constraint.mask(())[each]) for each in frontend.eos_token_ids}
        assert len(ends) == 1, "all three stops, or none"
        return ends.pop()

    return takes


RULES = {
    "auto": (CallRules(strict=STRICT), ["", "hello", OSLO, "hi\n" + OSLO, TIME + OSLO],
             [OSLO + "x", OSLO.replace("3", "15"), OSLO.replace(">city<", ">town<", 1)]),
    "none": (CallRules(names=()), ["", "hello <tool"], [OSLO, "a" + TIME]),
    "required": (CallRules(required=True), [OSLO, TIME, OSLO + OSLO], ["", "hello", "a" + OSLO]),
    "named": (CallRules(required=True, names=("city_time",)), [TIME, TIME + TIME], [OSLO, ""]),
    "one": (CallRules(parallel=False), ["a", OSLO, "a" + TIME], [OSLO + TIME]),
}


@pytest.mark.parametrize("name", RULES)
def test_rules(takes, name):
    rules, right, wrong = RULES[name]
    for text in right:
        assert takes(rules, text), text
    for text in wrong:
        assert not takes(rules, text), text


def walk(frontend, constraint, seed):
    """Text of allowed tokens at random; after some, what closes things is preferred."""
    rng, ids, plan = random.Random(seed), list[int](), list[int]()
    closers = [frontend.tokenizer.encode(text, special=True)
               for text in ("</arg_value>", "</tool_call>", '"', "]")]
    while len(ids) < 3000:
        mask = constraint.mask(())
        if not plan and len(ids) > 40 and rng.random() < 0.8:
            ends = [[each] for each in sorted(frontend.eos_token_ids)]
            plan = [*next((each for each in [*ends, *closers] if mask[each[0]]), [])]
        wanted = plan.pop(0) if plan else -1
        if wanted < 0 or not mask[wanted]:
            wanted = rng.choice(mask.nonzero().flatten().tolist())
        if wanted in frontend.eos_token_ids:
            return b"".join(map(frontend.tokenizer.token_bytes, ids)).decode()
        ids.append(wanted)
        constraint.commit([wanted])
    raise AssertionError(f"no end: {ids[:50]}")


@pytest.mark.parametrize("name", ["auto", "required", "named", "one"])
def test_what_is_allowed_is_what_is_parsed(frontend, compiler, name):
    """Strings without escapes among it, and both tools, one's name the beginning of the other's."""
    rules = RULES[name][0]
    new = compiler.compile(None, rules, TOOLS)
    for seed in range(20):
        text = walk(frontend, new(frontend.eos_token_ids), seed)
        parser = ToolCallParser(KeyValueCalls(TOOLS))
        parts = [*parser.feed(text), *parser.finish()]
        calls = [each for each in parts if isinstance(each, ToolCall)]
        assert len(calls) == text.count("</tool_call>")
        assert not rules.required or len(calls) == len(parts) > 0
        for call in calls:
            if call.name == "city":
                jsonschema_rs.validate(CITY, json.loads(call.arguments))


def test_strings_are_raw(takes):
    for content in ("", "\n x", '"quoted" <b>&</b>', "a </arg_valu"):
        assert takes(CallRules(required=True), OSLO.replace("Oslo", content)), content
