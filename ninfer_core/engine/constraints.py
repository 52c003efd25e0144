"""What a request's own options forbid it."""

from __future__ import annotations

from collections.abc import Iterator

from ninfer_core.api import (
    CallRules,
    ConstraintCompiler,
    Frontend,
    NewConstraint,
    ReasoningTokens,
    RequestError,
    TokenConstraint,
)
from ninfer_core.engine.request import GenerationRequest
from ninfer_core.sampling.constraint import AllOf, MinTokens
from ninfer_core.sampling.thinking import AfterReasoning, ThinkingBudget


def check_constraints(request: GenerationRequest, frontend: Frontend) -> None:
    """Raise `RequestError` for what the model or the prompt does not have."""
    if request.thinking_budget is not None and frontend.reasoning_tokens is None:
        raise RequestError(
            "the model takes no thinking_budget", why="it does not reason in blocks",
            fix="leave it out",
        )
    calls, known = request.calls, {tool["function"]["name"] for tool in request.prompt.tools}
    if unknown := {*(calls.names or ()), *calls.strict} - known:
        raise RequestError("there is no such tool", where=", ".join(sorted(unknown)))
    if calls.required and not (known if calls.names is None else calls.names):
        raise RequestError("a call is required, and there is nothing to call",
                           fix="declare a tool")
    if calls.required and frontend.call_syntax is None:
        raise RequestError("the model can be required no call", why="it writes none")


def compile_content(
    request: GenerationRequest, frontend: Frontend, compiler: ConstraintCompiler | None,
    end_ids: frozenset[int],
) -> NewConstraint | None:
    """What makes the constraint on the answer of a request that was checked; None if it may say
    anything.

    :param end_ids: tokens that end its output.
    :raises RequestError: if there is nothing that could.
    """
    if request.grammar is None and request.calls == CallRules():
        return None
    tools = request.prompt.tools if frontend.call_syntax is not None else ()
    if request.grammar is None and not tools:
        return None
    what = "the answer cannot be held to a grammar"
    if compiler is None:
        raise RequestError(what, why="no constraint engine is installed",
                           fix="install the distribution ninfer-constraints")
    if not end_ids:
        raise RequestError(what, why="no token may end it", fix="do not ignore end tokens")
    return compiler.compile(request.grammar, request.calls, tools)


def constrain(
    request: GenerationRequest, content: NewConstraint | None, reasoning: ReasoningTokens | None,
    end_ids: frozenset[int], vocab_size: int,
) -> TokenConstraint | None:
    """The constraint of a request that was checked; None if it may say anything.

    :param content: from `compile_content`. :param end_ids: tokens that end its output.
    """

    def parts() -> Iterator[TokenConstraint]:
        if request.min_tokens:
            yield MinTokens(request.min_tokens, end_ids, vocab_size)
        if request.thinking_budget is not None and reasoning is not None:
            yield ThinkingBudget(
                reasoning, request.thinking_budget, is_open=request.prompt.reasoning_open,
                vocab_size=vocab_size,
            )
        if content is not None:
            answer = content(end_ids)
            if request.prompt.reasoning_open and reasoning is not None:
                answer = AfterReasoning(answer, reasoning, end_ids, vocab_size)
            yield answer

    found = list(parts())
    return AllOf(found) if found else None
