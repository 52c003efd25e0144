"""Regular expressions, choices and grammars; what ends an answer; compilers' errors."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from ninfer_core.api import CallRules, Grammar, RequestError

GBNF = 'root ::= "[" item ("," item)* "]"\nitem ::= [a-c]+'
LARK = 'start: "[" item ("," item)* "]"\nitem: /[a-c]+/'


@pytest.mark.parametrize(("kind", "source", "right", "wrong", "open_"), [
    ("regex", r"[a-z]+/\d{2}", "ab/12", "ab/123", "ab/1"),
    ("regex", "^(yes|no)$", "yes", "maybe", None),
    ("regex", "東+é?", "東東é", "é", None),
    ("choice", ["yes", "no"], "no", "nope", "y"),
    ("choice", ['né"/\\\n', "x"], 'né"/\\\n', "n\n", 'né"'),
    ("choice", ["<|im_end|>", "a"], "a", "b", None),
    ("grammar", GBNF, "[ab,c]", "[d]", "[a"),
    ("grammar", LARK, "[ab,c]", "[d]", "[a"),
    ("json", "", '{"a": [1, {"b": null}]}', "[1]", '{"a"'),
])
def test_a_text_is_taken_or_not(lab, kind, source, right, wrong, open_):
    assert lab.reads(kind, source, right) is True
    assert lab.reads(kind, source, wrong) is False
    if open_ is not None:
        assert lab.reads(kind, source, open_) is None
    text = lab.walk(lab.constraint(kind, source), 3)
    assert kind != "json" or isinstance(json.loads(text), dict)


@pytest.mark.parametrize(("kind", "source", "why"), [
    ("regex", "a(?=b)", "look-ahead"), ("regex", "(", "unclosed group"),
    ("choice", "[]", "not empty"), ("choice", '["a", 3]', "array of texts"),
    ("choice", "a", "malformed"),
    ("grammar", "start: missing", "missing"), ("grammar", "root ::= x", "not found|not defined"),
    ("grammar", "", "root|start"),
])
def test_what_is_none_is_refused(lab, kind, source, why):
    with pytest.raises(RequestError, match=why) as caught:
        lab.constraint(kind, source)
    assert "T0" not in str(caught.value) and "r0" not in str(caught.value)


@pytest.mark.parametrize(("kind", "source"), [
    ("regex", "(a{1,1000}){1,1000}"), ("regex", r"(.*a.{40}b){20}"),
    ("regex", "(a|b|ab){9999999}"),
])
def test_an_expression_that_takes_too_much_fails_alone(lab, kind, source):
    """When it is compiled, or at the latest when it is asked."""
    try:
        constraint = lab.constraint(kind, source)
        for token in lab.ids("ab" * 60):
            mask = constraint.mask(())
            if not mask[token]:
                break
            constraint.commit([token])
    except RequestError:
        pass
    assert lab.reads("regex", "ab", "ab")


def test_control_tokens_are_no_text(lab):
    constraint = lab.constraint("regex", r"(?s:.)*")
    assert not {*constraint.mask(()).logical_not().nonzero().flatten().tolist()} & {*lab.ids("{ab")}
    assert not any(constraint.mask(())[each] for text, each in lab.tokenizer.control_ids.items()
                   if each not in lab.end_ids)


def test_a_letter_that_ends_a_request_may_come_at_the_end_and_where_it_is_text(lab):
    """There it cuts the answer; forbidden there, it would leave some with no way on."""
    letter = lab.ids("b")[0]
    new = lab.compiler.compile(Grammar("regex", "a[bc]cd"), CallRules(), ())
    constraint = new(frozenset({letter, -1, 10**6}))
    assert not constraint.mask(())[letter]
    assert constraint.mask(tuple(lab.ids("a")))[letter]
    assert constraint.mask((*lab.ids("a"), letter)) is None
    constraint.commit(lab.ids("acc"))
    assert not constraint.mask(())[letter]
    constraint.commit(lab.ids("d"))
    assert constraint.mask(()).nonzero().flatten().tolist() == [letter]
    constraint.commit([letter])


def test_compilers_are_asked_from_many_threads(lab):
    def ask(number):
        grammar = Grammar("choice", f'["{"ab"[number % 2]}"]')
        constraint = lab.compiler.compile(grammar, CallRules(), ())(lab.end_ids)
        return lab.takes(constraint, "ab"[number % 2])

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(64)))
