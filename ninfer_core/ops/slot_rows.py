"""The rows of a step as ops on slot states see them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest, PluginError
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import SlotPlanes


class SlotRow(NamedTuple):
    """One sequence of a step; the fields of `StepBatch`, and which of the T tokens are its."""

    slot: int
    replay: int
    certain: int
    begin: int
    end: int

    @property
    def tokens(self) -> slice:
        return slice(self.begin, self.end)


def slot_rows(batch: StepBatch) -> list[SlotRow]:
    """All rows of a step, with one copy to the host."""
    count = batch.num_rows
    fields = (
        batch.slots[:count], batch.replay[:count], batch.certain[:count],
        batch.row_start[:count], batch.row_start[1 : count + 1],
    )
    return [SlotRow(*row) for row in torch.stack(fields, 1).tolist()]


def extend_window(planes: SlotPlanes, row: SlotRow, new: Tensor) -> Tensor:
    """Columns of a row's window, then its new ones: ``[window + n, ...]``.

    The window keeps the last columns before the frontier. ``replay`` recorded ones are appended to
    it; then those of a *certain* row as well, those of another are recorded.
    """
    committed, record = planes.committed[row.slot], planes.record[row.slot]
    committed.copy_(torch.cat((committed, record[: row.replay]))[row.replay :])
    columns = torch.cat((committed, new))
    if row.certain:
        committed.copy_(columns[len(new) :])
    else:
        record[: len(new)] = new
    return columns


def require_tail(request: KernelRequest, tail: SlotPlanes) -> None:
    """Raise `PluginError` if rejected tokens could overwrite columns of an open block."""
    block, size = request.sizes["block"], tail.committed.shape[1]
    needed = block - 1 + tail.record.shape[1]
    if size < needed or size % block:
        raise PluginError(
            "a tail of index keys has the wrong size", where=f"op {request.op}",
            why=f"{size} columns; blocks of {block} and steps of"
            f" {tail.record.shape[1]} uncertain tokens need {needed}",
        )
