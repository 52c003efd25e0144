"""Whether and how much a request asks to think."""

from __future__ import annotations

import pytest

from ninfer_core.api import PromptOptions, RequestError
from ninfer_serve.anthropic.thinking import Abilities, read_thinking
from ninfer_serve.members import Members

ALL = Abilities(think=True, skip=True, keep=True)
PLAIN = Abilities(think=False, skip=True, keep=False)
ALWAYS = Abilities(think=True, skip=False, keep=False)
KEEP_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}


def read(abilities=ALL, *, prefilled=False, **body):
    return read_thinking(Members(body), abilities, prefilled=prefilled)


def test_abilities_are_found_by_trying(frontend):
    assert Abilities.of(frontend) == ALL


@pytest.mark.parametrize(("body", "wanted"), [
    ({}, (False, None)),
    ({"thinking": {"type": "disabled"}}, (False, None)),
    ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, (False, None)),
    ({"thinking": {"type": "adaptive"}}, (True, None)),
    ({"thinking": {"type": "adaptive", "display": "summarized"}}, (True, None)),
    ({"thinking": {"type": "between_tools"}}, (True, None)),
    ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, (True, "high")),
    ({"output_config": {"effort": "max"}}, (True, "max")),
])
def test_what_is_asked_for(body, wanted):
    options = read(**body).options
    assert (options.thinking, options.effort) == wanted


@pytest.mark.parametrize("body", [
    {}, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
])
def test_hints_do_not_reach_a_model_that_cannot(body):
    assert read(PLAIN, **body).options.thinking in (None, False)
    assert read(PLAIN, **body).options.effort is None
    assert read(ALWAYS, **body).options.thinking in (None, True)


def test_budgets():
    body = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    assert read(**body).budget == 1024
    assert read(**body, max_tokens=1025).options == PromptOptions(thinking=True)
    assert read(thinking={"type": "adaptive"}).budget is None


@pytest.mark.parametrize(("body", "where"), [
    ({"thinking": {}}, "thinking.type"), ({"thinking": {"type": "much"}}, "thinking.type"),
    ({"thinking": "enabled"}, "thinking"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 2000},
     "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort"),
])
def test_what_cannot_be_had(body, where):
    with pytest.raises(RequestError) as error:
        read(**body)
    assert error.value.where == where


def test_an_answer_that_goes_on_from_a_text_has_no_thinking():
    for body in ({}, {"thinking": {"type": "adaptive"}}, {"output_config": {"effort": "low"}}):
        assert read(prefilled=True, **body).options == PromptOptions(thinking=False)
    with pytest.raises(RequestError, match="goes on from a text"):
        read(prefilled=True, thinking={"type": "enabled", "budget_tokens": 1024})


@pytest.mark.parametrize(("keep", "wanted"), [
    ("all", True), ({"type": "all"}, True), ({"type": "thinking_turns", "value": 2}, None),
    (None, None),
])
def test_earlier_thinking_is_kept_for_clients_that_say_so(keep, wanted):
    edits = [{"type": "clear_tool_uses_20250919"},
             {"type": "clear_thinking_20251015", "keep": keep}]
    assert read(context_management={"edits": edits}).options.preserve_thinking is wanted
    assert read(PLAIN, context_management=KEEP_ALL).options.preserve_thinking is None
