"""The ops of sparse and latent attention."""

from __future__ import annotations

from collections.abc import Callable
from math import e, log2

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_core.ops.slot_rows import require_tail
from ninfer_core.state.step import ROW_TOKENS, StepBatch
from ninfer_core.state.views import PagedPlanes, SlotPlanes
from ninfer_triton_kernels.bindings.launching import IS_INTERPRETED, OVERLAPPED, power
from ninfer_triton_kernels.bindings.shared import shared
from ninfer_triton_kernels.kernels import heads, index_keys, selected_attention, selection

SCORED, SCORED_WARPS = 64, 4
"""Blocks that a program scores."""

RANKED, RANKED_WARPS = 8192, 16
"""Scores that a program looks at together."""

SCORE_BYTES = 256 << 20
"""Memory for the scores of some tokens."""

HEADS, STAGES = 16, 3
"""Of a program of attention: query heads; blocks that are loaded ahead, and the one in use."""

ATTENDED_BYTES = 32 << 10
"""Of keys and values that it looks at together: registers hold codes decoded, and shared memory
twice what is stored."""

PARTS = 64
"""Of what a token attends to, at most, where few tokens are asked for: one block of each on the way
of a program."""

MERGED_WIDTH, MERGE_WARPS = 64, 2
"""Of a program that merges parts: components of a head; warps."""

TOKENS, ROWS, DEPTH = 16, 64, 64
"""Tile of a product for a head."""

Append = Callable[[Tensor, Tensor, StepBatch], None]


class _Plane:
    """A plane as kernels take it: codes, scales, and what lies between pages of each."""

    def __init__(self, planes: PagedPlanes, name: str) -> None:
        stored = planes.planes[name]
        codes = stored["values"] if "values" in stored else stored["codes"]
        scales = stored.get("scales", codes)
        self.tensors, self.strides = (codes, scales), (codes.stride(0), scales.stride(0))
        self.per_page = codes.shape[1]


def bind_key_append(
    request: KernelRequest, planes: PagedPlanes
) -> Callable[[Tensor, StepBatch], None]:
    count, width = request.sizes["num_kv_heads"], request.sizes["head_dim"]
    plane = _Plane(planes, "key")

    def key_append(key: Tensor, batch: StepBatch) -> None:
        table = batch.page_table
        heads.key_append[key.shape[0], count](
            key, key.stride(0), *plane.tensors, *plane.strides, batch.positions, batch.token_row,
            table, table.stride(0), count, width, request.kv_codec, power(width), num_warps=1,
            **OVERLAPPED,
        )

    return key_append


