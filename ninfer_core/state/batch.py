"""Writing the rows of a step into persistent buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from attrs import fields, frozen
from torch import Tensor

from ninfer_core.state.layout import ALIGNMENT
from ninfer_core.state.step import PAGE_TOKENS, ROW_TOKENS, StepBatch
from ninfer_core.state.store import SequenceState

FEW_PAGES = 512
"""The least bound of a step's pages: 32,768 tokens."""


@frozen(eq=False)
class Row:
    """One sequence's part of a step.

    :ivar sequence_id: whose ``state`` it is. The pages of a state only ever grow.
    :ivar begin: position of the first input. :ivar token_ids: inputs.
    :ivar num_logits: how many of the last inputs want logits.
    :ivar certain: whether all inputs are committed for sure.
    :ivar replay: recorded rows to apply before, where that is not what the state says.
    """

    sequence_id: int
    state: SequenceState
    begin: int
    token_ids: Sequence[int]
    num_logits: int
    certain: bool = True
    replay: int | None = None


class BatchBuilder:
    """Fills one `StepBatch` again and again.

    It writes through numpy views of host memory, because a tensor operation on a few numbers takes
    longer; for another device, all buffers are then copied at once.

    :ivar page_bounds: what `StepBatch.num_pages` may be: few numbers up to the whole table, so that
        as few graphs are for all lengths of context.
    """

    def __init__(
        self, *, max_rows: int, max_tokens: int, max_logits: int, max_pages: int,
        device: torch.device | str = "cpu",
    ) -> None:
        allocate = partial(
            StepBatch.allocate, max_rows=max_rows, max_tokens=max_tokens, max_logits=max_logits,
            max_pages=max_pages,
        )
        self.page_bounds = _bounds(max_pages)
        self._names = [f.name for f in fields(StepBatch) if not f.name.startswith("num_")]
        self._host = self._batch = allocate()
        self._copy: _DeviceCopy | None = None
        if torch.device(device).type != "cpu":
            self._copy = _DeviceCopy(self._host, self._names, torch.device(device))
            self._host, self._batch = self._copy.host, self._copy.batch
        self._views = SimpleNamespace(**{n: getattr(self._host, n).numpy() for n in self._names})
        self._range = np.arange(max(max_tokens, max_pages * PAGE_TOKENS))
        # of whom a row's table is, in which state, with how many pages
        self._tables: list[tuple[int, SequenceState | None, int]] = [(0, None, 0)] * max_rows

    def fill(self, rows: Sequence[Row]) -> StepBatch:
        """The batch of these rows, valid until the next call."""
        if self._copy:
            self._copy.wait()
        start = logits = 0
        for index, row in enumerate(rows):
            end = start + len(row.token_ids)
            self._write_tokens(index, row, start, end)
            self._write_row(index, row, end)
            wanted = self._range[end - row.num_logits : end]
            self._views.logit_rows[logits : logits + row.num_logits] = wanted
            start, logits = end, logits + row.num_logits
        return self._finish(len(rows), start, logits, self._num_pages(rows, start))

    def pad(
        self, num_rows: int, width: int, *, certain: bool = False, num_pages: int = 0
    ) -> StepBatch:
        """A batch of rows of padding: page 0 and slot 0, which no sequence owns.

        :param certain: chunks of prompts, with logits of one token each.
        :param num_pages: as of the batch.
        """
        if self._copy:
            self._copy.wait()
        for name in self._names:
            getattr(self._views, name)[...] = 0
        self._tables = [(0, None, 0)] * len(self._tables)
        count, views = num_rows * width, self._views
        views.token_row[:count] = self._range[:count] // width
        views.row_start[: num_rows + 1] = self._range[: num_rows + 1] * width
        views.certain[:num_rows] = certain or width == 1
        num_logits = num_rows if certain else count
        views.logit_rows[:num_logits] = self._range[:num_logits]
        return self._finish(num_rows, count, num_logits, num_pages)

    def _num_pages(self, rows: Sequence[Row], num_tokens: int) -> int:
        if num_tokens <= ROW_TOKENS * len(rows):
            return 0
        most = max(len(row.state.pages) for row in rows)
        return next(bound for bound in self.page_bounds if bound >= most)

    def _finish(
        self, num_rows: int, num_tokens: int, num_logits: int, num_pages: int
    ) -> StepBatch:
        batch = self._batch
        batch.num_rows, batch.num_tokens, batch.num_logits = num_rows, num_tokens, num_logits
        batch.num_pages = num_pages
        if self._copy:
            self._copy.start()
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
        views.replay[index] = state.replay if row.replay is None else row.replay
        views.certain[index] = row.certain
        table = row.sequence_id, state, len(state.pages)
        if self._tables[index] != table:
            self._tables[index] = table
            views.page_table[index, : len(state.pages)] = state.pages
            views.page_table[index, len(state.pages) :] = 0


def _bounds(max_pages: int) -> list[int]:
    bounds = [min(FEW_PAGES, max_pages)]
    while bounds[-1] < max_pages:
        bounds.append(min(4 * bounds[-1], max_pages))
    return bounds


class _DeviceCopy:
    """A batch on a device and its image in pinned memory, one run of bytes each.

    :param like: a batch of the same sizes. :param names: of its tensors.
    """

    def __init__(self, like: StepBatch, names: Sequence[str], device: torch.device) -> None:
        tensors = {name: getattr(like, name) for name in names}
        nbytes = sum(-(-each.nbytes // ALIGNMENT) * ALIGNMENT for each in tensors.values())
        self._bytes = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device_bytes = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        self._copied = torch.Event(device) if device.type == "cuda" else None
        self.host = _batch_in(self._bytes, tensors)
        self.batch = _batch_in(self._device_bytes, tensors)

    def wait(self) -> None:
        """Until the last copy has read the image."""
        if self._copied:
            self._copied.synchronize()

    def start(self) -> None:
        self._device_bytes.copy_(self._bytes, non_blocking=True)
        if self._copied:
            self._copied.record()


def _batch_in(memory: Tensor, tensors: Mapping[str, Tensor]) -> StepBatch:
    """A batch whose tensors, of these kinds, lie in a run of bytes one after the other."""
    views: dict[str, Any] = {}
    end = 0
    for name, like in tensors.items():
        views[name] = memory[end : end + like.nbytes].view(like.dtype).view(like.shape)
        end += -(-like.nbytes // ALIGNMENT) * ALIGNMENT
    return StepBatch(**views)
