"""Expressions as rules: they match what Python's own reader matches."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import RequestError

xgrammar = pytest.importorskip("xgrammar")
regex = pytest.importorskip("ninfer_xgrammar.regex")

ALPHABET = 'ab"\\é\n<1-]'
COMPILER = xgrammar.GrammarCompiler(
    xgrammar.TokenizerInfo([bytes([each]) for each in range(256)], stop_token_ids=[255]),
    max_threads=1, cache_enabled=False)


def matcher(body):
    return xgrammar.GrammarMatcher(COMPILER.compile_lark(f"start: {body}"))


def takes(compiled, text):
    made = compiled.fork()
    return made.accept_string(text.encode()) and made.is_completed()


def members(chars):
    return "".join("\\" + char if char in '\\]-^"' else char for char in chars)


atoms = st.one_of(
    st.sampled_from([".", r"\d", r"\w", r"\s", r"\S", r"[^a]", r"\n", r"\x61", r"\u00e9", "<"]),
    st.sampled_from(ALPHABET).map(re.escape),
    st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=3).map(
        lambda chars: f"[{members(chars)}]"),
)
counts = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}", "{0,}", "*?"])
expressions = st.recursive(
    st.tuples(atoms, counts).map("".join),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(st.lists(inner, min_size=1, max_size=2).map("|".join), counts).map(
            lambda made: f"(?:{made[0]}){made[1]}"),
    ), max_leaves=5,
)
texts = st.lists(st.text(ALPHABET, max_size=5), max_size=8)


@given(expressions, texts)
def test_whole_texts_are_matched_as_python_does(expression, candidates):
    found, known = matcher(regex.whole_match(expression)), re.compile(expression, re.ASCII)
    for text in candidates:
        assert takes(found, text) == bool(known.fullmatch(text)), (expression, text)


@given(expressions, texts)
def test_within_json_it_is_what_the_json_says(expression, candidates):
    found, known = matcher(regex.whole_match(expression, regex.json_char)), re.compile(
        expression, re.ASCII)
    for text in candidates:
        written = json.dumps(text, ensure_ascii=False)[1:-1]
        assert takes(found, written) == bool(known.fullmatch(text)), (expression, text)


@pytest.mark.parametrize(("expression", "right", "wrong"), [
    ("^a|b$", ["a", "ab", "axx", "b", "xxb"], ["xa", "bx"]), ("a", ["a", "xax"], ["x"]),
    ("^a$", ["a"], ["ab", "ba"]), ("", ["", "a"], []), ("^(a|b)x$", ["ax", "bx"], ["a", "xax"]),
])
def test_an_expression_may_match_anywhere_but_for_its_anchors(expression, right, wrong):
    body = regex.anywhere(expression, regex.text_char, "/[a-z]/*")
    assert all(takes(matcher(body), text) for text in right)
    assert not any(takes(matcher(body), text) for text in wrong)


@pytest.mark.parametrize(("expression", "why"), [
    ("a(?=b)", "look-ahead"), ("(?!b)", "look-ahead"), ("(?<=a)b", "look-behind"),
    ("(?<!a)b", "look-behind"), ("(?i)a", "such a group"), ("(a", "unclosed group"),
    ("a)", "not opened"), ("[a", "unclosed class"), ("[b-a]", "from more to less"),
    ("a{2,1}", "from more to less"), ("*a", "behind nothing"), (r"\p{L}", r"\\p"), (r"a\b", r"\\b"),
    (r"\1", r"\\1"), ("a^", "anchor"), ("(^a)", "anchor"), ("a$b", "anchor"), ("\\", "support"),
    ("(a{1,1000}){1,1000}", "too large"), ("(" * 300 + ")" * 300, "too deeply"),
    (r"[^\s\S]", "no characters"),
])
def test_what_is_none_or_not_supported_is_refused_by_name(expression, why):
    with pytest.raises(RequestError, match=why):
        regex.whole_match(expression)
