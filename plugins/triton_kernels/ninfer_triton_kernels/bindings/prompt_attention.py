"""Attention of steps that read prompts."""

from __future__ import annotations

from collections.abc import Callable
from math import e, log2

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.state.step import PAGE_TOKENS, StepBatch
from ninfer_triton_kernels.bindings.descriptors import HOPPER, swizzled
from ninfer_triton_kernels.bindings.launching import capability, num_processors, power
from ninfer_triton_kernels.bindings.planes import Planes
from ninfer_triton_kernels.bindings.shared import shared
from ninfer_triton_kernels.kernels import hopper_attention
from ninfer_triton_kernels.kernels.prompt_attention import (
    attend_segment,
    merge_shares,
    unpack_segment,
)
from ninfer_triton_kernels.kernels.warp_groups import WARPS

SEGMENT_BYTES = 128 << 20
"""Of keys and values in bf16."""

SUMS_BYTES = 64 << 20
"""Of what several programs have summed that share tiles; one alone may need more."""

MOST_PARTS, WAVES = 32, 3
"""Programs that share a tile at most, and how many a multiprocessor gets of those that do."""


def _tile(capability: int) -> tuple[int, int]:
    """Pairs of token and head, and tokens of the context at once, of a program: what fits the
    registers and the shared memory of the card."""
    return (64, 32) if capability >= 120 else (128, 64)


def _segment_tokens(num_pages: int, bytes_per_token: int) -> int:
    """Of a context of so many pages, how much is there at once; whole pages."""
    most = max(1, SEGMENT_BYTES // (PAGE_TOKENS * bytes_per_token))
    return PAGE_TOKENS * min(num_pages, most)


def _parts(num_tiles: int, processors: int, sums_bytes: int) -> int:
    """Programs that share a tile: the fewest that nearly make the most of all multiprocessors, each
    of which runs one at a time."""
    most = min(MOST_PARTS, WAVES * processors // num_tiles, SUMS_BYTES // sums_bytes)
    times = [-(-num_tiles * parts // processors) / parts for parts in range(1, max(1, most) + 1)]
    return next(n for n, time in enumerate(times, 1) if time <= 1.05 * min(times))


def bind_prompt_attention(
    request: KernelRequest, stored: Planes
) -> Callable[[Tensor, StepBatch, Tensor], None]:
    """`paged_attention` of rows of any number of tokens; the result goes to its last argument."""
    sizes, codec = request.sizes, request.kv_codec
    width, heads, kv_heads = sizes["head_dim"], sizes["num_heads"], sizes["num_kv_heads"]
    scale, group, block = sizes["scale"] * log2(e), heads // kv_heads, power(width)
    row_bytes = 2 * kv_heads * block * torch.bfloat16.itemsize

    def prompt_attention(q: Tensor, batch: StepBatch, out: Tensor) -> None:
        num_tokens, num_rows, table = q.shape[0], batch.num_rows, batch.page_table
        num_pages = batch.num_pages or table.shape[1]
        segment = _segment_tokens(num_pages, num_rows * row_bytes)
        shape = num_rows * kv_heads * segment, block
        memory = shared("unpacked", 2 * shape[0] * block, torch.bfloat16, q.device)
        keys, values = memory[: 2 * shape[0] * block].view(2, *shape)
        card = capability(q.device)
        pairs, tokens = _tile(card)
        tiles, count = -(-num_tokens * group // pairs), num_tokens * heads
        parts = _parts(
            num_rows * kv_heads * tiles, num_processors(q.device), 4 * count * (width + 2))
        kept = parts * count if parts > 1 or segment < num_pages * PAGE_TOKENS else 0
        sums = shared("prompt_sums", kept * width, torch.float32, q.device)
        tops = shared("prompt_tops", 2 * kept, torch.float32, q.device)
        attend, blocks, warps = attend_segment, [keys, values], 8
        if card == HOPPER:
            attend, warps = hopper_attention.attend_segment, WARPS.value
            blocks = [swizzled(each, [tokens, block]) for each in blocks]
        places = batch.positions, batch.row_start
        for begin in range(0, num_pages * PAGE_TOKENS, segment):
            unpack_segment[segment // PAGE_TOKENS, kv_heads, num_rows](
                keys, values, *stored.tensors, *stored.strides, *places, table, table.stride(0),
                begin, segment, kv_heads, width, codec, block == width, block, num_warps=8,
            )
            attend[num_rows, kv_heads, tiles * parts](
                q, q.stride(0), out, out.stride(0), *blocks, sums, tops, *places, begin, segment,
                parts, kv_heads, width, scale, group, pairs, tokens, block, num_warps=warps,
            )
        if parts > 1:
            merge_shares[num_tokens, heads](
                sums, tops, out, out.stride(0), parts, heads, width, block, num_warps=1,
            )

    return prompt_attention
