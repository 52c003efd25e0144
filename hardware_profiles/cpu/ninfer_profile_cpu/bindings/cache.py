"""``rope_kv_append`` and ``paged_attention``: the ops on a paged cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import PagedPlanes
from ninfer_profile_cpu.bindings.owning import owning
from ninfer_profile_cpu.kernels.attention import (
    attention, attention_body, scratch_bytes, static_block,
)  # fmt: skip
from ninfer_profile_cpu.kernels.kv_codecs import plane_block
from ninfer_profile_cpu.kernels.pool import pool
from ninfer_profile_cpu.kernels.rope import rope_kv_append, rope_kv_append_body

PARTIAL_BYTES = 8 << 20
"""Memory for partial results of attention over long contexts."""


def bind_rope_kv_append(
    request: KernelRequest, planes: PagedPlanes, cos: Tensor | None, sin: Tensor | None
) -> Callable[[Tensor, StepBatch], None]:
    sizes = request.sizes
    keys, values = _block(planes.planes["key"]), _block(planes.planes["value"])
    tables = [None if t is None else t.float().contiguous() for t in (cos, sin)]
    static = np.array(
        [
            sizes["num_heads"], sizes["num_kv_heads"], sizes["head_dim"], sizes["rotary_dim"] // 2,
            *(0 if t is None else t.data_ptr() for t in tables), keys.ctypes.data, values.ctypes.data,
        ],
        dtype=np.int64,
    )  # fmt: skip
    shared, body, constants = pool().address, rope_kv_append_body(request.kv_codec), static.ctypes.data

    def call(qkv: Tensor, batch: StepBatch) -> None:
        table = batch.page_table
        rope_kv_append(
            shared, body, qkv.shape[0], constants, qkv.data_ptr(), 4 * qkv.stride(0),
            batch.positions.data_ptr(), batch.token_row.data_ptr(), table.data_ptr(), 4 * table.stride(0),
        )  # fmt: skip

    return owning(call, static, keys, values, tables, planes)


def bind_paged_attention(
    request: KernelRequest, planes: PagedPlanes
) -> Callable[[Tensor, StepBatch, Tensor], Tensor]:
    num_heads, num_kv_heads, head_dim = (request.sizes[n] for n in ("num_heads", "num_kv_heads", "head_dim"))
    keys, values = _block(planes.planes["key"]), _block(planes.planes["value"])
    static = static_block(num_heads, num_kv_heads, head_dim, request.sizes["scale"], keys.ctypes.data, values.ctypes.data)
    pool().reserve(scratch_bytes(num_heads, num_kv_heads, head_dim))
    partials = pool().shared(PARTIAL_BYTES)
    shared, body, constants = pool().address, attention_body(request.kv_codec), static.ctypes.data
    memory, memory_bytes = partials.ctypes.data, partials.nbytes

    def call(q: Tensor, batch: StepBatch, out: Tensor) -> Tensor:
        table = batch.page_table
        attention(
            shared, body, constants, q.data_ptr(), 4 * q.stride(0), out.data_ptr(), 4 * out.stride(0),
            batch.row_start.data_ptr(), batch.positions.data_ptr(), table.data_ptr(), 4 * table.stride(0),
            batch.num_rows, q.shape[0], memory, memory_bytes,
        )  # fmt: skip
        return out

    return owning(call, static, keys, values, partials, planes)


def _block(stored: Mapping[str, Tensor]) -> np.ndarray:
    codes = stored["codes"] if "codes" in stored else stored["values"]
    return plane_block(codes, stored.get("scales"))
