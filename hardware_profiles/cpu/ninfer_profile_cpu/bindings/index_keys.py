"""``mean_index_append`` and ``softmax_index_append``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.ops.slot_rows import require_tail
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import PagedPlanes, SlotPlanes
from ninfer_profile_cpu.bindings.owning import owning
from ninfer_profile_cpu.kernels import rope
from ninfer_profile_cpu.kernels.index_keys import (
    entries_body,
    index_append,
    scratch_bytes,
    static_block,
    tails_body,
)
from ninfer_profile_cpu.kernels.pool import pool

Append = Callable[[Tensor, Tensor, StepBatch], None]


def bind_mean_index_append(
    request: KernelRequest, planes: PagedPlanes, tail: SlotPlanes, cos: Tensor, sin: Tensor,
    axes: Tensor | None, query_norm: Tensor, key_norm: Tensor,
) -> Append:
    sizes, half = request.sizes, request.sizes["rotary_dim"] // 2
    cos, sin, query_norm, key_norm = (
        each.float().contiguous() for each in (cos, sin, query_norm, key_norm)
    )
    axes = None if axes is None else axes.contiguous()
    turning = rope.static_block(
        sizes["num_heads"], 0, sizes["head_dim"], 0, 0, half=half, cos=cos.data_ptr(),
        sin=sin.data_ptr(), axes=0 if axes is None else axes.data_ptr(),
        query_norm=query_norm.data_ptr(), key_norm=key_norm.data_ptr(), eps=sizes["eps"],
        offset=float(sizes["unit_offset"]),
    )
    append = _bind(request, planes, tail, half, rope=turning.ctypes.data, heads=sizes["num_heads"])

    def mean_index_append(q: Tensor, k: Tensor, batch: StepBatch) -> None:
        append(k, q, batch)

    return owning(mean_index_append, turning, cos, sin, axes, query_norm, key_norm)


def bind_softmax_index_append(
    request: KernelRequest, planes: PagedPlanes, tail: SlotPlanes, norm: Tensor, norm_bias: Tensor,
    position_bias: Tensor,
) -> Append:
    given = {"norm": norm, "norm_bias": norm_bias, "position_bias": position_bias}
    tables = {name: each.float().contiguous() for name, each in given.items()}
    addresses = {name: table.data_ptr() for name, table in tables.items()}
    append = _bind(request, planes, tail, 0, eps=request.sizes["eps"], **addresses)

    def softmax_index_append(k: Tensor, s: Tensor, batch: StepBatch) -> None:
        append(k, s, batch)

    return owning(softmax_index_append, tables)


def _bind(
    request: KernelRequest, planes: PagedPlanes, tail: SlotPlanes, half: int, **fields: Any
) -> Append:
    """Of keys, of queries or scores, and of a batch."""
    require_tail(request, tail)
    head_dim, block = request.sizes["head_dim"], request.sizes["block"]
    keys, columns = planes.planes["index_key"]["values"], tail.committed
    static = static_block(
        head_dim=head_dim, block=block, keys=keys.data_ptr(), page_bytes=4 * keys.stride(0),
        entry_bytes=4 * keys.stride(1), tail=columns.data_ptr(), tail_bytes=4 * columns.stride(0),
        tail_rows=columns.shape[1], **fields,
    )
    pool().reserve(scratch_bytes(head_dim, block, half))
    shared, constants = pool().address, static.ctypes.data
    entries, tails = entries_body(), tails_body()

    def call(k: Tensor, other: Tensor, batch: StepBatch) -> None:
        turns, table = batch.rope_positions, batch.page_table
        index_append(
            shared, entries, tails, k.shape[0], batch.num_rows, constants, k.data_ptr(),
            4 * k.stride(0), other.data_ptr(), 4 * other.stride(0), turns.data_ptr(),
            8 * turns.stride(0), batch.positions.data_ptr(), batch.token_row.data_ptr(),
            batch.row_start.data_ptr(), batch.slots.data_ptr(), table.data_ptr(),
            4 * table.stride(0),
        )

    return owning(call, static, planes, tail)
