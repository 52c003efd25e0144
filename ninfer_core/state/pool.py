"""Pages and how often each is held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ninfer_core.api import CapacityError, NInferError


class PagePool:
    """Reference counts of the pages ``1 .. num_pages``. Page 0 is padding, never handed out."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages, 0, -1))
        self._holds = [0] * (num_pages + 1)

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
        for page in pages:
            self._holds[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Give up one hold of each; without holds a page is free."""
        for page in pages:
            self._holds[page] -= 1
            if not self._holds[page]:
                self._free.append(page)

    def audit(self, held: Iterable[int]) -> None:
        """Compare with all holds there are; raises `NInferError` if a page is lost or surplus."""
        expected, free = Counter(held), Counter(self._free)
        for page in range(1, self.num_pages + 1):
            holds = self._holds[page]
            if holds != expected[page] or free[page] != (holds == 0):
                raise NInferError(
                    "page accounting is broken", where=f"page {page}",
                    why=f"counted {holds} holds, found {expected[page]}, free {free[page]} times",
                )
