"""Messages as templates take them: nothing lost, faults located, broken history survived."""

import pytest

from ninfer_core.api import RequestError
from ninfer_core.text.messages import split_reasoning, template_messages


def assistant(content="", **members):
    return {"role": "assistant", "content": content, **members}


def calling(*arguments, content=""):
    calls = [{"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": each}}
             for i, each in enumerate(arguments)]
    return assistant(content, tool_calls=calls)


def arguments_of(message):
    [made] = template_messages([message])
    return [call["function"]["arguments"] for call in made.get("tool_calls", [])]


@pytest.mark.parametrize("content", [None, "", []])
def test_an_assistant_that_only_called_is_kept(content):
    """Reported bugs 34 and 35: empty, null and missing content are the same."""
    message = calling("{}")
    [expected] = template_messages([message])
    assert template_messages([{**message, "content": content}]) == [expected]
    del message["content"]
    assert template_messages([message]) == [expected]


@pytest.mark.parametrize("message", [{}, {"content": None}, {"content": []}])
def test_a_tool_without_output_has_an_empty_one(message):
    [made] = template_messages([{"role": "tool", "tool_call_id": "c0", **message}])
    assert made["content"] == ""


def test_results_keep_the_id_of_their_call():
    result = {"role": "tool", "tool_call_id": "c0", "content": [{"type": "text", "text": "ok"}]}
    [made] = template_messages([result])
    assert made == {"role": "tool", "tool_call_id": "c0", "content": "ok"}


def test_results_are_in_the_order_of_their_calls():
    """Templates show no ids: the order alone tells which result is of which call."""
    def result(name):
        return {"role": "tool", "tool_call_id": name, "content": name}

    made = template_messages([
        calling("{}", "{}", "{}"), *map(result, ("c2", "c0", "c1")), assistant("done"),
        result("c1"), result("c0"), calling("{}", "{}", "{}"), *map(result, ("c2", "c1"))])
    assert [each["content"] for each in made if each["role"] == "tool"] == [
        "c0", "c1", "c2", "c1", "c0", "c1", "c2"]


@pytest.mark.parametrize(("calls", "results"), [
    (["a", "b"], ["z", "b", "a"]), (["a", "b", "a"], ["b", "a", "a"]), (["a", None], ["b", "a"]),
    (["a", "b"], ["b", "a", "a"]), (["a", "b"], ["b", None, "a"]),
], ids=["unknown", "calls of one id", "call without", "results of one id", "result without"])
def test_results_stay_where_ids_do_not_say_whose_they_are(calls, results):
    function = {"name": "f", "arguments": "{}"}
    call = {"role": "assistant", "tool_calls": [
        {"type": "function", "function": function, **({"id": each} if each else {})}
        for each in calls]}
    given = [{"role": "tool", "content": str(index), **({"tool_call_id": each} if each else {})}
             for index, each in enumerate(results)]
    made = template_messages([call, *given])
    assert [each["content"] for each in made[1:]] == [each["content"] for each in given]


@pytest.mark.parametrize(("given", "expected"), [
    ('{"a": {"b": 1}}', {"a": {"b": 1}}), ({"a": 1}, {"a": 1}), ("", {}), (" ", {}), (None, {}),
    ('{"b": 1, "a": 2}', {"b": 1, "a": 2}),
])
def test_arguments_become_objects(given, expected):
    assert arguments_of(calling(given)) == [expected]
    assert [*arguments_of(calling(given))[0]] == [*expected]


DEEP = '{"a": ' * 500 + "1" + "}" * 500


@pytest.mark.parametrize("bad", ['{"cmd": "ls', "[1]", "null", '{"a": NaN}', "ls -l", DEEP])
def test_broken_arguments_of_the_past_become_text(bad):
    """Reported bug 2: one bad call must not end its conversation."""
    [made] = template_messages([calling("{}", bad, content="So:")])
    assert made["content"] == f"So:\n\nf({bad})"
    assert [call["id"] for call in made["tool_calls"]] == ["c0"]
    [alone] = template_messages([calling(bad)])
    assert alone["content"] == f"f({bad})" and "tool_calls" not in alone


@pytest.mark.parametrize("members", [
    {"reasoning_content": "hm"}, {"reasoning": "hm"},
    {"reasoning": "hm", "reasoning_content": None},
    {"reasoning_content": "hm", "reasoning": "other"},
])
def test_reasoning_comes_under_one_name(members):
    [made] = template_messages([assistant("x", **members)])
    assert made["reasoning_content"] == "hm"


@pytest.mark.parametrize(("message", "place"), [
    ({"content": "x"}, "role"), ({"role": "", "content": "x"}, "role"),
    ({"role": "user"}, "content"), ({"role": "user", "content": 5}, "content"),
    ({"role": "tool", "content": "x", "tool_call_id": 5}, "tool_call_id"),
    (assistant(reasoning_content=5), "reasoning_content"), (assistant(reasoning=[]), "reasoning"),
    (assistant(tool_calls="f"), "tool_calls"), (assistant(tool_calls={}), "tool_calls"),
    (assistant(tool_calls=[{}]), r"tool_calls\[0\].function"),
    (assistant(tool_calls=[{"function": {"name": ""}}]), r"tool_calls\[0\].function"),
    (calling("{}", 5), r"tool_calls\[1\].function.arguments"),
])
def test_faults_are_located(message, place):
    with pytest.raises(RequestError, match=rf"\[messages\[1\].{place}\]"):
        template_messages([{"role": "user", "content": "hi"}, message])


@pytest.mark.parametrize("message", ["hi", None, 5, []])
def test_what_is_no_message_is_located(message):
    with pytest.raises(RequestError, match=r"\[messages\[0\]\]: must be an object"):
        template_messages([message])


@pytest.mark.parametrize(("content", "reasoning", "answer"), [
    ("<think>\nhm\n</think>\n\nyes", "hm", "yes"), ("hm\n</think>\nyes", "hm", "yes"),
    ("<think></think>yes", "", "yes"), ("a<think>b</think>c</think>d", "b", "d"),
])
def test_a_block_in_the_content_is_split(content, reasoning, answer):
    made = split_reasoning(assistant(content), "<think>", "</think>")
    assert (made["reasoning_content"], made["content"]) == (reasoning, answer)


@pytest.mark.parametrize("message", [
    assistant("plain"), assistant("<think>unclosed"), {"role": "user", "content": "</think>"},
    assistant("a</think>b", reasoning_content="given"),
    assistant("`</think>` closes it", reasoning_content=""),
])
def test_what_has_none_stays(message):
    assert split_reasoning(message, "<think>", "</think>") is message
