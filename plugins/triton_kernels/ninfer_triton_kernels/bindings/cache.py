"""``rope_kv_append`` and ``paged_attention``."""

from __future__ import annotations

from collections.abc import Callable
from math import e, log2

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.state.step import PAGE_TOKENS, ROW_TOKENS, StepBatch
from ninfer_core.state.views import PagedPlanes
from ninfer_triton_kernels.bindings.launching import OVERLAPPED, num_processors, power
from ninfer_triton_kernels.bindings.planes import Planes
from ninfer_triton_kernels.bindings.prompt_attention import bind_prompt_attention
from ninfer_triton_kernels.bindings.shared import shared
from ninfer_triton_kernels.kernels import attention
from ninfer_triton_kernels.kernels.products import COLUMNS as _COLUMNS
from ninfer_triton_kernels.kernels.rope import rope_kv_append as rope_kernel

COLUMNS = int(_COLUMNS.value)

STAGES, WARPS = 3, 4
"""Of a program over a part of a context: blocks that are loaded ahead and the one in use; warps."""

HELD, STAGES_OF_MANY = 3, 2
"""Such programs that a processor has room for, of heads of `WIDE`; and the stages where more are
launched and a fourth has room by that: of bf16, with one eight of pairs, as registers go."""

WIDE = 256
"""Components of a head whose blocks take more of the shared memory than registers leave room for.
"""

MOST_PRODUCTS = 4
"""Eights of pairs of a token and a head that a program has registers for."""

MOST_TOKENS = 4
"""Of a row that share a program."""

TURNED_HEADS, TURNING_WARPS, LEAST_PROMPT = 8, 2, 128
"""Queries that a program norms and turns where there are more tokens than these, and its warps;
else one."""

WARP = 32
"""Threads; parts of a context that are merged at once, at least."""

MERGED_WIDTH = 64
"""Components of a head that a program merges; the same for all tokens, so that all sums have one
order. It is one warp, which waits for no other."""


def num_parts(num_pages: int, block: int) -> int:
    """Parts of a context of so many pages in blocks of so many tokens, as `kernels.attention` cuts
    it."""
    if num_pages * PAGE_TOKENS > attention.NEAR.value:
        return int(attention.MANY_PARTS.value)
    return min(num_pages * PAGE_TOKENS // block, int(attention.FEW_PARTS.value))


def _block(codec: str) -> int:
    """Tokens of the context at once: what several programs' shared memory holds twice."""
    return 32 if codec == "bf16" else 64


def _stages(programs: int, products: int, codec: str, wide: int, processors: int) -> int:
    """Of so many programs, each with so many eights of pairs; no bit depends on it."""
    is_bound = codec == "bf16" and wide >= WIDE and products == 1
    return STAGES_OF_MANY if is_bound and programs > HELD * processors else STAGES


def _tokens(group: int, most_of_row: int) -> int:
    """Of a row that share a program, at most: a power of two, so that no page cuts them apart."""
    tokens = 1
    while 2 * tokens <= MOST_TOKENS and tokens < most_of_row:
        if 2 * tokens * group > COLUMNS * MOST_PRODUCTS:
            break
        tokens *= 2
    return tokens


def bind_rope_kv_append(
    request: KernelRequest, planes: PagedPlanes, cos: Tensor | None, sin: Tensor | None,
    axes: Tensor | None, query_norm: Tensor | None, key_norm: Tensor | None,
) -> Callable[[Tensor, Tensor, Tensor, StepBatch], None]:
    sizes, stored = request.sizes, Planes(planes)
    width, heads, kv_heads = sizes["head_dim"], sizes["num_heads"], sizes["num_kv_heads"]
    any_tensor = stored.tensors[0]
    tables = [any_tensor if each is None else each for each in (cos, sin, axes)]
    norms = [any_tensor if each is None else each for each in (query_norm, key_norm)]
    has_rope, has_axes = cos is not None, axes is not None
    has_norms = query_norm is not None, key_norm is not None

    def rope_kv_append(q: Tensor, k: Tensor, v: Tensor, batch: StepBatch) -> None:
        at_once, kv_at_once, warps = 1, 1, 1
        if q.shape[0] > LEAST_PROMPT:
            at_once, warps = TURNED_HEADS, TURNING_WARPS
            kv_at_once = min(at_once, power(kv_heads, warps))
        rope_kernel[q.shape[0], -(-heads // at_once) - 2 * (-kv_heads // kv_at_once)](
            q, k, v, q.stride(0), k.stride(0), v.stride(0), *tables, *norms, *stored.tensors,
            *stored.strides, batch.positions, batch.rope_positions, batch.rope_positions.stride(0),
            batch.token_row, batch.page_table, batch.page_table.stride(0), heads, kv_heads, width,
            sizes["rotary_dim"] // 2, sizes["eps"], float(sizes["unit_offset"]), request.kv_codec,
            has_rope, has_axes, *has_norms, at_once, kv_at_once, power(width), num_warps=warps,
            **OVERLAPPED,
        )

    return rope_kv_append


def bind_paged_attention(
    request: KernelRequest, planes: PagedPlanes
) -> Callable[[Tensor, StepBatch, Tensor], Tensor]:
    sizes, stored, codec = request.sizes, Planes(planes), request.kv_codec
    width, heads, kv_heads = sizes["head_dim"], sizes["num_heads"], sizes["num_kv_heads"]
    scale, group, wide = sizes["scale"] * log2(e), heads // kv_heads, power(width, 32)
    prefill, block = bind_prompt_attention(request, stored), _block(codec)

    def decode(q: Tensor, batch: StepBatch, out: Tensor) -> None:
        num_tokens, table = q.shape[0], batch.page_table
        parts = num_parts(table.shape[1], block)
        count = num_tokens * heads * parts
        sums = shared("attention_sums", count * width, torch.float32, q.device)
        tops = shared("attention_tops", 2 * count, torch.float32, q.device)
        tokens = _tokens(group, -(-num_tokens // batch.num_rows))
        eights = -(-tokens * group // COLUMNS)
        shares = -(-eights // MOST_PRODUCTS)
        programs = -(-num_tokens // (tokens * batch.num_rows))
        rows = num_tokens if tokens == 1 else batch.num_rows * programs
        products = -(-eights // shares)
        stages = _stages(
            rows * kv_heads * shares * parts, products, codec, wide, num_processors(q.device))
        attention.attend_part[rows, kv_heads * shares, parts](
            q, q.stride(0), sums, tops, *stored.pairs, *stored.strides, batch.positions,
            batch.token_row, batch.row_start, table, table.stride(0), width, scale, programs,
            codec, wide == width, heads, kv_heads, tokens, products, block, wide, stages,
            num_warps=WARPS, **OVERLAPPED,
        )
        attention.merge_parts[num_tokens, heads, -(-width // MERGED_WIDTH)](
            sums, tops, batch.positions, out, out.stride(0), heads, parts, width, block,
            power(parts, WARP), MERGED_WIDTH, num_warps=1, **OVERLAPPED,
        )

    def paged_attention(q: Tensor, batch: StepBatch, out: Tensor) -> Tensor:
        is_decode = q.shape[0] <= ROW_TOKENS * batch.num_rows
        (decode if is_decode else prefill)(q, batch, out)
        return out

    return paged_attention
