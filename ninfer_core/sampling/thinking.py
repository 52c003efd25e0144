"""Where the reasoning of an answer ends, and what follows it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from attrs import evolve, frozen
from torch import Tensor

from ninfer_core.api import ReasoningTokens, TokenConstraint
from ninfer_core.sampling.constraint import mask_of

MAX_NEWLINES = 2
"""Tokens of newlines between a block and the answer."""


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
        self, tokens: ReasoningTokens, budget: int, *, is_open: bool, vocab_size: int
    ) -> None:
        self._tokens, self._budget, self._place = tokens, budget, _Place(is_open)
        self._vocab_size = vocab_size

    def mask(self, pending: tuple[int, ...]) -> Tensor | None:
        """Nothing is forbidden until the budget is spent."""
        place = reduce(self._step, pending, self._place)
        if place.used < self._budget or place.is_answering:
            return None
        mask = torch.full((self._vocab_size,), not place.is_open)
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


@frozen
class _Gap:
    """Between reasoning and answer: the block may still be open; newlines behind it so far."""

    is_open: bool = True
    newlines: int = 0


_ANSWER = _Gap(is_open=False, newlines=MAX_NEWLINES)


class AfterReasoning:
    """Holds what follows an open block to a constraint of its own; a `TokenConstraint`.

    The block itself is free, but the output cannot end in it. Newlines behind it are not the
    answer's, as parsers have it.

    :param end_ids: tokens that end the output.
    """

    def __init__(
        self, answer: TokenConstraint, tokens: ReasoningTokens, end_ids: frozenset[int],
        vocab_size: int,
    ) -> None:
        self._answer, self._tokens, self._gap = answer, tokens, _Gap()
        self._inside = ~mask_of(end_ids, vocab_size)
        self._newlines = mask_of(tokens.newlines, vocab_size)

    def mask(self, pending: tuple[int, ...]) -> Tensor | None:
        """Anything but an end in the block; behind it newlines, or what the answer may be."""
        gap, answer = self._skip(pending)
        if gap.is_open:
            return self._inside
        mask = self._answer.mask(answer)
        return mask if mask is None or gap == _ANSWER else mask | self._newlines

    def commit(self, token_ids: Sequence[int]) -> None:
        """Only what belongs to the answer is passed on."""
        self._gap, answer = self._skip(tuple(token_ids))
        if answer:
            self._answer.commit(answer)

    def _skip(self, token_ids: tuple[int, ...]) -> tuple[_Gap, tuple[int, ...]]:
        """Where these tokens end, and those of them that belong to the answer."""
        gap = self._gap
        for place, token in enumerate(token_ids):
            if gap.is_open:
                gap = _Gap(is_open=token != self._tokens.closing)
            elif gap != _ANSWER and token in self._tokens.newlines:
                gap = evolve(gap, newlines=gap.newlines + 1)
            else:
                return _ANSWER, token_ids[place:]
        return gap, ()
