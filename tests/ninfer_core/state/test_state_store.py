"""The state store: capacity, snapshots, and a model-based test of who may write what."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ninfer_core.api import (
    CapacityError,
    KVCodecSpec,
    NInferError,
    PagedStateSpec,
    PluginError,
    SlotStateSpec,
    StatePlane,
)
from ninfer_core.state.store import StateStore

FP32 = KVCodecSpec("fp32", "ninfer_core.state.codecs:Fp32Codec")
KV = PagedStateSpec("kv", 1, (StatePlane("key", (1, 2)),))
MEMORY = SlotStateSpec("memory", 2, (3,), (2,))
BIG = SlotStateSpec("big", 1, (200,), (300,))


def make(specs=(KV, MEMORY), *, num_pages=6, max_sequences=3, max_context=512):
    return StateStore(
        specs, FP32, num_pages=num_pages, max_sequences=max_sequences, max_context=max_context,
        max_verify_rows=4,
    )


def keys(store):
    """The last component of the stored keys, fp32 ``[pages, 64]``."""
    return store.view("kv", 0).planes["key"]["values"][:, :, 0, -1]


def write(store, state, start, values):
    stored = store.view("kv", 0).planes["key"]["values"]
    for position, value in enumerate(values, start):
        stored[state.pages[position // 64], position % 64] = value
    state.num_tokens = start + len(values)


def read(store, pages, count):
    return keys(store)[list(pages)].flatten()[:count].tolist()


class StoreMachine(RuleBasedStateMachine):
    """Sequences write a value of their own at every position; nothing else may change it."""

    sequences = Bundle("sequences")
    snapshots = Bundle("snapshots")

    def __init__(self):
        super().__init__()
        self.store = make()
        self.open, self.kept = {}, {}
        self.value = 0.0

    def next_value(self):
        self.value += 1
        return self.value

    @rule(target=sequences)
    def open_sequence(self):
        if len(self.open) == 3:
            with pytest.raises(CapacityError, match="1 wanted, 0 of 3 free"):
                self.store.open()
            return None
        state = self.store.open()
        memory = self.store.view("memory", 1)
        assert state.slot != 0 and state.slot not in {each.slot for each in self.open}
        assert memory.committed[state.slot].eq(0).all() and memory.record[state.slot].eq(0).all()
        self.open[state] = ([], 0.0, [])
        return state

    @rule(state=sequences, count=st.integers(1, 100), record=st.integers(0, 4))
    def advance(self, state, count, record):
        """Prefill ``count`` tokens, then leave ``record`` rows to be replayed."""
        if state not in self.open:
            return
        tokens, _, _ = self.open[state]
        pages, free = list(state.pages), self.store.pool.num_free
        needed = -(-(len(tokens) + count) // 64) - len(pages)
        if len(tokens) + count > 512 or needed > free:
            with pytest.raises(CapacityError):
                self.store.grow(state, len(tokens) + count)
            assert state.pages == pages and self.store.pool.num_free == free
            return
        self.store.grow(state, len(tokens) + count)
        new = [self.next_value() for _ in range(count)]
        write(self.store, state, len(tokens), new)
        memory = self.store.view("memory", 1)
        memory.committed[state.slot], slot = self.value, self.value
        state.replay, rows = record, [self.next_value() for _ in range(record)]
        memory.record[state.slot, :record] = torch.tensor(rows).view(-1, 1)
        self.open[state] = (tokens + new, slot, rows)

    @rule(state=consumes(sequences))
    def close(self, state):
        if self.open.pop(state, None) is not None:
            self.store.close(state)
        elif state is not None:
            with pytest.raises(NInferError, match="not open"):
                self.store.close(state)

    @rule(target=snapshots, state=sequences)
    def snapshot(self, state):
        if state not in self.open:
            return None
        tokens = self.open[state][0]
        free = self.store.pool.num_free
        needed = 1 + (state.replay > 0) + (len(tokens) % 64 > 0)
        assert self.store.num_pages_to_keep(state, len(tokens)) == needed
        if needed > free:
            with pytest.raises(CapacityError, match=f"{needed} wanted, {free} of 6 free"):
                self.store.snapshot(state, len(tokens))
            return None
        snapshot = self.store.snapshot(state, len(tokens))
        self.kept[snapshot] = self.open[state]
        return snapshot

    @rule(target=sequences, snapshot=snapshots)
    def restore(self, snapshot):
        if snapshot not in self.kept:
            return None
        tokens = self.kept[snapshot][0]
        free, slots = self.store.pool.num_free, len(self.open)
        if slots == 3 or (len(tokens) % 64 and not free):
            with pytest.raises(CapacityError):
                self.store.restore(snapshot)
            assert (self.store.pool.num_free, self.store.num_sequences) == (free, slots)
            return None
        state = self.store.restore(snapshot)
        self.open[state] = self.kept[snapshot]
        return state

    @rule(snapshot=consumes(snapshots))
    def drop(self, snapshot):
        if self.kept.pop(snapshot, None) is not None:
            self.store.drop(snapshot)

    @invariant()
    def nobody_sees_the_writes_of_another(self):
        memory = self.store.view("memory", 1)
        for state, (tokens, slot, rows) in self.open.items():
            assert read(self.store, state.pages, len(tokens)) == tokens
            assert memory.committed[state.slot].eq(slot).all()
            assert memory.record[state.slot, : state.replay, 0].tolist() == rows
        for snapshot, (tokens, _, _) in self.kept.items():
            assert read(self.store, snapshot.pages, len(tokens)) == tokens

    @invariant()
    def a_writable_page_has_one_owner(self):
        holders = [(each, each.pages) for each in self.open]
        holders += [(each, each.pages + each.image) for each in self.kept]
        for state, (tokens, _, _) in self.open.items():
            for page in state.pages[len(tokens) // 64 :]:
                assert [each for each, pages in holders if page in pages] == [state]

    @invariant()
    def nothing_is_lost(self):
        self.store.audit()
        assert keys(self.store)[0].eq(0).all()

    def teardown(self):
        for state in self.open:
            self.store.close(state)
        for snapshot in self.kept:
            self.store.drop(snapshot)
        self.store.audit()
        assert self.store.pool.num_free == 6 and self.store.num_sequences == 0


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_large_slot_takes_several_pages_and_comes_back():
    store = make((KV, BIG), num_pages=20)
    state = store.open()
    view = store.view("big", 0)
    view.committed[state.slot] = torch.arange(200.0)
    view.record[state.slot] = torch.arange(1200.0).view(4, 300)
    small = store.snapshot(state, 0)
    state.replay = 2
    large = store.snapshot(state, 0)
    assert len(small.image) == -(-832 // store.page_bytes)
    assert len(large.image) == len(small.image) + -(-4800 // store.page_bytes)
    store.close(state)
    for snapshot, recorded in ((small, 0.0), (large, 1199.0)):
        restored = store.restore(snapshot)
        assert view.committed[restored.slot].equal(torch.arange(200.0))
        assert view.record[restored.slot, 3, 299] == recorded
        assert restored.replay == snapshot.replay


@pytest.mark.parametrize("specs", [(KV,), (MEMORY,), (KV, BIG)])
def test_a_snapshot_in_another_memory(specs):
    store = make(specs, num_pages=20)
    host, state = store.host_memory(20), store.open()
    store.grow(state, 130)
    store.memory.rows.random_(255)
    store._slots.random_(255)
    state.num_tokens = 130
    needed = store.num_pages_to_keep(state, 130, host)
    kept = store.snapshot(state, 130, host)
    assert host.num_free == 20 - needed
    again = store.snapshot(state, 130, host)  # its full pages are there
    assert host.num_free == 20 - 2 * needed + len(kept.full)
    store.drop(again)
    assert store.num_pages_to_restore(kept) == len(kept.tail)
    tokens, slot = store.memory.rows[state.pages].clone(), store._slots[state.slot].clone()
    store.close(state)
    store.memory.rows.zero_()
    free, missing = store.pool.num_free, store.num_pages_to_restore(kept)
    restored = store.restore(kept)
    assert free - store.pool.num_free == missing == len(kept.pages)
    assert store.memory.rows[restored.pages].equal(tokens)
    assert store._slots[restored.slot].equal(slot)
    store.drop(kept)
    host.audit()
    assert host.num_free == 20


def test_nothing_has_changed_when_another_memory_is_full():
    store = make()
    host, state = store.host_memory(2), store.open()
    store.grow(state, 130)
    state.num_tokens = 130
    with pytest.raises(CapacityError, match="4 wanted, 2 of 2 free"):
        store.snapshot(state, 130, host)
    host.audit()
    snapshot = store.snapshot(state, 130)
    with pytest.raises(CapacityError, match="4 wanted, 2 of 2 free"):
        host.copy(snapshot)
    host.audit()
    store.audit()
    with pytest.raises(NInferError, match="not of this memory"):
        host.drop(snapshot)


def test_a_slot_is_kept_only_where_it_stands():
    hybrid, paged = make(), make((KV,))
    for store in (hybrid, paged):
        state = store.open()
        store.grow(state, 100)
        state.num_tokens = 80
        with pytest.raises(NInferError, match="81 tokens wanted, it is the state after 80"):
            store.snapshot(state, 81)
        if store is hybrid:
            with pytest.raises(NInferError, match="79 tokens wanted, it is the state after 80"):
                store.snapshot(state, 79)
        else:
            assert store.restore(store.snapshot(state, 79)).num_tokens == 79


def test_stores_of_other_geometry_say_so():
    assert make().geometry == make(num_pages=9, max_sequences=1).geometry
    assert len({make(specs).geometry for specs in ((KV,), (MEMORY,), (KV, MEMORY))}) == 3


def test_aligned_snapshots_share_instead_of_copying():
    store = make((KV,))
    state = store.open()
    store.grow(state, 130)
    state.num_tokens = 130
    snapshot = store.snapshot(state, 128)
    assert snapshot.pages == tuple(state.pages[:2])
    assert store.pool.num_free == 3
    store.close(state)
    assert store.pool.num_free == 4


def test_recurrent_models_need_no_pages_for_tokens():
    store = make((MEMORY,), num_pages=2)
    state = store.open()
    store.grow(state, 500)
    state.num_tokens = 500
    store.view("memory", 0).committed[state.slot] = 7
    snapshot = store.snapshot(state, 500)
    assert not state.pages and len(snapshot.image) == 1
    store.close(state)
    assert store.view("memory", 0).committed[store.restore(snapshot).slot].eq(7).all()


def test_paged_models_need_no_pages_for_slots():
    store = make((KV,))
    assert store.snapshot(store.open(), 0).image == ()
    assert store.slot_bytes == 0


def test_a_store_without_memory_has_the_same_geometry():
    sizes = {"max_sequences": 1, "max_context": 64, "max_verify_rows": 1, "num_pages": 10_000}
    store = StateStore([KV, MEMORY], FP32, device="meta", **sizes)
    assert store.page_bytes == make().page_bytes
    assert store.view("kv", 0).planes["key"]["values"].shape == (10_001, 64, 1, 2)


def test_growing_beyond_the_context_names_both_numbers():
    store = make(max_context=100)
    state = store.open()
    store.grow(state, 100)
    with pytest.raises(CapacityError, match="101 tokens wanted, 100 allowed"):
        store.grow(state, 101)


def test_growing_never_shrinks():
    store = make()
    state = store.open()
    store.grow(state, 200)
    store.grow(state, 1)
    assert len(state.pages) == 4


def test_misuse_is_refused():
    store, other = make(), make()
    state = store.open()
    with pytest.raises(NInferError, match="not open"):
        other.grow(state, 1)
    with pytest.raises(NInferError, match="shorter than asked for"):
        store.snapshot(state, 1)
    with pytest.raises(NInferError, match="shorter than asked for"):
        store.snapshot(state, -1)
    store.audit()
    snapshot = store.snapshot(state, 0)
    store.drop(snapshot)
    with pytest.raises(NInferError, match="not open"):
        store.restore(snapshot)
    with pytest.raises(PluginError, match="kv, layer 9"):
        store.view("kv", 9)


def test_audit_finds_a_lost_page_and_a_lost_slot():
    store = make()
    state = store.open()
    store.grow(state, 64)
    pages, state.pages = state.pages, []
    with pytest.raises(NInferError, match="page accounting is broken"):
        store.audit()
    state.pages, state.slot = pages, 3 if state.slot != 3 else 2
    with pytest.raises(NInferError, match="slot accounting is broken"):
        store.audit()


class FailingRows:
    """Rows of a memory; one access fails."""

    def __init__(self, rows, number):
        self.rows, self.left = rows, number

    def __getitem__(self, index):
        self.left -= 1
        if self.left < 0:
            raise OSError("a broken memory")
        return self.rows[index]


@pytest.mark.parametrize("what", ["snapshot", "snapshot elsewhere", "restore", "demote"])
def test_a_copy_that_fails_loses_nothing(what):
    """At each of its accesses to a memory, until it succeeds."""
    store = make((KV, BIG), num_pages=16)
    host, state = store.host_memory(10), store.open()
    store.grow(state, 100)
    write(store, state, 0, range(100))
    kept, elsewhere = store.snapshot(state, 100), store.snapshot(state, 100, host)
    calls = {
        "snapshot": (store.memory, lambda: store.snapshot(state, 100)),
        "snapshot elsewhere": (host, lambda: store.snapshot(state, 100, host)),
        "restore": (host, lambda: store.restore(elsewhere)),
        "demote": (store.memory, lambda: host.copy(kept)),
    }
    memory, call = calls[what]
    rows, free, number = memory.rows, (store.pool.num_free, host.num_free), 0
    while True:
        memory.rows = FailingRows(rows, number)
        try:
            call()
            break
        except OSError:
            number += 1
        finally:
            memory.rows = rows
        store.audit()
        host.audit()
        assert free == (store.pool.num_free, host.num_free)
    assert number >= 2
    store.audit()
    host.audit()
