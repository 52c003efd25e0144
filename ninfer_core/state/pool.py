"""Numbered things of one kind (pages, slots), and how often each is held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ninfer_core.api import CapacityError, NInferError


class Pool:
    """Reference counts of the numbers ``1 .. size``. Number 0 is padding, never handed out.

    :param what: plural, for errors. :param fix: what to do when there are too few.
    """

    def __init__(self, size: int, what: str, fix: str) -> None:
        self.size, self._what, self._fix = size, what, fix
        self._free = list(range(size, 0, -1))
        self._holds = [0] * (size + 1)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """``count`` of them, each held once; raises `CapacityError` if fewer are free."""
        if count > self.num_free:
            why = f"{count} wanted, {self.num_free} of {self.size} free"
            raise CapacityError(f"not enough free {self._what}", why=why, fix=self._fix)
        taken = [self._free.pop() for _ in range(count)]
        self.share(taken)
        return taken
