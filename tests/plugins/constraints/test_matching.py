"""Drafts that are asked about leave no trace, whatever was asked and committed before."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import CallRules, Grammar, RequestError

SCHEMA = {"type": "object", "required": ["a"], "additionalProperties": False, "properties": {
    "a": {"type": "array", "maxItems": 3, "items": {"anyOf": [
        {"type": "integer", "minimum": 0, "maximum": 120}, {"enum": ["yes", "no"]}]}}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
CASES = {
    "schema": {"kind": "json_schema", "source": SCHEMA},
    "choice": {"kind": "choice", "source": ["a", "ab", "abc"]},
    "calls": {"calls": CallRules(strict=frozenset({"f"})), "tools": [TOOL]},
    "grammar": {"kind": "grammar", "source": 'root ::= "(" root ")" | "x"'},
}


@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
def test_asking_is_no_commitment(lab, case, data):
    """Every mask is that of a fresh constraint that was told of these tokens alone."""
    asked, told = lab.constraint(**CASES[case]), []
    for _ in range(data.draw(st.integers(1, 6))):
        path = []
        for _ in range(data.draw(st.integers(0, 5))):
            path = path[: data.draw(st.integers(0, len(path)))]
            path = [*path, *some_tokens(lab, asked, path, data.draw(st.integers(1, 4)), data)]
        fresh = lab.constraint(**CASES[case])
        fresh.commit([*told, *path])
        expected, found = fresh.mask(()), asked.mask(tuple(path))
        assert (expected is None) == (found is None) or lab.end_ids & {*path}
        assert found is None or torch.equal(expected, found)
        kept = path[: data.draw(st.integers(0, len(path)))]
        told += kept
        asked.commit(kept)
        if lab.end_ids & {*kept}:
            return


def some_tokens(lab, constraint, path, count, data):
    """Tokens that may follow, up to an end."""
    rng, found = random.Random(data.draw(st.integers(0, 99))), []
    for _ in range(count):
        mask = constraint.mask((*path, *found))
        if mask is None:
            break
        found.append(rng.choice(mask.nonzero().flatten().tolist()))
    return found


def test_the_same_question_is_answered_once(lab, monkeypatch):
    constraint = lab.constraint("json")
    first = constraint.mask(())
    assert constraint.mask(()) is first
    constraint.commit(lab.ids("{"))
    assert constraint.mask(()) is not first


def test_behind_an_end_anything_goes(lab):
    constraint = lab.constraint("choice", ["a"])
    [end, *_] = lab.end_ids
    assert constraint.mask((*lab.ids("a"), end)) is None
    assert constraint.mask((*lab.ids("a"), end, 5)) is None
    assert constraint.mask(())[lab.ids("a")[0]]


def test_a_token_that_is_not_allowed_fails_the_request_alone(lab):
    constraint, other = lab.constraint("choice", ["a"]), lab.constraint("choice", ["a"])
    with pytest.raises(RequestError, match="cannot go on"):
        constraint.commit(lab.ids("b"))
    other.commit(lab.ids("a"))
    assert other.mask(()).any()


def test_requests_of_one_grammar_do_not_meet(lab):
    new = lab.compiler.compile(Grammar("choice", '["aa", "bb"]'), CallRules(), ())
    first, second = new(lab.end_ids), new(lab.end_ids)
    first.commit(lab.ids("a"))
    assert not first.mask(())[lab.ids("b")[0]]
    assert second.mask(())[lab.ids("b")[0]]
