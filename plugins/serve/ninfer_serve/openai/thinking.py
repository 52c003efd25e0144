"""Whether and how much a chat completion asks a model to think."""

from __future__ import annotations

from typing import Any, get_args

from ninfer_core.api import PromptOptions, ReasoningEffort
from ninfer_serve.errors import HttpError
from ninfer_serve.members import Members, refuse

EFFORTS: tuple[ReasoningEffort, ...] = get_args(ReasoningEffort)
VARIABLES = {"enable_thinking", "thinking", "preserve_thinking", "reasoning_effort",
             "thinking_budget"}
"""Of the chat template, that a client may set."""
BUDGETS = ("thinking_budget", "thinking_token_budget")


def read_thinking(body: Members) -> tuple[PromptOptions, int | None]:
    """Options of the prompt, and most tokens of reasoning, wherever clients put them: in the body,
    in ``chat_template_kwargs`` or in ``reasoning``.

    :raises RequestError: if they contradict each other.
    """
    variables = body.object("chat_template_kwargs") or Members({}, "chat_template_kwargs")
    if unknown := sorted(variables.values.keys() - VARIABLES):
        refuse(variables.place(unknown[0]), f"one of {', '.join(sorted(VARIABLES))}", unknown[0])
    reasoning = body.object("reasoning") or Members({}, "reasoning")
    options = PromptOptions(
        thinking=_agreed("enable_thinking", body.flag("enable_thinking"),
                         variables.flag("enable_thinking"), variables.flag("thinking"),
                         reasoning.flag("enabled")),
        effort=_agreed("reasoning_effort", body.one_of("reasoning_effort", EFFORTS),
                       variables.one_of("reasoning_effort", EFFORTS),
                       reasoning.one_of("effort", EFFORTS)),
        preserve_thinking=_agreed("preserve_thinking", body.flag("preserve_thinking"),
                                  variables.flag("preserve_thinking")),
    )
    budget = _agreed(
        "thinking_budget", *(body.integer(name, 1, 2**31 - 1) for name in BUDGETS),
        variables.integer("thinking_budget", 1, 2**31 - 1),
        reasoning.integer("max_tokens", 1, 2**31 - 1),
    )
    return options, budget


def _agreed(name: str, *given: Any) -> Any:
    """The one value that was given, or None."""
    values = {each for each in given if each is not None}
    if len(values) > 1:
        why = f"it is given as {' and as '.join(map(repr, sorted(values)))}"
        raise HttpError(400, "conflicting_template_option", "contradicting options", where=name,
                        why=why, fix="give it once")
    return values.pop() if values else None
