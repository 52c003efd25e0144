"""The grammar of tagged functions: what is a call, what is text, and what a value holds."""

import json

import pytest

from ninfer_core.api import OutputPart, ToolCall
from ninfer_core.text.calls import ToolCallParser
from ninfer_tool_calls.function_calls import FunctionCalls


def tool(name, **properties):
    declared = {key: {"type": kind} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": declared}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("ping"), tool("get"), tool("get_weather", city="string"), tool("set_lamp", cfg="object"),
    tool("bash", cmd="string", ids="array", note="string"), tool("list", recursive="boolean"),
    tool("read", path="string"), tool("write", path="string", content="string"),
    tool("plan", day="integer", opts="object"), {"type": "function", "function": {"name": "bare"}},
]


def parse(text, width=None):
    """Content, and calls as (name, arguments)."""
    parser, content, calls = ToolCallParser(FunctionCalls(TOOLS)), "", []
    width = width or max(len(text), 1)
    cuts = (text[at : at + width] for at in range(0, len(text), width))
    for part in (*(part for cut in cuts for part in parser.feed(cut)), *parser.finish()):
        if isinstance(part, ToolCall):
            assert part.index == len(calls)
            calls.append((part.name, json.loads(part.arguments)))
        else:
            assert isinstance(part, OutputPart) and part.channel == "content" and part.text
            content += part.text
    return content, calls


