"""What sequences own: pages of one byte pool, state slots, and snapshots of both."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from attrs import define, field
from torch import Tensor

from ninfer_core.api import CapacityError, KVCodecSpec, NInferError, PluginError, StateSpec
from ninfer_core.state.layout import StateLayout
from ninfer_core.state.memory import PageMemory, Snapshot
from ninfer_core.state.pinned import pinned_empty
from ninfer_core.state.pool import PagePool
from ninfer_core.state.step import PAGE_TOKENS


@define(eq=False)
class SequenceState:
    """What an open sequence owns: a state slot, and the pages of its tokens in order.

    Whoever runs steps keeps the counts.

    :ivar num_tokens: tokens whose state it is, once ``replay`` rows are applied.
    :ivar replay: recorded rows that its next step applies first.
    """

    slot: int
    pages: list[int] = field(factory=list)
    num_tokens: int = 0
    replay: int = 0


class StateStore:
    """Memory of all sequences, allocated once, in the geometry of `StateLayout`.

    :param num_pages: of the pool, :param max_sequences: slots; besides, page 0 and slot 0 pad.
    :param device: ``meta`` has everything but the memory.
    :ivar geometry: stores of equal geometry can read each other's snapshots.
    """

    def __init__(
        self, specs: Sequence[StateSpec], kv: KVCodecSpec, *, num_pages: int, max_sequences: int,
        max_context: int, max_verify_rows: int, device: str | torch.device = "cpu",
    ) -> None:
        layout = StateLayout(specs, kv, max_verify_rows=max_verify_rows)
        self.page_bytes, self.slot_bytes = layout.page_bytes, layout.slot_bytes
        self.bytes_per_token = layout.bytes_per_token
        self.max_sequences, self.max_context = max_sequences, max_context
        self.geometry = repr((*specs, kv.name, max_verify_rows, layout.committed_bytes))

        def matrix(rows: int, nbytes: int) -> Tensor:
            return torch.zeros((rows + 1, nbytes), dtype=torch.uint8, device=device)

        self.memory = PageMemory(matrix(num_pages, layout.page_bytes), "device")
        self._slots = matrix(max_sequences, layout.committed_bytes)
        self._records = matrix(max_sequences, layout.record_bytes)
        self._views = layout.views(self.memory.rows, self._slots, self._records)
        self._free_slots = list(range(max_sequences, 0, -1))
        self._sequences: set[SequenceState] = set()

    @property
    def pool(self) -> PagePool:
        """Of the store's own memory."""
        return self.memory.pool

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    def host_memory(self, num_pages: int) -> PageMemory:
        """Memory beside the store's for more snapshots; pinned, if the store's is on a GPU."""
        shape = num_pages + 1, self.page_bytes
        if self.memory.rows.is_cuda:
            return PageMemory(pinned_empty(*shape), "host")
        return PageMemory(torch.empty(shape, dtype=torch.uint8, device="cpu"), "host")

    def num_pages(self, num_tokens: int) -> int:
        """Pages that hold so many tokens of a sequence."""
        return -(-num_tokens // PAGE_TOKENS) if self.bytes_per_token else 0

    def view(self, name: str, layer: int) -> Any:
        """`PagedPlanes` or `SlotPlanes` of one layer of a declared state."""
        if (name, layer) not in self._views:
            raise PluginError("a model asks for undeclared state", where=f"{name}, layer {layer}")
        return self._views[name, layer]

    def require_slot(self) -> None:
        """Raise `CapacityError` if no slot is free."""
        if not self._free_slots:
            raise CapacityError(
                "no free state slot", fix="raise --max-concurrency",
                why=f"1 wanted, 0 of {self.max_sequences} free",
            )

    def open(self) -> SequenceState:
        """A sequence without tokens and with a zeroed slot; `CapacityError` if none is free."""
        self.require_slot()
        state = SequenceState(self._free_slots[-1])
        self._slots[state.slot].zero_()
        self._records[state.slot].zero_()
        self._free_slots.pop()
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
        if (missing := self.num_pages(num_tokens) - len(state.pages)) > 0:
            state.pages += self.pool.allocate(missing)

    def close(self, state: SequenceState) -> None:
        """Give back all that a sequence owns."""
        self._require(state in self._sequences)
        self._sequences.remove(state)
        self._free_slots.append(state.slot)
        self.pool.release(state.pages)

    def snapshot(
        self, state: SequenceState, num_tokens: int, memory: PageMemory | None = None,
        next_token: int | None = None,
    ) -> Snapshot:
        """Keep the state after ``num_tokens`` tokens while the sequence goes on behind them.

        Full pages are shared (in another memory: those that are there already), an unaligned tail
        and the slot's image are copied. Rows still to be applied are part of the snapshot.

        :param memory: where; the store's own if None. :param next_token: that follows, if known.
        :raises CapacityError: if too few of its pages are free; nothing has changed then.
        :raises NInferError: if the sequence's slot states stand at another place.
        """
        memory = memory or self.memory
        full, tail = self._pages_at(state, num_tokens)
        pieces = self._pieces(state)
        taken = memory.take(self.memory, full, tail, len(pieces))
        image = taken[len(taken) - len(pieces) :]
        with memory.pool.releasing_on_error(taken):
            for piece, page in zip(pieces, image, strict=True):
                memory.rows[page, : len(piece)].copy_(piece, non_blocking=True)
        return memory.keep(num_tokens, taken, len(image), state.replay, next_token)

    def num_pages_to_keep(
        self, state: SequenceState, num_tokens: int, memory: PageMemory | None = None
    ) -> int:
        """Free pages that `snapshot` needs; raises `NInferError` as it does."""
        full, tail = self._pages_at(state, num_tokens)
        missing = (memory or self.memory).num_missing(self.memory, full)
        return missing + len(tail) + len(self._pieces(state))

    def restore(self, snapshot: Snapshot) -> SequenceState:
        """A new sequence that stands where the snapshot, of any memory, was taken; it stays.

        :raises CapacityError: if no slot is free or too few pages; nothing has changed then.
        """
        self._require(snapshot in snapshot.memory.kept)
        state = self.open()
        try:
            state.pages = self.memory.take(snapshot.memory, snapshot.full, snapshot.tail)
            state.num_tokens, state.replay = snapshot.num_tokens, snapshot.replay
            for piece, page in zip(self._pieces(state), snapshot.image, strict=True):
                piece.copy_(snapshot.memory.rows[page, : len(piece)], non_blocking=True)
        except BaseException:
            self.close(state)
            raise
        return state

    def num_pages_to_restore(self, snapshot: Snapshot) -> int:
        """Free pages that `restore` needs."""
        return self.memory.num_missing(snapshot.memory, snapshot.full) + len(snapshot.tail)

    def drop(self, snapshot: Snapshot) -> None:
        """Give back a snapshot's pages."""
        snapshot.memory.drop(snapshot)

    def audit(self) -> None:
        """Check that every page and slot is free or owned, exactly as often as it is counted."""
        self.memory.audit(chain.from_iterable(state.pages for state in self._sequences))
        slots = sorted([*self._free_slots, *(state.slot for state in self._sequences)])
        if slots != list(range(1, self.max_sequences + 1)):
            raise NInferError("slot accounting is broken", why=f"free and owned slots: {slots}")

    def _pages_at(self, state: SequenceState, num_tokens: int) -> tuple[list[int], list[int]]:
        """Pages that a sequence's first tokens fill, and the one they do not; its slot states must
        stand there. Paged state has all places behind it as well."""
        count, full = self.num_pages(num_tokens), num_tokens // PAGE_TOKENS
        self._require(state in self._sequences and num_tokens >= 0 and count <= len(state.pages))
        if num_tokens > state.num_tokens or (self.slot_bytes and num_tokens < state.num_tokens):
            raise NInferError(
                "a sequence's state does not stand where it is to be kept",
                why=f"{num_tokens} tokens wanted, it is the state after {state.num_tokens}",
            )
        pages = state.pages[:count]
        return pages[:full], pages[full:]

    def _pieces(self, state: SequenceState) -> list[Tensor]:
        """Bytes of a slot in pieces of at most a page: its committed states, and its record while
        rows must be applied."""
        matrices = [self._slots, self._records] if state.replay else [self._slots]
        rows = [matrix[state.slot] for matrix in matrices if matrix.shape[1]]
        return [piece for row in rows for piece in row.split(self.page_bytes)]

    def _require(self, condition: bool) -> None:
        if not condition:
            raise NInferError("a sequence or snapshot is not open, or shorter than asked for")
