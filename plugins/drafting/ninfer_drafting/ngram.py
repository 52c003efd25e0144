"""Drafting by looking up what followed the last tokens before (prompt lookup)."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from ninfer_core.api import Advance, Draft, DraftRequest, SpeculatorContext

SHORTEST, LONGEST = 3, 5
"""Tokens of a match. Shorter ones are found everywhere in markup, where they break tool calls."""


@define
class _Index:
    """Where each run of ``SHORTEST`` to ``LONGEST`` tokens of a text last ended, if any token
    follows it; kept up with a constant number of entries for each token."""

    num_tokens: int = 0
    ends: dict[tuple[int, ...], int] = field(factory=dict)

    def extend(self, tokens: Sequence[int], num_tokens: int) -> None:
        """Take in ``tokens[:num_tokens]``; there are more tokens."""
        for end in range(self.num_tokens + 1, num_tokens + 1):
            for length in range(SHORTEST, min(LONGEST, end) + 1):
                self.ends[tuple(tokens[end - length : end])] = end
        self.num_tokens = num_tokens

    def find(self, tokens: Sequence[int]) -> int | None:
        """Where the longest end of ``tokens`` that occurred before did so last."""
        for length in range(min(LONGEST, len(tokens)), SHORTEST - 1, -1):
            if (end := self.ends.get(tuple(tokens[-length:]))) is not None:
                return end
        return None


class NgramSpeculator:
    """Drafts what followed the last tokens of prompt and output where they last occurred. What
    runs into the present goes on with itself, so that a loop is drafted whole."""

    def __init__(self, context: SpeculatorContext) -> None:
        self.max_drafts = context.draft_tokens
        self._indexes: dict[int, _Index] = {}

    def advance(self, steps: Sequence[Advance]) -> None:
        """Take in what is followed by a token now."""
        for step in steps:
            self._indexes.setdefault(step.request_id, _Index()).extend(step.tokens, step.end)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """A copy of what followed, or nothing."""
        return [Draft(self._follow(request)) for request in requests]

    def release(self, request_id: int) -> None:
        """Forget a request."""
        self._indexes.pop(request_id, None)

    def _follow(self, request: DraftRequest) -> tuple[int, ...]:
        index, tokens = self._indexes.get(request.request_id), request.tokens
        end = index.find(tokens) if index else None
        if end is None:
            return ()
        distance = len(tokens) - end
        return tuple(tokens[end + i % distance] for i in range(request.limit))
