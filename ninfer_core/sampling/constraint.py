"""Constraints on what a request may generate next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce

import torch
from torch import Tensor

from ninfer_core.api import TokenConstraint


def mask_of(token_ids: Collection[int], vocab_size: int) -> Tensor:
    """bool ``[V]``, True for these; ids that the vocabulary lacks are left out."""
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[[each for each in token_ids if 0 <= each < vocab_size]] = True
    return mask


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

    def __init__(self, least: int, end_ids: frozenset[int], vocab_size: int) -> None:
        self._left = least
        self._mask = ~mask_of(end_ids, vocab_size)

    def mask(self, pending: tuple[int, ...]) -> Tensor | None:
        """All but end tokens, until there are enough others."""
        return self._mask if len(pending) < self._left else None

    def commit(self, token_ids: Sequence[int]) -> None:
        """These count."""
        self._left -= len(token_ids)