def call(name, **values):
    parameters = (f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{''.join(parameters)}</function>\n</tool_call>"


@pytest.fixture(params=[None, 1, 7], ids=["whole", "by 1", "by 7"])
def parsed(request):
    return lambda text: parse(text, request.param)


def test_a_call_and_the_text_before_it(parsed):
    text = "Checking.\n\n" + call("get_weather", city="東京")
    assert parsed(text) == ("Checking.", [("get_weather", {"city": "東京"})])


def test_a_call_without_parameters(parsed):
    assert parsed(call("ping")) == ("", [("ping", {})])


@pytest.mark.parametrize(("written", "kept"), [
    ("\nx\n", "x"), ("x", "x"), ("\n\n  x\n\n", "\n  x\n"), ("\n", ""), ("", ""), ("\n\n", ""),
    ("\n    return 1\n", "    return 1"), ("\r\nx\r\n", "\r\nx\r"),
])
def test_one_newline_a_side_belongs_to_the_tags(parsed, written, kept):
    text = f"<tool_call><function=read><parameter=path>{written}</parameter></function></tool_call>"
    assert parsed(text) == ("", [("read", {"path": kept})])


class TestValues:
    """Reported bugs 5, 7, 8: types by schema, never a lost call."""

    def test_booleans_of_python(self, parsed):
        values = ["True", "False", "true"]
        content, calls = parsed("\n".join(call("list", recursive=each) for each in values))
        assert content == "" and [each["recursive"] for _, each in calls] == [True, False, True]

    def test_what_does_not_fit_stays_text(self, parsed):
        text = call("plan", day="2031-02-03", opts="none please")
        assert parsed(text) == ("", [("plan", {"day": "2031-02-03", "opts": "none please"})])

    def test_unknown_parameters_are_text(self, parsed):
        assert parsed(call("bare", x="5")) == ("", [("bare", {"x": "5"})])


class TestUnclosed:
    """Reported bug 1, and other closing tags that models leave out."""

    def test_the_function_ends_an_open_value(self, parsed):
        text = ('<tool_call>\n<function=set_lamp>\n<parameter=cfg>\n{"level": 3, "on": true}\n'
                "</function>\n</tool_call>")
        assert parsed(text) == ("", [("set_lamp", {"cfg": {"level": 3, "on": True}})])

    def test_the_next_parameter_ends_an_open_value(self, parsed):
        text = call("write", path="/a", content="b").replace("</parameter>\n<", "<")
        assert parsed(text) == ("", [("write", {"path": "/a", "content": "b"})])

    def test_a_call_ends_a_function_that_has_no_open_value(self, parsed):
        text = call("read", path="/a").replace("</function>\n", "")
        assert parsed(text) == ("", [("read", {"path": "/a"})])
        assert parsed("<tool_call>\n<function=ping>\n</tool_call>") == ("", [("ping", {})])

    @pytest.mark.parametrize("left_out", ["</parameter>\n", "</function>\n"])
    def test_such_a_call_is_proven_by_the_end_or_the_next_call(self, parsed, left_out):
        """Any text behind it might be the rest of its value, which must never be cut."""
        text = call("read", path="/a").replace(left_out, "")
        assert parsed(f"{text}\n</tool_call>\n{call('ping')}") == (
            "", [("read", {"path": "/a"}), ("ping", {})])
        assert parsed(f"{text}\nand more") == (f"{text}\nand more", [])
        rest = "\n</parameter>\n</function>\n</tool_call>"
        value = text.partition("<parameter=path>\n")[2] + "\nand more"
        assert parsed(f"{text}\nand more{rest}") == ("", [("read", {"path": value})])


class TestMalformed:
    """Reported bug 2: never half a call."""

    @pytest.mark.parametrize("bad", [
        "<parameter=\nls -l</parameter>", "<parameter=ids: [4]</parameter>",
        "<parameter=note=</parameter>", "<parameter=>\nx\n</parameter>", "stray text",
        "<parameter=cmd>\nagain\n</parameter>", "</tool_call", "<tool_call>",
    ])
    @pytest.mark.parametrize("good_first", [True, False])
    def test_a_bad_element_makes_the_whole_call_text(self, parsed, bad, good_first):
        good = "<parameter=cmd>\npwd\n</parameter>"
        elements = (good, bad) if good_first else (bad, good)
        text = call("bash").replace("</function>", "\n".join([*elements, "</function>"]))
        assert parsed(text) == (text, [])

    def test_it_is_text_up_to_its_end_and_no_further(self, parsed):
        bad = call("read", path="x").replace("path", "")
        assert parsed(f"{bad}\n{call('ping')}") == (bad, [("ping", {})])

    def test_a_call_inside_it_is_not_made(self, parsed):
        bad = call("frobnicate", content=f"\n{call('ping')}").removesuffix("</tool_call>")
        assert parsed(bad)[1] == []


class TestLiteralTags:
    """Reported bug 4: the format has no escape, so a closing tag counts only where the structure
    goes on behind it."""

    @pytest.mark.parametrize("value", [
        "Grammar note: close with </tool_call> and carry on.\nline two",
        "</parameter>", "a </parameter> b", "x</function>y", "use <function=name> so",
        "<tool_call>", "</function>\n</parameter> and on", "if a <b and c</parameter",
        "<parameter=path>",
        "\n<parameter=path>\n", "\n<parameter=nonsense>\n", "</parameter>\n\n</parameter>\n text",
        "</parameter>\n</tool_call>", "a</parameter></tool_call>b", "</function>\n</tool_call>\nb",
        " </function>\n-</tool_call>\n+</tool_call>", "</function></tool_call>\n</tool_call>",
        "So: <tool_call><function=get><parameter=city>x</parameter></function></tool_call>\n",
        "`<tool_call><function=get><parameter=city>x</parameter></function></tool_call>` calls",
        "</parameter></function></tool_call>, so", "</parameter>\n</function>\n</tool_call> \t.\n",
        "</parameter>\n</function>\n", "</parameter>\n</tool_call>\n</function>\nb",
        "Example:\n<tool_call>\n<function=get>\n<parameter=city>\nx\n</parameter>\n</function>\n"
        "</tool_call>\nend", "</think>", "</tool_response>",
    ])
    def test_they_survive_in_a_value(self, parsed, value):
        text = call("write", path="/a", content=value)
        assert parsed(text) == ("", [("write", {"path": "/a", "content": value})])

    @pytest.mark.parametrize(("value", "expected"), [
        # a whole closing sequence ends the value; what follows it is text
        ("a\n</parameter>\n</function>\n</tool_call>\nb", [("read", {"path": "a"})]),
        # so does one with the next parameter behind it, here one that breaks the call
        ("a\n</parameter>\n<parameter=path>\nb", []),
    ])
    def test_ambiguous_values_that_are_cut_or_lost(self, parsed, value, expected):
        assert parsed(call("read", path=value))[1] == expected

    def test_an_example_without_an_end_takes_that_of_its_call_only_if_another_follows(self, parsed):
        half = {"path": "<function=get>\n", "content": "a\n<function=get_weather>\nb"}
        assert parsed(call("write", **half)) == ("", [("write", half)])
        assert parsed(call("write", **half) + "\n")[1] == [("write", half)]
        assert parsed(f"{call('write', **half)}\n{call('ping')}")[1] == []

    def test_nor_if_the_answer_is_cut_behind_it(self):
        example = f"<function=a>\n{call('get', city='x')}".removesuffix("\n</tool_call>")
        cut = call("write", path="/a", content=f"{example}\n").partition("\n\n</parameter>")[0]
        for end in range(cut.index(example), len(cut) + 1):
            assert parse(cut[:end]) == (cut[:end], [])

    def test_a_line_that_begins_a_parameter_not_yet_given_ends_a_value(self, parsed):
        text = call("write", content="a\n<parameter=path>\nb")
        assert parsed(text) == ("", [("write", {"content": "a", "path": "b"})])


class TestWrapper:
    """Reported bugs 11 and 16: wrappers that are missing, doubled or cut."""

    def test_without_an_opening_tag(self, parsed):
        assert parsed("<function=ping>\n</function>") == ("", [("ping", {})])
        text = call("read", path="/a").removeprefix("<tool_call>\n")
        assert parsed(f"Well:\n{text}") == ("Well:", [("read", {"path": "/a"})])

    def test_without_a_closing_tag(self, parsed):
        text = call("read", path="/a").removesuffix("\n</tool_call>")
        assert parsed(text) == ("", [("read", {"path": "/a"})])
        assert parsed(f"{text}\n{text}")[1] == [("read", {"path": "/a"})] * 2

    def test_stray_closing_tags_beside_a_call(self, parsed):
        assert parsed(f"{call('ping')}\n</tool_call>\n</tool_call>") == ("", [("ping", {})])

    @pytest.mark.parametrize("text", [
        "<function=pi", "<tool_call>\n<function=ping", "<tool_call>\n<function=ping>\n", "<tool_c",
        "a\n</tool_call>", "<tool_call>\n<function=read>\n<parameter=path>\n/a\n</parameter>\n",
        "<tool_call>\n<function=read>\n<parameter=path>\n/a\n</tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>\n<function=read>\n<parameter=path>\n/a\n</function>\nno more</function",
    ])
    def test_what_is_incomplete_is_text(self, parsed, text):
        assert parsed(text) == (text, [])

    def test_a_closing_tag_over_two_pieces(self):
        parser = ToolCallParser(FunctionCalls(TOOLS))
        pieces = [call("get").removesuffix("call>"), "call>\n<tool_call>\n<function=ping>",
                  "\n</function>\n</tool_call>"]
        parts = [part for piece in pieces for part in parser.feed(piece)]
        assert [part.name for part in parts] == ["get", "ping"]
        assert not parser.finish()


class TestNames:
    """Reported bugs 14 and 19: complete, declared, and each call its own."""

    def test_a_name_is_not_taken_for_its_beginning(self):
        parser = ToolCallParser(FunctionCalls(TOOLS))
        assert not parser.feed("<tool_call>\n<function=get")
        rest = "_weather>\n<parameter=city>\nx\n</parameter>\n</function>\n</tool_call>\n."
        assert [part.name for part in parser.feed(rest)[:1]] == ["get_weather"]

    @pytest.mark.parametrize("name", ["getter", "ge", "GET", " get", "get ", "", "get\n", "g>et"])
    def test_undeclared_names_are_no_calls(self, parsed, name):
        assert parsed(call(name)) == (call(name), [])
        assert parsed(f"<function={name}>\n</function>")[1] == []

    def test_two_calls_of_one_tool(self, parsed):
        text = f"{call('read', path='/a.txt')}\n{call('read', path='/b.txt')}"
        assert parsed(text) == ("", [("read", {"path": "/a.txt"}), ("read", {"path": "/b.txt"})])


def test_text_about_calls_is_text(parsed):
    text = "Qwen wraps a call in `<tool_call>`, then `<function=ping>`; see </parameter>.\n"
    assert parsed(text) == (text, [])


def test_text_after_a_call_is_content(parsed):
    assert parsed(f"{call('ping')}\n\nDone.\n") == ("Done.\n", [("ping", {})])


@pytest.mark.parametrize("behind", [".", " \t\r\n\nDone", "<tool_call>", "</tool_call>"])
def test_a_call_is_given_with_the_first_that_stands_behind_it(behind):
    parser = ToolCallParser(FunctionCalls(TOOLS))
    assert not parser.feed(call("read", path="/a") + "\n")
    assert [part.name for part in parser.feed(behind) if isinstance(part, ToolCall)] == ["read"]
