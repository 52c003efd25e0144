"""What options ask for, and where they contradict."""

import pytest

from ninfer_core.api import PreparedPrompt, PromptOptions, RequestError
from ninfer_core.text.thinking import check_thinking, wanted_thinking


@pytest.mark.parametrize(("thinking", "effort", "expected"), [
    (None, None, None), (True, None, True), (False, None, False), (None, "none", False),
    (None, "minimal", False), (None, "low", True), (None, "max", True), (True, "high", True),
    (False, "none", False),
])
def test_wanted(thinking, effort, expected):
    assert wanted_thinking(PromptOptions(thinking, effort)) is expected


@pytest.mark.parametrize(
    ("thinking", "effort"), [(False, "low"), (True, "none"), (True, "minimal")]
)
def test_contradictions(thinking, effort):
    with pytest.raises(RequestError, match=f"the effort is {effort}"):
        wanted_thinking(PromptOptions(thinking, effort))


@pytest.mark.parametrize(("options", "is_open", "where"), [
    (PromptOptions(thinking=True), False, "thinking"), (PromptOptions(False), True, "thinking"),
    (PromptOptions(effort="low"), False, "reasoning effort"),
    (PromptOptions(effort="none"), True, "reasoning effort"),
])
def test_a_prompt_that_does_otherwise(options, is_open, where):
    with pytest.raises(RequestError, match=rf"\[{where}\]"):
        check_thinking(options, PreparedPrompt((1,), "", reasoning_open=is_open))
    check_thinking(options, PreparedPrompt((1,), "", reasoning_open=not is_open))
    check_thinking(PromptOptions(), PreparedPrompt((1,), "", reasoning_open=is_open))
