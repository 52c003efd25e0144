"""llguidance's place in a grammar."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLMatcher

from ninfer_constraints.errors import reason
from ninfer_core.api import RequestError


class GuidanceReader:
    """A `Reader`.

    :param matcher: over the model's tokens and one more that stands for the end.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def consume(self, token_ids: Sequence[int]) -> None:
        self._matcher.consume_tokens([*token_ids])
        self._check()

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)
        self._check()

    def allowed(self) -> bytes:
        said = self._matcher.compute_bitmask()
        self._check()
        return said

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError("the grammar cannot go on", why=reason(self._matcher.get_error()))
