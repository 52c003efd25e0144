"""The rows of a step as ops on slot states see them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ninfer_core.state.step import StepBatch


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
