"""Columns of the last tokens of each sequence, and the blocks that they complete."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.ops.pages import write_entries
from ninfer_core.ops.slot_rows import require_tail
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import PagedPlanes, SlotPlanes


class IndexTail:
    """Keeps columns, and writes the index key of each block that a step completes.

    :param reduce: columns ``[block, W]`` of a block to its key ``[D]``.
    :raises PluginError: as `require_tail`.
    """

    def __init__(
        self, request: KernelRequest, planes: PagedPlanes, tail: SlotPlanes,
        reduce: Callable[[Tensor], Tensor],
    ) -> None:
        require_tail(request, tail)
        self._planes, self._columns, self._reduce = planes, tail.committed, reduce
        self._block, self._size = request.sizes["block"], tail.committed.shape[1]

    def append(self, columns: Tensor, batch: StepBatch) -> None:
        """Take the columns ``[T, W]`` of a step, token by token."""
        rows, positions = (each[: len(columns)] for each in (batch.token_row, batch.positions))
        slots, last = batch.slots[rows.long()].tolist(), []
        keys = []
        for t, position in enumerate(positions.tolist()):
            tail = self._columns[slots[t]]
            tail[position % self._size] = columns[t]
            if (position + 1) % self._block == 0:
                begin = (position + 1 - self._block) % self._size
                keys.append(self._reduce(tail[begin : begin + self._block]))
                last.append(t)
        if keys:
            entries = positions[last] // self._block
            write_entries(
                self._planes, "index_key", torch.stack(keys), rows[last], entries, batch
            )
