"""Pages: how often each is held, and which of them have a copy in another pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from ninfer_core.api import CapacityError, NInferError


class PagePool:
    """Reference counts of the pages ``1 .. num_pages``. Page 0 is padding, never handed out."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages, 0, -1))
        self._holds = np.zeros(num_pages + 1, np.int64)
        self._names: dict[int, object] = {}  # of held pages whose contents are elsewhere, too
        self._named: dict[object, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """``count`` pages, each held once; raises `CapacityError` if fewer are free."""
        if count > self.num_free:
            raise CapacityError(
                "not enough free pages",
                why=f"{count} wanted, {self.num_free} of {self.num_pages} free",
                fix="raise --context-capacity, or run fewer or shorter requests at once",
            )
        pages = [self._free.pop() for _ in range(count)]
        self.share(pages)
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """Hold pages once more."""
        np.add.at(self._holds, np.array(pages, np.int64), 1)

    def release(self, pages: Sequence[int]) -> None:
        """Give up one hold of each; without holds a page is free."""
        ids = np.array(pages, np.int64)
        np.subtract.at(self._holds, ids, 1)
        for page in dict.fromkeys(ids[self._holds[ids] == 0].tolist()):
            self._free.append(page)
            self._named.pop(self._names.pop(page, None), None)

    @contextmanager
    def releasing_on_error(self, pages: Sequence[int]) -> Iterator[None]:
        """Pages that the block makes something of; if it raises, they are released."""
        try:
            yield
        except BaseException:
            self.release(pages)
            raise

    def num_freed(self, holders: Sequence[NDArray[np.int64]]) -> int:
        """Pages that would be free if all these holders, each with its pages, gave them up."""
        if len(holders) == 1:
            return int((self._holds[holders[0]] == 1).sum())
        empty = np.zeros(0, np.int64)
        given_up = np.bincount(np.concatenate([empty, *holders]), minlength=self.num_pages + 1)
        return int(((given_up == self._holds) & (given_up > 0)).sum())

    def pair(self, page: int, other: PagePool, copy: int) -> None:
        """Remember that ``copy`` in another pool has this page's contents. Neither must be written
        to while it is held."""
        name = self._names.setdefault(page, object())
        self._named[name] = page
        other._names[copy], other._named[name] = name, copy

    def copy_of(self, page: int, other: PagePool) -> int | None:
        """The held page here that has the contents of another pool's page, if one is known."""
        return self._named.get(other._names.get(page))

    def audit(self, held: Iterable[int]) -> None:
        """Compare with all holds there are; raises `NInferError` if a page is lost or surplus, or
        a free one passes for a copy."""
        expected, free = Counter(held), Counter(self._free)
        for page in range(1, self.num_pages + 1):
            holds = self._holds[page]
            if holds != expected[page] or free[page] != (holds == 0):
                raise NInferError(
                    "page accounting is broken", where=f"page {page}",
                    why=f"counted {holds} holds, found {expected[page]}, free {free[page]} times",
                )
        names = {page: name for name, page in self._named.items()}
        if names != self._names or names.keys() & free.keys():
            raise NInferError("copies of pages are confused", why=f"{len(names)} names")
