"""A request on its way through a grammar."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Reader(Protocol):
    """An engine's place in a grammar; raises `RequestError` where it cannot go on."""

    def consume(self, token_ids: Sequence[int]) -> None:
        """Go on behind these tokens."""
        ...

    def rollback(self, count: int) -> None:
        """Go back by so many tokens."""
        ...

    def allowed(self) -> bytes:
        """A bit for each token that may follow, the lowest first, and one behind them for the end.
        """
        ...


class Matching:
    """A `TokenConstraint` by a reader of its own. It keeps what it was asked since the last commit,
    because speculator and verification ask the same.

    :param end_ids: tokens that are allowed where the text may end; those that are text, also where
        it may be such: it is cut there, as by a stop string.
    """

    def __init__(self, reader: Reader, end_ids: frozenset[int], vocab_size: int) -> None:
        self._reader, self._end_ids = reader, end_ids
        self._ends = [each for each in end_ids if 0 <= each < vocab_size]
        self._vocab_size = vocab_size
        self._ahead: tuple[int, ...] = ()  # what the reader has read since the last commit
        self._masks: dict[tuple[int, ...], Tensor] = {}
        self._last = b"", torch.empty(0)  # what the reader said, and the mask of it

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
        """The reader stays behind these."""
        self._read(tuple(takewhile(lambda token: token not in self._end_ids, token_ids)))
        self._ahead = ()
        self._masks.clear()

    def _read(self, token_ids: tuple[int, ...]) -> None:
        """Bring the reader from where it is to behind these tokens."""
        same = (a == b for a, b in zip(self._ahead, token_ids, strict=False))
        common = sum(takewhile(bool, same))
        if common < len(self._ahead):
            self._reader.rollback(len(self._ahead) - common)
        self._ahead = token_ids
        if common < len(token_ids):
            self._reader.consume(token_ids[common:])

    def _allowed(self) -> Tensor:
        """Within text or a string one mask is like the other."""
        said = self._reader.allowed()
        if said != self._last[0]:
            self._last = said, self._unpacked(said)
        return self._last[1]

    def _unpacked(self, said: bytes) -> Tensor:
        bits = np.frombuffer(said, np.uint8)
        allowed = np.unpackbits(bits, count=self._vocab_size + 1, bitorder="little").view(bool)
        allowed[self._ends] |= allowed[-1]
        return torch.from_numpy(allowed[:-1])