def bind_head_projection(
    request: KernelRequest, weight: Weight
) -> Callable[[Tensor, Tensor], Tensor]:
    """Of what is not stored in bf16 there is a copy in it."""
    count, (height, depth) = request.sizes["num_heads"], weight.info.shape
    rows = height // count
    is_plain = weight.info.format.name == "bf16"
    matrices = weight.planes["codes"] if is_plain else weight.dense().bfloat16()

    def head_projection(x: Tensor, out: Tensor) -> Tensor:
        grid = count, -(-rows // ROWS), -(-x.shape[0] // TOKENS)
        heads.head_projection[grid](
            x, matrices, out, x.stride(0), out.stride(0), x.shape[0], rows, depth, TOKENS, ROWS,
            DEPTH, num_warps=4, **OVERLAPPED,
        )
        return out

    return head_projection


def bind_mean_index_append(
    request: KernelRequest, planes: PagedPlanes, tail: SlotPlanes, cos: Tensor, sin: Tensor,
    axes: Tensor | None, query_norm: Tensor, key_norm: Tensor,
) -> Append:
    require_tail(request, tail)
    sizes, plane, columns = request.sizes, _Plane(planes, "index_key"), tail.committed
    count, width = sizes["num_heads"], sizes["head_dim"]

    def mean_index_append(q: Tensor, k: Tensor, batch: StepBatch) -> None:
        table, turns = batch.page_table, batch.rope_positions
        index_keys.mean_index_append[q.shape[0], count + 1](
            q, k, q.stride(0), k.stride(0), cos, sin, cos if axes is None else axes, query_norm,
            key_norm, columns, columns.stride(0), *plane.tensors, *plane.strides, batch.positions,
            turns, turns.stride(0), batch.token_row, batch.row_start, batch.slots, table,
            table.stride(0), count, width, sizes["rotary_dim"] // 2, sizes["eps"],
            float(sizes["unit_offset"]), sizes["block"], request.kv_codec, axes is not None,
            columns.shape[1], power(width), num_warps=1, **OVERLAPPED,
        )

    return mean_index_append


def bind_softmax_index_append(
    request: KernelRequest, planes: PagedPlanes, tail: SlotPlanes, norm: Tensor,
    norm_bias: Tensor, position_bias: Tensor,
) -> Append:
    require_tail(request, tail)
    sizes, plane, columns = request.sizes, _Plane(planes, "index_key"), tail.committed
    width, bias = sizes["head_dim"], position_bias.contiguous()

    def softmax_index_append(k: Tensor, s: Tensor, batch: StepBatch) -> None:
        table = batch.page_table
        index_keys.softmax_index_append[k.shape[0],](
            k, s, k.stride(0), s.stride(0), norm, norm_bias, bias, columns, columns.stride(0),
            *plane.tensors, *plane.strides, batch.positions, batch.token_row, batch.row_start,
            batch.slots, table, table.stride(0), width, sizes["eps"], sizes["block"],
            request.kv_codec, columns.shape[1], power(width), num_warps=1, **OVERLAPPED,
        )

    return softmax_index_append


def bind_index_select(
    request: KernelRequest, planes: PagedPlanes
) -> Callable[[Tensor, Tensor | None, StepBatch, Tensor], Tensor]:
    sizes, plane = request.sizes, _Plane(planes, "index_key")
    count, width, block, budget = (
        sizes[name] for name in ("num_heads", "head_dim", "block", "budget")
    )

    def some(
        q: Tensor, weights: Tensor, batch: StepBatch, part: slice, most: int, blocks: Tensor,
        is_weighed: bool,
    ) -> None:
        num_tokens, table = q.shape[0], batch.page_table
        tokens = batch.positions[part], batch.token_row[part]
        scores = shared("block_scores", num_tokens * most, torch.float32, q.device)
        selection.score_blocks[num_tokens, -(-most // SCORED)](
            q, weights, q.stride(0), weights.stride(0), *plane.tensors, *plane.strides, *tokens,
            table, table.stride(0), scores, most, count, width, plane.per_page, block,
            sizes["scale"], budget, request.kv_codec, is_weighed, power(count), SCORED,
            power(width), num_warps=SCORED_WARPS, **OVERLAPPED,
        )
        selection.choose_blocks[num_tokens,](
            scores, most, tokens[0], blocks, blocks.stride(0), block, budget,
            min(RANKED, power(most)), num_warps=1 if IS_INTERPRETED else RANKED_WARPS,
            **OVERLAPPED,
        )

    def index_select(
        q: Tensor, weights: Tensor | None, batch: StepBatch, blocks: Tensor
    ) -> Tensor:
        most = batch.page_table.shape[1] * plane.per_page
        step, num_tokens = max(1, SCORE_BYTES // (4 * most)), q.shape[0]
        for first in range(0, num_tokens, step):
            part = slice(first, min(first + step, num_tokens))
            own = q if weights is None else weights
            some(q[part], own[part], batch, part, most, blocks[part], weights is not None)
        return blocks

    return index_select


def bind_selected_attention(
    request: KernelRequest, planes: PagedPlanes
) -> Callable[[Tensor, Tensor, StepBatch, Tensor], Tensor]:
    sizes, is_shared = request.sizes, "value" not in planes.planes
    keys, values = (_Plane(planes, "key" if is_shared else name) for name in ("key", "value"))
    width, kv_heads, block = sizes["head_dim"], sizes["num_kv_heads"], sizes["block"]
    num_heads, group = sizes["num_heads"], sizes["num_heads"] // kv_heads
    entry = 2 if is_shared and request.kv_codec == "bf16" else 4  # bytes of a component
    seen = max(16, min(64, ATTENDED_BYTES // (entry * power(width))))

    def attend(q: Tensor, blocks: Tensor, batch: StepBatch, out: Tensor) -> Tensor:
        num_tokens, num_blocks, table = q.shape[0], blocks.shape[1], batch.page_table
        most = num_blocks * block + block - 1  # tokens that one attends to
        is_parted = num_tokens <= ROW_TOKENS * batch.num_rows
        span = -(-most // (PARTS * seen)) * seen if is_parted else most
        parts = -(-most // span)
        sums = tops = out
        if is_parted:
            count = num_tokens * num_heads * parts
            sums = shared("attention_sums", count * width, torch.float32, q.device)
            tops = shared("attention_tops", count * 2, torch.float32, q.device)
        selected_attention.selected_attention[num_tokens, kv_heads * -(-group // HEADS), parts](
            q, q.stride(0), blocks, blocks.stride(0), out, out.stride(0), sums, tops, *keys.tensors,
            *values.tensors, *keys.strides, *values.strides, batch.positions, batch.token_row,
            table, table.stride(0), kv_heads, width, group, num_blocks, sizes["scale"] * log2(e),
            block, span, request.kv_codec, is_shared, is_parted,
            power(num_blocks), HEADS, seen, power(width), STAGES, num_warps=4, **OVERLAPPED,
        )
        if is_parted:
            selected_attention.merge_chosen[num_tokens, num_heads, -(-width // MERGED_WIDTH)](
                sums, tops, out, out.stride(0), num_heads, width, parts, power(parts), MERGED_WIDTH,
                num_warps=MERGE_WARPS, **OVERLAPPED,
            )
        return out

    return attend
