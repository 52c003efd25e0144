"""A request on its way through a grammar."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np
import torch
from llguidance import LLMatcher
from torch import Tensor

from ninfer_constraints.errors import reason
from ninfer_core.api import RequestError


class Matching:
    """A `TokenConstraint` by a matcher of its own. It keeps what it was asked since the last
    commit, because speculator and verification ask the same.

    :param matcher: over ``vocab_size`` tokens and one more that stands for the end.
    :param end_ids: tokens that are allowed where the text may end, and nowhere else.
    """

    def __init__(self, matcher: LLMatcher, end_ids: frozenset[int], vocab_size: int) -> None:
        self._matcher, self._end_ids = matcher, end_ids
        self._ends = [each for each in end_ids if 0 <= each < vocab_size]
        self._vocab_size = vocab_size
        self._ahead: tuple[int, ...] = ()  # what the matcher has read since the last commit
        self._masks: dict[tuple[int, ...], Tensor] = {}
        self._last = b"", torch.empty(0)  # what the matcher said, and the mask of it

    def mask(self, pending: tuple[int, ...]) -> Tensor | None:
        """What the grammar allows; behind an end anything, since nothing comes of it.

        :raises RequestError: if the grammar takes too much to say so.
        """
        if not self._end_ids.isdisjoint(pending):
            return None
        if pending not in self._masks:
            self._read(pending)
            self._masks[pending] = self._allowed()
        return self._masks[pending]

    def commit(self, token_ids: Sequence[int]) -> None:
        """The matcher stays behind these."""
        self._read(tuple(takewhile(lambda token: token not in self._end_ids, token_ids)))
        self._ahead = ()
        self._masks.clear()

    def _read(self, token_ids: tuple[int, ...]) -> None:
        """Bring the matcher from where it is to behind these tokens."""
        same = (a == b for a, b in zip(self._ahead, token_ids, strict=False))
        common = sum(takewhile(bool, same))
        if common < len(self._ahead):
            self._matcher.rollback(len(self._ahead) - common)
        if common < len(token_ids):
            self._matcher.consume_tokens([*token_ids[common:]])
        self._ahead = token_ids
        self._check()

    def _allowed(self) -> Tensor:
        """Within text or a string one mask is like the other."""
        said = self._matcher.compute_bitmask()
        self._check()
        if said != self._last[0]:
            self._last = said, self._unpacked(said)
        return self._last[1]

    def _unpacked(self, said: bytes) -> Tensor:
        bits = np.frombuffer(said, np.uint8)
        allowed = np.unpackbits(bits, count=self._vocab_size + 1, bitorder="little").view(bool)
        allowed[self._ends] = allowed[-1]
        return torch.from_numpy(allowed[:-1])

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError("the grammar cannot go on", why=reason(self._matcher.get_error()))
