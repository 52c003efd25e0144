"""Responses that can be gone on from, and be read again: in memory, the least used go first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, cast

import attrs

from ninfer_serve.responses.items import Item
from ninfer_serve.service import StoreLimits
from ninfer_serve.sse import dumps


@attrs.define(eq=False)
class StoredResponse:
    """A response and its own input.

    :ivar resource: as it was given. :ivar items: its input; each has an id. :ivar previous: the
        response it went on from, which is held for it even if it is forgotten itself.
    :ivar preserve_thinking: what responses that go on from it have, unless they say otherwise.
    :ivar size_bytes: of its own items and resource, as JSON.
    :ivar holders: the store and the responses that went on from it.
    """

    resource: dict[str, Any]
    items: tuple[Item, ...]
    previous: StoredResponse | None
    preserve_thinking: bool | None = None
    size_bytes: int = attrs.field(init=False)
    holders: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self.size_bytes = size_of((self.resource, self.items))

    def input_items(self) -> list[Item]:
        """All that it was made from."""
        return [*(self.previous.context() if self.previous else ()), *self.items]

    def context(self) -> list[Item]:
        """What the next turn goes on from, the oldest first."""
        turns, turn = list[StoredResponse](), cast("StoredResponse | None", self)
        while turn is not None:
            turns.append(turn)
            turn = turn.previous
        return [item for each in reversed(turns) for item in each.own_items()]

    def own_items(self) -> list[Item]:
        return [*self.items, *self.resource["output"]]


class ResponseStore:
    """At most so many responses and bytes. A response that others went on from costs its bytes as
    long as one of them is there."""

    def __init__(self, limits: StoreLimits) -> None:
        self._max_records, self.max_bytes = limits.max_records, limits.max_bytes
        self._records: OrderedDict[str, StoredResponse] = OrderedDict()
        self._items: dict[str, tuple[Item, StoredResponse]] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def get(self, response_id: str) -> StoredResponse | None:
        if (found := self._records.get(response_id)) is not None:
            self._records.move_to_end(response_id)
        return found

    def item(self, item_id: str) -> Item | None:
        """An item of a response that is there."""
        found = self._items.get(item_id)  # in one step: another thread may forget it
        return found[0] if found else None

    def put(self, record: StoredResponse) -> bool:
        """False for one that is too large with all that it goes on from; it is not kept."""
        if record.size_bytes > self.max_bytes:
            return False
        self._hold(record)
        self._records[name := record.resource["id"]] = record
        while self._records and (
                len(self._records) > self._max_records or self.size_bytes > self.max_bytes):
            self._release(self._records.popitem(last=False)[1])
        return name in self._records

    def delete(self, response_id: str) -> bool:
        """Whether there was one."""
        if (found := self._records.pop(response_id, None)) is not None:
            self._release(found)
        return found is not None

    def _hold(self, record: StoredResponse) -> None:
        held: StoredResponse | None = record
        while held is not None:
            held.holders += 1
            if held.holders > 1:
                return
            self.size_bytes += held.size_bytes
            self._items |= {each["id"]: (each, held) for each in held.own_items()}
            held = held.previous

    def _release(self, record: StoredResponse) -> None:
        released: StoredResponse | None = record
        while released is not None:
            released.holders -= 1
            if released.holders:
                return
            self.size_bytes -= released.size_bytes
            for each in released.own_items():
                if self._items.get(each["id"], (None, None))[1] is released:
                    del self._items[each["id"]]
            released = released.previous


def size_of(value: Any) -> int:
    """Bytes of it as JSON: near what it takes in memory where its texts are long."""
    return len(dumps(value))
