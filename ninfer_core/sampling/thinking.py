"""A limit on the reasoning of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from attrs import evolve, frozen
from torch import Tensor

from ninfer_core.api import ReasoningTokens


@frozen
class _Place:
    """Where an answer stands: inside a block or not, tokens of reasoning, forced ones so far; or
    behind all blocks, where marks are text."""

    is_open: bool
    used: int = 0
    num_forced: int = 0
    is_answering: bool = False


class ThinkingBudget:
    """At most ``budget`` tokens of reasoning, marks not counted; a `TokenConstraint`.

    A block that is open when they are spent is ended by the forced tokens, one after the other, and
    none is opened after that. An answer that has begun, or does not reason, is left alone: it may
    be about such marks.

    :param is_open: whether the prompt ends inside a block.
    """

    def __init__(
        self, tokens: ReasoningTokens, budget: int, *, is_open: bool, vocab_size: int,
        device: torch.device | str,
    ) -> None:
        self._tokens, self._budget, self._place = tokens, budget, _Place(is_open)
        self._vocab_size, self._device = vocab_size, device

    def mask(self, pending: tuple[int, ...]) -> Tensor | None:
        """Nothing is forbidden until the budget is spent."""
        place = reduce(self._step, pending, self._place)
        if place.used < self._budget or place.is_answering:
            return None
        mask = torch.full(
            (self._vocab_size,), not place.is_open, dtype=torch.bool, device=self._device
        )
        named = self._tokens.forced[place.num_forced] if place.is_open else self._tokens.opening
        mask[named] = place.is_open
        return mask

    def commit(self, token_ids: Sequence[int]) -> None:
        """These were generated."""
        self._place = reduce(self._step, token_ids, self._place)

    def _step(self, place: _Place, token: int) -> _Place:
        if place.is_answering:
            return place
        if not place.is_open:
            is_open = token == self._tokens.opening
            is_answering = not is_open and token not in self._tokens.spaces
            return evolve(place, is_open=is_open, is_answering=is_answering)
        if place.used == self._budget:
            count = place.num_forced + 1
            is_done = count == len(self._tokens.forced)
            return evolve(place, is_open=not is_done, num_forced=0 if is_done else count)
        if token == self._tokens.closing:
            return evolve(place, is_open=False)
        return evolve(place, used=place.used + 1)
