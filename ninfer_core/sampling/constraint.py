"""What a request may generate next: the seam of budgets, least lengths and grammars."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor


class TokenConstraint(Protocol):
    """Narrows the next token of one request.

    It is told of tokens once they are committed. Drafts are only asked about, and leave no trace;
    so an answer is the same with and without them. One that raises fails its own request.
    """

    def mask(self, pending: tuple[int, ...]) -> Tensor | None:
        """What may follow the committed tokens and ``pending`` ones, all of them allowed.

        :return: bool ``[V]``, True for allowed tokens, which the caller only reads; None for all.
        """
        ...

    def commit(self, token_ids: Sequence[int]) -> None:
        """These tokens were generated."""
        ...


class AllOf:
    """Several constraints at once."""

    def __init__(self, parts: Sequence[TokenConstraint]) -> None:
        self._parts = parts

    def mask(self, pending: tuple[int, ...]) -> Tensor | None:
        """What all of them allow."""
        found = (part.mask(pending) for part in self._parts)
        masks = [mask for mask in found if mask is not None]
        return reduce(torch.logical_and, masks) if masks else None

    def commit(self, token_ids: Sequence[int]) -> None:
        """Tell them all."""
        for part in self._parts:
            part.commit(token_ids)


class MinTokens:
    """No end token before ``least`` tokens; ids that the vocabulary lacks are no end tokens."""

    def __init__(
        self, least: int, end_ids: frozenset[int], vocab_size: int, device: torch.device | str
    ) -> None:
        self._left = least
        self._mask = torch.ones(vocab_size, dtype=torch.bool, device=device)
        self._mask[[each for each in end_ids if 0 <= each < vocab_size]] = False

    def mask(self, pending: tuple[int, ...]) -> Tensor | None:
        """All but end tokens, until there are enough others."""
        return self._mask if len(pending) < self._left else None

    def commit(self, token_ids: Sequence[int]) -> None:
        """These count."""
        self._left -= len(token_ids)
