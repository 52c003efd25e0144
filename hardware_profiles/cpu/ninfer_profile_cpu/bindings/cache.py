"""``rope_kv_append``, ``key_append`` and ``paged_attention``: the ops on a paged cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import PagedPlanes
from ninfer_profile_cpu.bindings.owning import owning
from ninfer_profile_cpu.kernels.attention import attention_body, scratch_bytes, static_block
from ninfer_profile_cpu.kernels.attention_call import attention
from ninfer_profile_cpu.kernels.kv_codecs import plane_block
from ninfer_profile_cpu.kernels.launch import launch
from ninfer_profile_cpu.kernels.pool import pool
from ninfer_profile_cpu.kernels.rope import (
    TOKENS_PER_ITEM,
    key_append_body,
    rope_kv_append,
    rope_kv_append_body,
)
from ninfer_profile_cpu.kernels.rope import scratch_bytes as angle_bytes
from ninfer_profile_cpu.kernels.rope import static_block as rope_block

PARTIAL_BYTES = 8 << 20
"""Memory for partial results of attention over long contexts."""


def bind_rope_kv_append(
    request: KernelRequest, planes: PagedPlanes, cos: Tensor | None, sin: Tensor | None,
    axes: Tensor | None, query_norm: Tensor | None, key_norm: Tensor | None,
) -> Callable[[Tensor, Tensor, Tensor, StepBatch], None]:
    keys, values = _block(request, planes, "key"), _block(request, planes, "value")
    given = {"cos": cos, "sin": sin, "query_norm": query_norm, "key_norm": key_norm}
    tables = {name: each.float().contiguous() for name, each in given.items() if each is not None}
    if axes is not None:
        tables["axes"] = axes.contiguous()
    sizes, half = request.sizes, request.sizes["rotary_dim"] // 2
    static = rope_block(
        sizes["num_heads"], sizes["num_kv_heads"], sizes["head_dim"], keys.ctypes.data,
        values.ctypes.data, half=half, eps=sizes["eps"], offset=float(sizes["unit_offset"]),
        **{name: table.data_ptr() for name, table in tables.items()},
    )
    pool().reserve(angle_bytes(half))
    shared, body, constants = pool().address, rope_kv_append_body(), static.ctypes.data

    def call(q: Tensor, k: Tensor, v: Tensor, batch: StepBatch) -> None:
        turns, table = batch.rope_positions, batch.page_table
        rope_kv_append(
            shared, body, q.shape[0], constants, q.data_ptr(), 4 * q.stride(0), k.data_ptr(),
            4 * k.stride(0), v.data_ptr(), 4 * v.stride(0), turns.data_ptr(), 8 * turns.stride(0),
            batch.positions.data_ptr(), batch.token_row.data_ptr(), table.data_ptr(),
            4 * table.stride(0),
        )

    return owning(call, static, keys, values, tables, planes)


def bind_key_append(
    request: KernelRequest, planes: PagedPlanes
) -> Callable[[Tensor, StepBatch], None]:
    keys, heads = _block(request, planes, "key"), request.sizes["num_kv_heads"]
    shared, body, dim = pool().address, key_append_body(), request.sizes["head_dim"]
    constants = keys.ctypes.data, heads, dim

    def call(key: Tensor, batch: StepBatch) -> None:
        table = batch.page_table
        launch(
            shared, body, key.shape[0], TOKENS_PER_ITEM, *constants, key.data_ptr(),
            4 * key.stride(0), batch.positions.data_ptr(), batch.token_row.data_ptr(),
            table.data_ptr(), 4 * table.stride(0),
        )

    return owning(call, keys, planes)


def bind_paged_attention(
    request: KernelRequest, planes: PagedPlanes
) -> Callable[[Tensor, StepBatch, Tensor], Tensor]:
    keys, values = _block(request, planes, "key"), _block(request, planes, "value")
    heads = {name: request.sizes[name] for name in ("num_heads", "num_kv_heads", "head_dim")}
    blocks = {"keys": keys.ctypes.data, "values": values.ctypes.data}
    static = static_block(**heads, scale=request.sizes["scale"], **blocks)
    pool().reserve(scratch_bytes(**heads))
    partials = pool().shared(PARTIAL_BYTES)
    shared, body, constants = pool().address, attention_body(), static.ctypes.data
    memory, memory_bytes = partials.ctypes.data, partials.nbytes

    def call(q: Tensor, batch: StepBatch, out: Tensor) -> Tensor:
        table = batch.page_table
        attention(
            shared, body, constants, q.data_ptr(), 4 * q.stride(0), out.data_ptr(),
            4 * out.stride(0), batch.row_start.data_ptr(), batch.positions.data_ptr(),
            table.data_ptr(), 4 * table.stride(0), batch.num_rows, q.shape[0], memory, memory_bytes,
        )
        return out

    return owning(call, static, keys, values, partials, planes)


def _block(request: KernelRequest, planes: PagedPlanes, name: str) -> np.ndarray:
    stored = planes.planes[name]
    codes = stored["codes"] if "codes" in stored else stored["values"]
    return plane_block(request.kv_codec, codes, stored.get("scales"))
