"""Writing the rows of a step into persistent buffers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from attrs import fields, frozen

from ninfer_core.state.step import PAGE_TOKENS, StepBatch
from ninfer_core.state.store import SequenceState


@frozen(eq=False)
class Row:
    """One sequence's part of a step.

    :ivar sequence_id: whose ``state`` it is. The pages of a state only ever grow.
    :ivar begin: position of the first input. :ivar token_ids: inputs.
    :ivar num_logits: how many of the last inputs want logits.
    :ivar certain: whether all inputs are committed for sure.
    """

    sequence_id: int
    state: SequenceState
    begin: int
    token_ids: Sequence[int]
    num_logits: int
    certain: bool = True


class BatchBuilder:
    """Fills one `StepBatch` again and again.

    It writes through numpy views of host memory, because a tensor operation on a few numbers takes
    longer; for another device the buffers are then copied.
    """

    def __init__(
        self, *, max_rows: int, max_tokens: int, max_logits: int, max_pages: int,
        device: torch.device | str = "cpu",
    ) -> None:
        allocate = partial(
            StepBatch.allocate, max_rows=max_rows, max_tokens=max_tokens, max_logits=max_logits,
            max_pages=max_pages,
        )
        self._host = self._batch = allocate()
        if torch.device(device).type != "cpu":
            self._batch = allocate(device=device)
        self._names = [f.name for f in fields(StepBatch) if not f.name.startswith("num_")]
        self._views = SimpleNamespace(**{n: getattr(self._host, n).numpy() for n in self._names})
        self._range = np.arange(max(max_tokens, max_pages * PAGE_TOKENS))
        # of whom a row's table is, in which state, with how many pages
        self._tables: list[tuple[int, SequenceState | None, int]] = [(0, None, 0)] * max_rows

    def fill(self, rows: Sequence[Row]) -> StepBatch:
        """The batch of these rows, valid until the next call."""
        batch, start, logits = self._batch, 0, 0
        for index, row in enumerate(rows):
            end = start + len(row.token_ids)
            self._write_tokens(index, row, start, end)
            self._write_row(index, row, end)
            wanted = self._range[end - row.num_logits : end]
            self._views.logit_rows[logits : logits + row.num_logits] = wanted
            start, logits = end, logits + row.num_logits
        batch.num_rows, batch.num_tokens, batch.num_logits = len(rows), start, logits
        if batch is not self._host:
            for name in self._names:
                getattr(batch, name).copy_(getattr(self._host, name))
        return batch

    def _write_tokens(self, index: int, row: Row, start: int, end: int) -> None:
        views = self._views
        views.token_ids[start:end] = row.token_ids
        positions = self._range[row.begin : row.begin + end - start]
        views.positions[start:end] = positions
        views.rope_positions[:, start:end] = positions
        views.token_row[start:end] = index

    def _write_row(self, index: int, row: Row, end: int) -> None:
        views, state = self._views, row.state
        views.row_start[index + 1] = end
        views.context_len[index] = row.begin
        views.slots[index] = state.slot
        views.replay[index] = state.replay
        views.certain[index] = row.certain
        table = row.sequence_id, state, len(state.pages)
        if self._tables[index] != table:
            self._tables[index] = table
            views.page_table[index, : len(state.pages)] = state.pages
            views.page_table[index, len(state.pages) :] = 0
