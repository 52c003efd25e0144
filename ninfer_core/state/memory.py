"""Pages of bytes in one memory, and the snapshots that lie in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from torch import Tensor

from ninfer_core.api import NInferError
from ninfer_core.state.pool import PagePool
from ninfer_core.state.step import PAGE_TOKENS


@frozen(eq=False)
class Snapshot:
    """State of a sequence after ``num_tokens`` tokens; nobody writes to its pages.

    :ivar memory: whose pages they are. :ivar pages: of the tokens; full ones are shared, an
        unaligned tail is its own.
    :ivar image: own pages with the slot's bytes.
    :ivar replay: recorded rows, in the image as well, that a sequence must apply first.
    :ivar next_token: that followed where it was taken, if one did.
    """

    memory: PageMemory
    num_tokens: int
    pages: tuple[int, ...]
    image: tuple[int, ...]
    replay: int
    next_token: int | None = None

    @property
    def full(self) -> tuple[int, ...]:
        return self.pages[: self.num_tokens // PAGE_TOKENS]

    @property
    def tail(self) -> tuple[int, ...]:
        return self.pages[self.num_tokens // PAGE_TOKENS :]

    @cached_property
    def held(self) -> NDArray[np.int64]:
        """All its pages."""
        return np.array(self.pages + self.image, np.int64)


class PageMemory:
    """Pages as rows of a byte matrix.

    Copies between a GPU and pinned memory go on while the caller does; they and the model's steps
    are in one order, because they are on one stream.

    :param rows: uint8 ``[num_pages + 1, page_bytes]``; row 0 is padding. :param name: for reports.
    :ivar kept: its snapshots.
    """

    def __init__(self, rows: Tensor, name: str) -> None:
        self.rows, self.name, self.pool = rows, name, PagePool(len(rows) - 1)
        self.kept: set[Snapshot] = set()

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    def num_held(self, snapshots: Iterable[Snapshot]) -> int:
        """Pages of these snapshots, each once."""
        return len({page for each in snapshots for page in each.held.tolist()})

    def num_freed(self, snapshots: Iterable[Snapshot]) -> int:
        """Pages that would be free without these snapshots."""
        return self.pool.num_freed([each.held for each in snapshots])

    def num_missing(self, source: PageMemory, full: Sequence[int]) -> int:
        """Pages of a memory that `take` would have to copy."""
        return len(full) - len(self._present(source, full)) if source is not self else 0

    def take(
        self, source: PageMemory, full: Sequence[int], others: Sequence[int] = (), spare: int = 0
    ) -> list[int]:
        """Hold pages with contents of a memory's pages (it may be this one), in their order.

        :param full: pages that are never written to again; what is here already is shared.
        :param others: pages to be copied in any case. :param spare: further pages, of any content.
        :raises CapacityError: if too few pages are free; nothing has changed then.
        """
        here = self._present(source, full)
        missing = [page for page in full if page not in here]
        new = self.pool.allocate(len(missing) + len(others) + spare)
        with self.pool.releasing_on_error(new):
            for page, copy in zip((*missing, *others), new, strict=False):
                self.rows[copy].copy_(source.rows[page], non_blocking=True)
        for page, copy in zip(missing, new, strict=False):
            source.pool.pair(page, self.pool, copy)
        self.pool.share(list(here.values()))
        here |= zip(missing, new, strict=False)
        return [*(here[page] for page in full), *new[len(missing) :]]

    def settle(self) -> None:
        """Wait for copies to end, before anybody but the GPU reads the rows."""
        if self.rows.is_pinned():
            torch.cuda.current_stream().synchronize()

    def num_pages_to_copy(self, snapshot: Snapshot) -> int:
        """Free pages that `copy` needs."""
        own = len(snapshot.tail) + len(snapshot.image)
        return self.num_missing(snapshot.memory, snapshot.full) + own

    def copy(self, snapshot: Snapshot) -> Snapshot:
        """The same state in this memory; raises `CapacityError` as `take` does."""
        own = (*snapshot.tail, *snapshot.image)
        taken = self.take(snapshot.memory, snapshot.full, own)
        return self.keep(
            snapshot.num_tokens, taken, len(snapshot.image), snapshot.replay, snapshot.next_token
        )

    def keep(
        self, num_tokens: int, taken: Sequence[int], num_image: int, replay: int,
        next_token: int | None = None,
    ) -> Snapshot:
        """Register pages that were taken, those of the image last, as a snapshot."""
        cut = len(taken) - num_image
        pages, image = tuple(taken[:cut]), tuple(taken[cut:])
        snapshot = Snapshot(self, num_tokens, pages, image, replay, next_token)
        self.kept.add(snapshot)
        return snapshot

    def drop(self, snapshot: Snapshot) -> None:
        """Give back a snapshot's pages."""
        if snapshot not in self.kept:
            raise NInferError("a snapshot is not of this memory, or was dropped before")
        self.kept.remove(snapshot)
        self.pool.release(snapshot.held.tolist())

    def audit(self, held: Iterable[int] = ()) -> None:
        """Check that pages are held by snapshots and ``held``, exactly as often as it is counted.

        :raises NInferError: if not.
        """
        self.pool.audit(chain(held, *(each.held.tolist() for each in self.kept)))

    def _present(self, source: PageMemory, pages: Sequence[int]) -> dict[int, int]:
        """Those of a memory's pages whose contents are here, and where."""
        if source is self:
            return {page: page for page in pages}
        copies = ((page, self.pool.copy_of(page, source.pool)) for page in pages)
        return {page: copy for page, copy in copies if copy is not None}
