"""The recurrence ``h' = a h + (1 - a) v`` with ``a = sigmoid(g)``, with record and replay."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import SlotPlanes


def advance(state: Tensor, raw: Tensor) -> Tensor:
    """The state ``[S]`` after one token with raw inputs ``[2 S]`` (gates above values)."""
    gate, value = raw.chunk(2)
    decay = torch.sigmoid(gate)
    return decay * state + (1 - decay) * value


def replay(planes: SlotPlanes, slot: int, rows: int) -> None:
    """Apply the first ``rows`` recorded tokens to the committed state."""
    for row in range(rows):
        planes.committed[slot] = advance(planes.committed[slot], planes.record[slot, row])


def recur(raw: Tensor, batch: StepBatch, planes: SlotPlanes, out: Tensor) -> Tensor:
    """Run the raw inputs ``[T, 2 S]`` of a step; ``out[t]`` is the state after token t.

    Tokens of certain rows advance the committed state; those of uncertain rows are recorded.
    """
    for row in range(batch.num_rows):
        slot = int(batch.slots[row])
        replay(planes, slot, int(batch.replay[row]))
        first, last = int(batch.row_start[row]), int(batch.row_start[row + 1])
        state = planes.committed[slot].clone()
        for token in range(first, last):
            state = out[token] = advance(state, raw[token])
        if batch.certain[row]:
            planes.committed[slot] = state
        else:
            planes.record[slot, : last - first] = raw[first:last]
    return out
