"""The page pool against a model of holders."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ninfer_core.api import CapacityError, NInferError
from ninfer_core.state.pool import PagePool

PAGES = 7


class PoolMachine(RuleBasedStateMachine):
    """Holders take, share and release pages in any order."""

    def __init__(self):
        super().__init__()
        self.pool = PagePool(PAGES)
        self.holders: list[list[int]] = []
        self.other, self.copies = PagePool(1000), {}

    @property
    def held(self):
        return [page for holder in self.holders for page in holder]

    @rule(count=st.integers(0, PAGES + 1))
    def allocate(self, count):
        free = PAGES - len(set(self.held))
        if count > free:
            with pytest.raises(CapacityError, match=f"{count} wanted, {free} of {PAGES} free"):
                self.pool.allocate(count)
            return
        pages = self.pool.allocate(count)
        assert len(set(pages)) == count
        assert not set(pages) & {0, *self.held}
        self.holders.append(pages)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def share(self, data):
        holder = data.draw(st.sampled_from(self.holders))
        count = data.draw(st.integers(0, len(holder)))
        self.pool.share(holder[:count])
        self.holders.append(holder[:count])

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data):
        index = data.draw(st.integers(0, len(self.holders) - 1))
        self.pool.release(self.holders.pop(index))

    @rule(data=st.data())
    def give_up(self, data):
        chosen = [h for h in self.holders if data.draw(st.booleans())]
        left = Counter(self.held) - Counter(page for holder in chosen for page in holder)
        freed = self.pool.num_freed([np.array(holder, np.int64) for holder in chosen])
        assert freed == len(set(self.held)) - len(left)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def copy(self, data):
        """A held page gets a copy in another pool, which may lose it again."""
        page = data.draw(st.sampled_from(self.held))
        if self.other.copy_of(page, self.pool) is None:
            self.copies[page] = self.other.allocate(1)[0]
            self.pool.pair(page, self.other, self.copies[page])
        elif data.draw(st.booleans()):
            self.other.release([self.copies.pop(page)])

    @invariant()
    def copies_are_known_as_long_as_both_are_held(self):
        self.copies = {page: copy for page, copy in self.copies.items() if page in self.held}
        for page in range(1, PAGES + 1):
            assert self.other.copy_of(page, self.pool) == self.copies.get(page)
        for page, copy in self.copies.items():
            assert self.pool.copy_of(copy, self.other) == page

    @invariant()
    def accounts_are_right(self):
        self.pool.audit(self.held)
        assert self.pool.num_free == PAGES - len(set(self.held))


TestPool = PoolMachine.TestCase


@pytest.mark.parametrize("held", [[], [1, 1], [2]])
def test_audit_finds_lost_and_surplus_holds(held):
    pool = PagePool(3)
    assert pool.allocate(1) == [1]
    with pytest.raises(NInferError, match="page accounting is broken"):
        pool.audit(held)


def test_audit_finds_a_page_released_too_often():
    pool = PagePool(3)
    pages = pool.allocate(1)
    pool.release(pages)
    pool.release(pages)
    with pytest.raises(NInferError, match="page 1"):
        pool.audit([])


def test_audit_finds_confused_copies():
    pool, other = PagePool(3), PagePool(3)
    [page], [copy] = pool.allocate(1), other.allocate(1)
    pool.pair(page, other, copy)
    pool.audit([page])
    pool._named.clear()
    with pytest.raises(NInferError, match="copies of pages are confused"):
        pool.audit([page])
