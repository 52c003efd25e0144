"""Stored responses: bounded, and gone on from for as long as they are there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ninfer_serve.responses.store import ResponseStore, StoredResponse, size_of
from ninfer_serve.service import StoreLimits


def record(name, previous=None, text="x"):
    items = ({"type": "message", "id": f"in_{name}", "text": text},)
    output = [{"type": "message", "id": f"out_{name}", "text": text}]
    return StoredResponse({"id": name, "output": output}, items, previous)


def ids(items):
    return [each["id"] for each in items]


def test_a_chain_is_its_turns_in_order():
    first = record("1")
    third = record("3", record("2", first))
    assert ids(third.input_items()) == ["in_1", "out_1", "in_2", "out_2", "in_3"]
    assert ids(third.context()) == [*ids(third.input_items()), "out_3"]
    assert ids(first.input_items()) == ["in_1"]


def test_a_very_long_chain():
    store, last = ResponseStore(StoreLimits()), None
    for number in range(3000):
        last = record(str(number), last)
        store.put(last)
    assert len(last.context()) == 6000
    for number in range(3000):
        store.delete(str(number))
    assert store.size_bytes == 0


def test_the_least_used_goes_first():
    store = ResponseStore(StoreLimits(max_records=2))
    for name in "ab":
        store.put(record(name))
    assert store.get("a")
    store.put(record("c"))
    assert store.get("b") is None and store.get("a") and store.get("c")


def test_bytes_are_bounded():
    one = record("a", text="x" * 1000).size_bytes
    store = ResponseStore(StoreLimits(max_bytes=2 * one))
    for name in "abc":
        assert store.put(record(name, text="x" * 1000))
    assert store.get("a") is None and store.size_bytes <= 2 * one
    assert not store.put(record("d", text="x" * 5000))
    assert store.get("b") and store.get("c") and not store.get("d")


def test_what_is_deleted_is_still_there_for_those_that_went_on_from_it():
    store = ResponseStore(StoreLimits())
    first = record("1")
    store.put(first)
    second = record("2", first)
    store.put(second)
    assert store.delete("1") and not store.delete("1")
    assert store.get("1") is None
    assert store.size_bytes == first.size_bytes + second.size_bytes
    assert store.item("out_1") and ids(store.get("2").context())[0] == "in_1"
    store.delete("2")
    assert store.size_bytes == 0 and store.item("out_1") is None


def test_a_turn_that_is_too_large_with_its_past_is_not_kept():
    first = record("1", text="x" * 300)
    store = ResponseStore(StoreLimits(max_bytes=first.size_bytes + 100))
    assert store.put(first)
    assert not store.put(record("2", first, "x" * 300))
    assert store.size_bytes == 0


def test_items_that_clients_send_again_are_found_as_long_as_one_response_has_them():
    store = ResponseStore(StoreLimits())
    for name in "ab":
        made = record(name)
        made.items[0]["id"] = "mine"
        store.put(made)
    store.delete("a")
    assert store.item("mine")
    store.delete("b")
    assert store.item("mine") is None


class StoreMachine(RuleBasedStateMachine):
    """Its bytes are those of all responses that can be reached, whatever happens."""

    def __init__(self):
        super().__init__()
        self.store, self.names = ResponseStore(StoreLimits(max_records=4, max_bytes=700)), []

    @rule(parent=st.integers(0, 9), size=st.integers(0, 300))
    def put(self, parent, size):
        previous = self.store.get(self.names[-1 - parent]) if parent < len(self.names) else None
        self.names.append(str(len(self.names)))
        self.store.put(record(self.names[-1], previous, "x" * size))

    @rule(index=st.integers(0, 9))
    def delete(self, index):
        if index < len(self.names):
            self.store.delete(self.names[index])

    @invariant()
    def bytes_are_of_what_can_be_reached(self):
        reached = set()
        for name in self.names:
            turn = self.store._records.get(name)
            while turn is not None:
                reached.add(turn)
                turn = turn.previous
        assert self.store.size_bytes == sum(each.size_bytes for each in reached)
        assert self.store.size_bytes <= 700 and len(self.store) <= 4
        expected = {each["id"] for turn in reached for each in turn.own_items()}
        assert set(self.store._items) == expected


TestStoreMachine = StoreMachine.TestCase


@given(st.text())
def test_sizes_are_of_json(text):
    assert size_of(text) >= len(text.encode())
