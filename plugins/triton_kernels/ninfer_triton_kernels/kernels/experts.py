"""The gated MLPs of experts: each pair by itself, or pairs grouped by expert.

A *pair* is a token and one of its experts, ``t * top_k + j``. Weights are banks of all experts; the
columns of the activations are one pair's, or those of as many that share an expert.
"""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.dense import dense_totals
from ninfer_triton_kernels.kernels.fragments import tiles_of
from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.products import COLUMNS, gate, stored_rows
from ninfer_triton_kernels.kernels.tiled import count_steps, tiled_totals


@triton.jit
def expert_product(
    x, t, exists, codes, high, scales, minimums, divisor, expert, rows_each, width, depth, x_stride,
    BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr, HAS_MINIMUM: tl.constexpr,
    GATED: tl.constexpr, EVEN_K: tl.constexpr, BN: tl.constexpr, S: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Rows of one expert of a bank, ``rows_each`` for each, by rows ``t`` of the activations: fp32
    ``[BN, len(t)]``; ``BITS`` 16 is a bank of bf16."""
    block = tl.program_id(0)
    if BITS == 16:
        rows, is_row = stored_rows(block, width, BN, GATED)
        total = dense_totals(
            x, t, exists, codes, rows + expert * rows_each, is_row, 0, tl.cdiv(depth, S * 64),
            depth, x_stride, False, EVEN_K, BN, 64, S, STAGES)
    else:
        tile, is_tile = tiles_of(block, width, BN, GATED)
        total = tiled_totals(
            x, t, exists, codes, high, scales, minimums, divisor,
            tile + expert * (rows_each // 16), is_tile, 0, count_steps(depth, BITS, S), depth,
            x_stride, BITS, OFFSET, GROUP, HAS_MINIMUM, EVEN_K, BN, S, STAGES)
    return total


@triton.jit
def store_pairs(total, out, pair, is_pair, width, BN: tl.constexpr):
    """Columns of a tile to rows ``pair`` of ``out`` ``[pairs, width]``."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    live = (n < width)[:, None] & is_pair[None, :]
    at = pair.to(tl.int64)[None, :] * width + n[:, None]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=live)


@triton.jit
def gate_up_of_pair(
    x, ids, hidden, codes, high, scales, minimums, divisor, width, depth, x_stride,
    BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr, HAS_MINIMUM: tl.constexpr,
    TOP_K: tl.constexpr, EVEN_K: tl.constexpr, BN: tl.constexpr, S: tl.constexpr,
    STAGES: tl.constexpr,
):
    """``hidden[pair] = silu(gate x) * up x``."""
    wait()
    release()
    pair = tl.program_id(1)
    expert = tl.load(ids + pair).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    total = expert_product(
        x, column * 0 + pair // TOP_K, column == 0, codes, high, scales, minimums, divisor, expert,
        2 * width, width, depth, x_stride, BITS, OFFSET, GROUP, HAS_MINIMUM, True, EVEN_K, BN, S,
        STAGES)
    store_pairs(gate(total, BN), hidden, column * 0 + pair, column == 0, width, BN // 2)


@triton.jit
def down_of_pair(
    hidden, ids, out, codes, high, scales, minimums, divisor, width, depth, BITS: tl.constexpr,
    OFFSET: tl.constexpr, GROUP: tl.constexpr, HAS_MINIMUM: tl.constexpr, EVEN_K: tl.constexpr,
    BN: tl.constexpr, S: tl.constexpr, STAGES: tl.constexpr,
):
    """fp32 ``out[pair] = down hidden[pair]``."""
    wait()
    release()
    pair = tl.program_id(1)
    expert = tl.load(ids + pair).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    pairs = column * 0 + pair
    total = expert_product(
        hidden, pairs, column == 0, codes, high, scales, minimums, divisor, expert, width, width,
        depth, depth, BITS, OFFSET, GROUP, HAS_MINIMUM, False, EVEN_K, BN, S, STAGES)
    store_pairs(total, out, pairs, column == 0, width, BN)


@triton.jit
def pairs_of(group, order, experts, bounds, M: tl.constexpr):
    """Expert of a group, its pairs ``[M]`` and whether they exist; bounds are ``[2, groups]``."""
    begin = tl.load(bounds + group)
    end = tl.load(bounds + tl.num_programs(1) + group)
    at = begin + tl.arange(0, M)
    pairs = tl.load(order + at, mask=at < end, other=0)
    return tl.load(experts + group).to(tl.int64), pairs, at < end


@triton.jit
def gate_up_of_group(
    x, order, experts, bounds, hidden, codes, high, scales, minimums, divisor, width, depth,
    x_stride, BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr,
    HAS_MINIMUM: tl.constexpr, TOP_K: tl.constexpr, M: tl.constexpr, EVEN_K: tl.constexpr,
    BN: tl.constexpr, S: tl.constexpr, STAGES: tl.constexpr,
):
    """As `gate_up_of_pair`, for the pairs ``order[bounds[0, g] : bounds[1, g]]``, at most ``M``, of
    expert ``experts[g]``."""
    wait()
    group = tl.program_id(1)
    if tl.load(bounds + group) < tl.load(bounds + tl.num_programs(1) + group):
        expert, pairs, exists = pairs_of(group, order, experts, bounds, M)
        total = expert_product(
            x, pairs // TOP_K, exists, codes, high, scales, minimums, divisor, expert, 2 * width,
            width, depth, x_stride, BITS, OFFSET, GROUP, HAS_MINIMUM, True, EVEN_K, BN, S, STAGES)
        store_pairs(gate(total, BN), hidden, pairs, exists, width, BN // 2)


@triton.jit
def down_of_group(
    hidden, order, experts, bounds, out, codes, high, scales, minimums, divisor, width, depth,
    BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr, HAS_MINIMUM: tl.constexpr,
    M: tl.constexpr, EVEN_K: tl.constexpr, BN: tl.constexpr, S: tl.constexpr, STAGES: tl.constexpr,
):
    """As `down_of_pair`, pairs as in `gate_up_of_group`."""
    wait()
    group = tl.program_id(1)
    if tl.load(bounds + group) < tl.load(bounds + tl.num_programs(1) + group):
        expert, pairs, exists = pairs_of(group, order, experts, bounds, M)
        total = expert_product(
            hidden, pairs, exists, codes, high, scales, minimums, divisor, expert, width, width,
            depth, depth, BITS, OFFSET, GROUP, HAS_MINIMUM, False, EVEN_K, BN, S, STAGES)
        store_pairs(total, out, pairs, exists, width, BN)


@triton.jit
def combine_pairs(
    parts, weights, residual, out, width, residual_stride, out_stride, HAS_RESIDUAL: tl.constexpr,
    TOP_K: tl.constexpr, BLOCK: tl.constexpr,
):
    """The experts of a token in the order of their ranks; ``parts`` are fp32 ``[pairs, width]``."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < width
    total = tl.zeros((BLOCK,), tl.float32)
    for j in range(TOP_K):
        pair = t * TOP_K + j
        total += tl.load(parts + pair * width + i, mask=live, other=0.0) * tl.load(weights + pair)
    if HAS_RESIDUAL:
        total += tl.load(residual + t * residual_stride + i, mask=live, other=0.0).to(tl.float32)
    tl.store(out + t * out_stride + i, total.to(out.dtype.element_ty), mask=live)
