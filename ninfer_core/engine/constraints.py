"""What a request's own options forbid it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ninfer_core.api import ReasoningTokens, RequestError
from ninfer_core.engine.request import GenerationRequest
from ninfer_core.sampling.constraint import AllOf, MinTokens, TokenConstraint
from ninfer_core.sampling.thinking import ThinkingBudget


def check_constraints(request: GenerationRequest, reasoning: ReasoningTokens | None) -> None:
    """Raise `RequestError` for what the model does not have."""
    if request.thinking_budget is not None and reasoning is None:
        raise RequestError(
            "the model takes no thinking_budget", why="it does not reason in blocks",
            fix="leave it out",
        )


def constrain(
    request: GenerationRequest, reasoning: ReasoningTokens | None, end_ids: frozenset[int],
    vocab_size: int, device: torch.device | str,
) -> TokenConstraint | None:
    """The constraint of a request that was checked; None if it may say anything.

    :param end_ids: tokens that end its output.
    """

    def parts() -> Iterator[TokenConstraint]:
        if request.min_tokens:
            yield MinTokens(request.min_tokens, end_ids, vocab_size, device)
        if request.thinking_budget is not None and reasoning is not None:
            yield ThinkingBudget(
                reasoning, request.thinking_budget, is_open=request.prompt.reasoning_open,
                vocab_size=vocab_size, device=device,
            )

    found = list(parts())
    return AllOf(found) if found else None
