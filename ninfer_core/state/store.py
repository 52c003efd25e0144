"""What sequences own: pages of one byte pool, state slots, and snapshots of both."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor
from torch.nn.functional import pad

from ninfer_core.api import CapacityError, KVCodecSpec, NInferError, PluginError, StateSpec
from ninfer_core.state.layout import StateLayout
from ninfer_core.state.pool import PagePool
from ninfer_core.state.step import PAGE_TOKENS


@define(eq=False)
class SequenceState:
    """What an open sequence owns: a state slot, and the pages of its tokens in order.

    :ivar replay: recorded rows that its next step applies first; the engine keeps it.
    """

    slot: int
    pages: list[int] = field(factory=list)
    replay: int = 0


@frozen(eq=False)
class Snapshot:
    """State of a sequence after ``num_tokens`` tokens, in pages of the pool.

    :ivar pages: of the tokens; full ones are shared, an unaligned tail is a copy.
    :ivar image: pages with the slot's bytes. :ivar replay: as in `SequenceState`.
    """

    num_tokens: int
    pages: tuple[int, ...]
    image: tuple[int, ...]
    replay: int


class StateStore:
    """Memory of all sequences, allocated once, in the geometry of `StateLayout`.

    :param num_pages: of the pool, :param max_sequences: slots; besides, page 0 and slot 0 pad.
    :param device: ``meta`` has everything but the memory.
    """

    def __init__(
        self, specs: Sequence[StateSpec], kv: KVCodecSpec, *, num_pages: int, max_sequences: int,
        max_context: int, max_verify_rows: int, device: str | torch.device = "cpu",
    ) -> None:
        layout = StateLayout(specs, kv, max_verify_rows=max_verify_rows)
        self.page_bytes, self.slot_bytes = layout.page_bytes, layout.slot_bytes
        self.bytes_per_token = layout.bytes_per_token
        self.max_sequences, self.max_context = max_sequences, max_context

        def matrix(rows: int, nbytes: int) -> Tensor:
            return torch.zeros((rows + 1, nbytes), dtype=torch.uint8, device=device)

        self._pages = matrix(num_pages, layout.page_bytes)
        self._slots = matrix(max_sequences, layout.committed_bytes)
        self._records = matrix(max_sequences, layout.record_bytes)
        self._views = layout.views(self._pages, self._slots, self._records)
        self.pool = PagePool(num_pages)
        self._free_slots = list(range(max_sequences, 0, -1))
        self._sequences: set[SequenceState] = set()
        self._snapshots: set[Snapshot] = set()

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    def view(self, name: str, layer: int) -> Any:
        """`PagedPlanes` or `SlotPlanes` of one layer of a declared state."""
        if (name, layer) not in self._views:
            raise PluginError("a model asks for undeclared state", where=f"{name}, layer {layer}")
        return self._views[name, layer]

    def open(self) -> SequenceState:
        """A sequence without tokens and with a zeroed slot; `CapacityError` if none is free."""
        if not self._free_slots:
            raise CapacityError(
                "no free state slot", fix="raise --max-concurrency",
                why=f"1 wanted, 0 of {self.max_sequences} free",
            )
        state = SequenceState(self._free_slots.pop())
        self._slots[state.slot].zero_()
        self._records[state.slot].zero_()
        self._sequences.add(state)
        return state

    def grow(self, state: SequenceState, num_tokens: int) -> None:
        """Make room for ``num_tokens`` tokens in all.

        :raises CapacityError: beyond ``max_context`` or the free pages; nothing has changed then.
        """
        self._require(state in self._sequences)
        if num_tokens > self.max_context:
            raise CapacityError(
                "the sequence is longer than the context", fix="raise --max-context",
                why=f"{num_tokens} tokens wanted, {self.max_context} allowed",
            )
        state.pages += self.pool.allocate(max(0, self._count(num_tokens) - len(state.pages)))

    def close(self, state: SequenceState) -> None:
        """Give back all that a sequence owns."""
        self._require(state in self._sequences)
        self._sequences.remove(state)
        self._free_slots.append(state.slot)
        self.pool.release(state.pages)

    def snapshot(self, state: SequenceState, num_tokens: int) -> Snapshot:
        """Keep the state after ``num_tokens`` tokens while the sequence goes on behind them.

        Slot states must stand at ``num_tokens`` once ``replay`` is applied: rows still to be
        applied are part of the snapshot.

        :raises CapacityError: if the pages for the tail and the image are not free.
        """
        count = self._count(num_tokens)
        self._require(state in self._sequences and count <= len(state.pages))
        full, tail = _split(state.pages[:count], num_tokens)
        image = torch.cat(self._slot_rows(state))
        image = pad(image, (0, -len(image) % self.page_bytes)).view(-1, self.page_bytes)
        own = self.pool.allocate(len(tail) + len(image))
        self._pages[own] = torch.cat((self._pages[tail], image))
        self.pool.share(full)
        pages, image_pages = (*full, *own[: len(tail)]), tuple(own[len(tail) :])
        snapshot = Snapshot(num_tokens, pages, image_pages, state.replay)
        self._snapshots.add(snapshot)
        return snapshot

    def restore(self, snapshot: Snapshot) -> SequenceState:
        """A new sequence that stands where the snapshot was taken; the snapshot stays.

        :raises CapacityError: if no slot or no page for the tail is free; nothing has changed then.
        """
        self._require(snapshot in self._snapshots)
        full, tail = _split(snapshot.pages, snapshot.num_tokens)
        state = self.open()
        try:
            own = self.pool.allocate(len(tail))
        except CapacityError:
            self.close(state)
            raise
        self._pages[own] = self._pages[tail]
        self.pool.share(full)
        state.pages, state.replay = [*full, *own], snapshot.replay
        image = self._pages[list(snapshot.image)].flatten()
        for row in self._slot_rows(state):
            row.copy_(image[: len(row)])
            image = image[len(row) :]
        return state

    def drop(self, snapshot: Snapshot) -> None:
        """Give back a snapshot's pages."""
        self._require(snapshot in self._snapshots)
        self._snapshots.remove(snapshot)
        self.pool.release(snapshot.pages + snapshot.image)

    def audit(self) -> None:
        """Check that every page and slot is free or owned, exactly as often as it is counted."""
        held = [state.pages for state in self._sequences]
        kept = [snapshot.pages + snapshot.image for snapshot in self._snapshots]
        self.pool.audit(chain(*held, *kept))
        slots = sorted([*self._free_slots, *(state.slot for state in self._sequences)])
        if slots != list(range(1, self.max_sequences + 1)):
            raise NInferError("slot accounting is broken", why=f"free and owned slots: {slots}")

    def _count(self, num_tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-num_tokens // PAGE_TOKENS) if self.bytes_per_token else 0

    def _slot_rows(self, state: SequenceState) -> list[Tensor]:
        """Bytes of a slot: its committed states, and its record while rows must be applied."""
        matrices = [self._slots, self._records] if state.replay else [self._slots]
        return [matrix[state.slot] for matrix in matrices]

    def _require(self, condition: bool) -> None:
        if not condition:
            raise NInferError("a sequence or snapshot is not open, or shorter than asked for")


def _split(pages: Sequence[int], num_tokens: int) -> tuple[list[int], list[int]]:
    """Pages that ``num_tokens`` tokens fill, and the one they do not."""
    full = num_tokens // PAGE_TOKENS
    return list(pages[:full]), list(pages[full:])
