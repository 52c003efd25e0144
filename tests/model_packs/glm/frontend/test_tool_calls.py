"""Calls in GLM's syntax: whole, cut in any places, malformed, and told of."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import OutputPart
from ninfer_core.text.calls import ToolCallParser
from ninfer_pack_glm.tool_calls import KeyValueCalls


def declare(name, **properties):
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    declare("get"),
    declare("get_weather", city={"type": "string"}, days={"type": "integer"}),
    declare("set_lamp", cfg={"type": "object"}, on={"type": "boolean"},
            level={"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    {"type": "function", "function": {"name": "utc_now"}},
]
CALL, CLOSE = "<tool_call>", "</tool_call>"


def pair(key, value):
    return f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"


def parse(text, cuts=()):
    """Content and calls of a text that arrives in pieces."""
    parser, parts, begin = ToolCallParser(KeyValueCalls(TOOLS)), [], 0
    for end in [*sorted(cuts), len(text)]:
        parts += parser.feed(text[begin:end])
        begin = max(begin, end)
    parts += parser.finish()
    content = "".join(part.text for part in parts if isinstance(part, OutputPart))
    calls = [(part.name, part.arguments) for part in parts if not isinstance(part, OutputPart)]
    assert [part.index for part in parts if not isinstance(part, OutputPart)] == [
        *range(len(calls))]
    return content, calls


def arguments(text):
    content, [(_, found)] = parse(text)
    assert content == ""
    return json.loads(found)


CASES = {
    "several": f"So:<tool_call>get{CLOSE}<tool_call>get_weather{pair('city', 'Oslo')}{CLOSE}",
    "white space": (f"\n<tool_call>\nget_weather\n<arg_key> city </arg_key>\n<arg_value>Oslo"
                    f"</arg_value>\n{pair('days', 2)}\n{CLOSE}\n\nDone."),
    "a closing tag in a value": (
        f"<tool_call>get_weather{pair('city', f'close with {CLOSE} and <arg_value>{CLOSE} on')}"
        f"{CLOSE}"),
    "a quoted call in a value": (
        f"<tool_call>get_weather{pair('city', f'<tool_call>get{CLOSE}<tool_call>x{CLOSE}')}"
        f"{CLOSE}"),
    "an open value": '<tool_call>set_lamp<arg_key>cfg</arg_key><arg_value>{"a": 3}</tool_call>',
    "an open value before another": (
        f"<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo{pair('days', 2)}{CLOSE}"),
    "tags of calls in a value": (
        f"<tool_call>get_weather{pair('city', f'{CLOSE} <tool_call> <arg_key>days</arg_key> a')}"
        f"{CLOSE}"),
    "no end before another": f"<tool_call>get_weather{pair('city', 'a')}<tool_call>get{CLOSE}",
    "stray closing tags": f"<tool_call>get{CLOSE}{CLOSE}\n{CLOSE}",
    "prose": "wrap it in <tool_call>, with <arg_key> inside; or <tool_call> alone",
    "an unknown function": f"<tool_call>rm{pair('city', 'a')}{CLOSE} and <tool_call>get{CLOSE}",
    "a broken key": f"<tool_call>get_weather<arg_key>city<arg_value>a</arg_value>{CLOSE}",
    "cut": f"<tool_call>get_weather{pair('city', 'a')}<arg_key>da",
}


def test_what_is_read_of_each():
    calls = {name: parse(text) for name, text in CASES.items()}
    oslo = ("get_weather", '{"city": "Oslo"}')
    assert calls["several"] == ("So:", [("get", "{}"), oslo])
    assert calls["white space"] == (
        "Done.", [("get_weather", '{"city": "Oslo", "days": 2}')])
    assert arguments(CASES["a closing tag in a value"])["city"] == (
        f"close with {CLOSE} and <arg_value>{CLOSE} on")
    assert arguments(CASES["a quoted call in a value"])["city"] == (
        f"<tool_call>get{CLOSE}<tool_call>x{CLOSE}")
    assert arguments(CASES["an open value"]) == {"cfg": {"a": 3}}
    assert arguments(CASES["an open value before another"]) == {"city": "Oslo", "days": 2}
    assert arguments(CASES["tags of calls in a value"]) == {
        "city": f"{CLOSE} <tool_call> <arg_key>days</arg_key> a"}
    assert calls["no end before another"] == (
        "", [("get_weather", '{"city": "a"}'), ("get", "{}")])
    assert calls["stray closing tags"] == ("", [("get", "{}")])
    for name in ("prose", "a broken key", "cut"):
        assert calls[name] == (CASES[name], [])
    unknown, _, known = CASES["an unknown function"].partition(" and")
    assert known and calls["an unknown function"] == (f"{unknown} and", [("get", "{}")])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_same_in_pieces_of_any_size(name, size):
    """Reported bugs 13, 14, 16, 17 and 19."""
    text = CASES[name]
    assert parse(text, range(size, len(text), size)) == parse(text)


@given(data=st.data(), name=st.sampled_from([*CASES]))
def test_the_same_however_it_is_cut(data, name):
    text = CASES[name]
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=4))
    assert parse(text, cuts) == parse(text)


@pytest.mark.parametrize(("tool", "key", "value", "expected"), [
    ("get_weather", "city", "null", "null"), ("get_weather", "city", "5", "5"),
    ("get_weather", "city", " two\nlines ", " two\nlines "), ("get_weather", "city", "", ""),
    ("get_weather", "days", "5", 5), ("get_weather", "days", "2031-02-03", "2031-02-03"),
    ("set_lamp", "on", "True", True), ("set_lamp", "on", "maybe", "maybe"),
    ("set_lamp", "level", "null", None), ("set_lamp", "cfg", '{"level": 3}', {"level": 3}),
    ("set_lamp", "cfg", "none please", "none please"),
    ("utc_now", "zone", "[1, 2]", [1, 2]), ("utc_now", "zone", "Oslo", "Oslo"),
    ("utc_now", "zone", "7", 7), ("utc_now", "zone", '"a"', '"a"'),
])
def test_values_by_their_schema(tool, key, value, expected):
    """Reported bugs 5, 7 and 8; what no schema describes is JSON where it can be."""
    assert arguments(f"<tool_call>{tool}{pair(key, value)}{CLOSE}") == {key: expected}


def test_prose_is_not_withheld():
    parser = ToolCallParser(KeyValueCalls(TOOLS))
    parts = parser.feed("as in <tool_call> with a")
    assert "".join(part.text for part in parts) == "as in <tool_call> with a"


def test_a_name_comes_whole():
    """Reported bug 19: a tool's name may begin another's."""
    parser = ToolCallParser(KeyValueCalls(TOOLS))
    assert [*parser.feed("<tool_call>get"), *parser.feed("_weather</tool_")] == []
    [call] = parser.feed("call>")
    assert (call.name, call.arguments) == ("get_weather", "{}")


def test_a_key_twice_is_no_call():
    text = f"<tool_call>get_weather{pair('city', 'a')}{pair('city', 'b')}{CLOSE}"
    assert parse(text) == (text, [])


@pytest.mark.parametrize("text", ["<tool_call>{}", "<tool_call>get{}</tool_call>"])
def test_white_space_beside_a_name_takes_linear_time(text):
    text, started = text.format("\n" * 30_000), time.process_time()
    content, calls = parse(text, range(len(text)))
    assert calls == ([("get", "{}")] if "get" in text else []) and content.strip() in ("", CALL)
    assert time.process_time() - started < 5  # it takes a tenth; joining anew half a minute
