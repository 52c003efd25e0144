"""``ngram_rows``."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import SlotPlanes
from ninfer_triton_kernels.bindings.launching import OVERLAPPED, power
from ninfer_triton_kernels.kernels import ngrams

TOKENS = 16
"""Of one program."""


def bind_ngram_rows(
    request: KernelRequest, window: SlotPlanes, multipliers: Tensor, moduli: Tensor,
    offsets: Tensor,
) -> Callable[[StepBatch, Tensor], Tensor]:
    size, heads = request.sizes["ngram_size"], request.sizes["heads_per_ngram"]
    committed, record, eos = window.committed, window.record, request.sizes["eos"]
    tokens, padded, kept = power(size - 1, TOKENS), power(heads, 2), power(size - 1, 2)

    def ngram_rows(batch: StepBatch, rows: Tensor) -> Tensor:
        ngrams.ngram_rows[batch.num_rows, -(-rows.shape[0] // tokens)](
            batch.token_ids, rows, committed, record, multipliers, moduli, offsets,
            batch.row_start, batch.slots, batch.replay, batch.certain, rows.stride(0),
            committed.stride(0), record.stride(0), eos, heads, size, tokens, padded, kept,
            num_warps=1, **OVERLAPPED,
        )
        return rows

    return ngram_rows
