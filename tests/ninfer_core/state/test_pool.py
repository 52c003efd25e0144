"""The page pool against a model of holders."""

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
