"""``rope_kv_append`` and ``paged_attention``."""

from __future__ import annotations

from collections.abc import Callable
from math import e, log2

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import PagedPlanes
from ninfer_triton_kernels.bindings.launching import OVERLAPPED, ROW_TOKENS, capability, power
from ninfer_triton_kernels.bindings.matrices import FEW_TOKENS
from ninfer_triton_kernels.bindings.shared import shared
from ninfer_triton_kernels.kernels import attention
from ninfer_triton_kernels.kernels.rope import rope_kv_append as rope_kernel

RUN_STAGES, RUN_WARPS = 2, 4
"""Of a program over a run of the context: loads in flight, warps."""

MERGED_RUNS, MERGED_WIDTH = 64, 64
"""Runs that are merged at once, and components of a head; the same for all tokens, so that all sums
have one order."""


def num_runs(num_pages: int) -> int:
    """Runs of a context of so many pages, as `kernels.attention` lays them."""
    fine = attention.FINE.value * attention.FINE_RUNS.value
    medium = attention.MEDIUM.value * attention.MEDIUM_RUNS.value
    if num_pages <= fine:
        return -(-num_pages // attention.FINE.value)
    if num_pages <= fine + medium:
        return attention.FINE_RUNS.value - (fine - num_pages) // attention.MEDIUM.value
    runs = attention.FINE_RUNS.value + attention.MEDIUM_RUNS.value
    return runs - (fine + medium - num_pages) // attention.COARSE.value


def _run_keys(codec: str, capability: int) -> int:
    """Tokens of the context at once of a program over a run: what its registers hold (codes of
    ``int8`` are decoded there), and several programs' shared memory."""
    return 32 if codec == "int8" or (codec == "bf16" and capability >= 120) else 64


def _prefill_tile(capability: int) -> tuple[int, int, int]:
    """Pairs of token and head, tokens of the context, and loads in flight of a program: what fits
    the shared memory of the card."""
    return (64, 32, 2) if capability >= 120 else (128, 64, 2)


class _Planes:
    """Keys and values as kernels take them: four tensors, and what lies between pages of each."""

    def __init__(self, planes: PagedPlanes) -> None:
        tensors = []
        for name in ("key", "value"):
            stored = planes.planes[name]
            codes = stored["values"] if "values" in stored else stored["codes"]
            tensors += [codes, stored.get("scales", codes)]
        self.tensors = tuple(tensors)
        self.strides = tuple(tensor.stride(0) for tensor in tensors)
        keys, key_scales, values, value_scales = tensors
        if values.dtype == torch.float8_e4m3fn:
            values = values.view(torch.int16)
        self.pairs = keys, key_scales, values, value_scales
        """As ``tensors``, E4M3 codes of values two at a time."""


def bind_rope_kv_append(
    request: KernelRequest, planes: PagedPlanes, cos: Tensor | None, sin: Tensor | None,
    axes: Tensor | None, query_norm: Tensor | None, key_norm: Tensor | None,
) -> Callable[[Tensor, Tensor, Tensor, StepBatch], None]:
    sizes, stored = request.sizes, _Planes(planes)
    width, heads, kv_heads = sizes["head_dim"], sizes["num_heads"], sizes["num_kv_heads"]
    any_tensor = stored.tensors[0]
    tables = [any_tensor if each is None else each for each in (cos, sin, axes)]
    norms = [any_tensor if each is None else each for each in (query_norm, key_norm)]
    has_rope, has_axes = cos is not None, axes is not None
    has_norms = query_norm is not None, key_norm is not None

    def rope_kv_append(q: Tensor, k: Tensor, v: Tensor, batch: StepBatch) -> None:
        rope_kernel[q.shape[0], heads + 2 * kv_heads](
            q, k, v, q.stride(0), k.stride(0), v.stride(0), *tables, *norms, *stored.tensors,
            *stored.strides, batch.positions, batch.rope_positions, batch.rope_positions.stride(0),
            batch.token_row, batch.page_table, batch.page_table.stride(0), heads, kv_heads, width,
            sizes["rotary_dim"] // 2, sizes["eps"], float(sizes["unit_offset"]), request.kv_codec,
            has_rope, has_axes, *has_norms, power(width), num_warps=1, **OVERLAPPED,
        )

    return rope_kv_append


def bind_paged_attention(
    request: KernelRequest, planes: PagedPlanes
) -> Callable[[Tensor, StepBatch, Tensor], Tensor]:
    sizes, stored, codec = request.sizes, _Planes(planes), request.kv_codec
    width, heads, kv_heads = sizes["head_dim"], sizes["num_heads"], sizes["num_kv_heads"]
    scale, group, block = sizes["scale"] * log2(e), heads // kv_heads, power(width)
    kinds = codec, block == width, group

    def decode(q: Tensor, batch: StepBatch, out: Tensor) -> None:
        num_tokens, table = q.shape[0], batch.page_table
        runs = num_runs(table.shape[1])
        count = num_tokens * heads * runs
        sums = shared("attention_sums", count * width, torch.float32, q.device)
        tops = shared("attention_tops", 2 * count, torch.float32, q.device)
        attention.attend_run[num_tokens, kv_heads, runs](
            q, q.stride(0), sums, tops, *stored.pairs, *stored.strides, batch.positions,
            batch.token_row, table, table.stride(0), heads, kv_heads, width, scale, runs, *kinds,
            power(group), _run_keys(codec, capability(q.device)), block, RUN_STAGES,
            num_warps=RUN_WARPS, **OVERLAPPED,
        )
        attention.merge_runs[num_tokens, heads, -(-width // MERGED_WIDTH)](
            sums, tops, batch.positions, out, out.stride(0), heads, width, runs, MERGED_RUNS,
            MERGED_WIDTH, num_warps=4, **OVERLAPPED,
        )

    def prefill(q: Tensor, batch: StepBatch, out: Tensor) -> None:
        num_pairs, table = q.shape[0] * group, batch.page_table
        tile, keys, stages = _prefill_tile(capability(q.device))
        attention.attend_tile[batch.num_rows, kv_heads, -(-num_pairs // tile)](
            q, q.stride(0), out, out.stride(0), *stored.tensors, *stored.strides, batch.positions,
            batch.row_start, table, table.stride(0), kv_heads, width, scale, *kinds, tile,
            keys, block, stages, num_warps=8,
        )

    def paged_attention(q: Tensor, batch: StepBatch, out: Tensor) -> Tensor:
        is_decode = q.shape[0] <= min(FEW_TOKENS, ROW_TOKENS * batch.num_rows)
        (decode if is_decode else prefill)(q, batch, out)
        return out

    return paged_attention
