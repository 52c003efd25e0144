"""The gated MLPs of experts: token by token, or pairs grouped by expert.

A *pair* is a token and one of its experts, ``t * top_k + j``. Weights are banks of all experts; the
columns of the activations are one pair's, or those of as many that share an expert.
"""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.overlap import release, release_if, wait
from ninfer_triton_kernels.kernels.products import (
    COLUMNS,
    gate,
    load_columns,
    multiply,
)
from ninfer_triton_kernels.kernels.stored import stored_product
from ninfer_triton_kernels.kernels.tiled import fetch_step, multiply_step, row_factors


@triton.jit
def store_pairs(total, out, pair, is_pair, width, BN: tl.constexpr):
    """Columns of a tile to rows ``pair`` of ``out`` ``[pairs, width]``."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    live = (n < width)[:, None] & is_pair[None, :]
    at = pair.to(tl.int64)[None, :] * width + n[:, None]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=live)


@triton.jit
def gate_up_of_pairs(
    x, ids, hidden, codes, high, scales, minimums, divisor, common, common_codes,
    common_high, common_scales, common_minimums, common_divisor, num_tokens, width, common_width,
    x_stride, BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr,
    HAS_MINIMUM: tl.constexpr, COMMON_BITS: tl.constexpr, COMMON_OFFSET: tl.constexpr,
    COMMON_GROUP: tl.constexpr, COMMON_MINIMUM: tl.constexpr, HAS_COMMON: tl.constexpr,
    LIMIT: tl.constexpr, TOP_K: tl.constexpr, DEPTH: tl.constexpr, EVEN_K: tl.constexpr,
    BN: tl.constexpr, S: tl.constexpr, STAGES: tl.constexpr, COMMON_EVEN_K: tl.constexpr,
    COMMON_BN: tl.constexpr, COMMON_S: tl.constexpr, COMMON_STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """``hidden[pair] = silu(gate x) * up x``, a pair for each of the grid's second axis; the first
    of that axis are of the expert that all tokens share, 8 tokens each."""
    groups = tl.cdiv(num_tokens, COLUMNS) if HAS_COMMON else 0
    pair = tl.program_id(1) - groups
    column = tl.arange(0, COLUMNS)
    if pair >= 0:
        wait()
        release()
        if tl.program_id(0) * (BN // 2) < width:
            expert = tl.load(ids + pair).to(tl.int64)
            total = stored_product(
                x, column * 0 + pair // TOP_K, column == 0, codes, high, scales, minimums, divisor,
                tl.program_id(0), expert, 2 * width, width, DEPTH, x_stride, BITS, OFFSET, GROUP,
                HAS_MINIMUM, True, False, EVEN_K, BN, S, STAGES)
            store_pairs(gate(total, BN, LIMIT), hidden, column * 0 + pair, column == 0, width,
                        BN // 2)
    elif HAS_COMMON:
        if COMMON_BITS == 16:  # others wait when their first weights are asked for
            wait()
            release_if(EARLY)
        t = tl.program_id(1) * COLUMNS + column
        total = stored_product(
            x, t, t < num_tokens, common_codes, common_high, common_scales, common_minimums,
            common_divisor, tl.program_id(0), 0, 2 * common_width, common_width, DEPTH, x_stride,
            COMMON_BITS, COMMON_OFFSET, COMMON_GROUP, COMMON_MINIMUM, True, False, COMMON_EVEN_K,
            COMMON_BN, COMMON_S, COMMON_STAGES, EARLY)
        release_if(not EARLY)
        store_pairs(gate(total, COMMON_BN, LIMIT), common, t, t < num_tokens, common_width,
                    COMMON_BN // 2)


@triton.jit
def fetch(
    codes, high, scales, divisor, expert, block, width, BITS: tl.constexpr, OFFSET: tl.constexpr,
    GROUP: tl.constexpr, DEPTH: tl.constexpr, S: tl.constexpr, BN: tl.constexpr,
):
    """What blocks ``[S]`` of columns are of a program's rows of matrices ``expert`` ``[S]`` of a
    bank, as `fetch_step` gives it (of bf16: values), and what rows are multiplied with."""
    tiles = tl.cdiv(width, 16)
    if BITS == 16:
        n = tl.program_id(0) * BN + tl.arange(0, BN)
        k = (block[:, None] * 64 + tl.arange(0, 64)[None, :])[:, None, :]
        live = (n < width)[None, :, None] & (k < DEPTH)
        rows = (expert[:, None] * width + n[None, :])[:, :, None]
        step = tl.load(codes + rows * DEPTH + k, mask=live, other=0.0)
        factors = tl.full((S, BN), 1.0, tl.float32)
    else:
        tile = tl.program_id(0) * (BN // 16) + tl.arange(0, BN // 16)
        tile = (expert * tiles)[:, None] + tl.minimum(tile, tiles - 1)[None, :]
        BLOCKS: tl.constexpr = triton.cdiv(DEPTH, 32 if BITS == 8 else 64)
        step = fetch_step(codes, high, scales, scales, tile, block, BLOCKS, BITS, GROUP, False)
        factors = row_factors(scales, divisor, tile, BITS, OFFSET, GROUP)
    return step, factors


@triton.jit
def multiply_fetched(
    x, fetched, block, BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr,
    DEPTH: tl.constexpr, EVEN_K: tl.constexpr, S: tl.constexpr, BN: tl.constexpr,
):
    """What was fetched times one row of activations for each block, from pointers ``[S, 1, 1]``:
    fp32 ``[S, BN, COLUMNS]``, the first column."""
    step, factors = fetched
    t = tl.arange(0, COLUMNS)
    zero = tl.zeros((S, BN, COLUMNS), tl.float32)
    if BITS == 16:
        k = block[:, None] * 64 + tl.arange(0, 64)[None, :]
        total = multiply(step, load_columns(x, t, t == 0, k, 0, DEPTH, EVEN_K), zero)
    else:
        BLOCKS: tl.constexpr = triton.cdiv(DEPTH, 32 if BITS == 8 else 64)
        total = multiply_step(
            zero, step, x[None, None, :, :, :], t, t == 0, block, BLOCKS, 0, DEPTH, BITS, OFFSET,
            GROUP, False, EVEN_K, S, BN)
        total *= factors[:, :, None]
    return total


@triton.jit
def chosen(ids, weights, t, rank, TOP_K: tl.constexpr):
    """Pairs of a token by rank, their experts and shares, which are zero behind the last."""
    pair = t * TOP_K + tl.minimum(rank, TOP_K - 1)
    expert = tl.load(ids + pair, cache_modifier=".cg").to(tl.int64)
    share = tl.load(weights + pair, cache_modifier=".cg")
    return pair, expert, tl.where(rank < TOP_K, share, 0.0)


@triton.jit
def down_of_token(
    hidden, ids, weights, codes, high, scales, divisor, common, score, common_codes, common_high,
    common_scales, common_divisor, residual, out, width, score_stride, residual_stride, out_stride,
    BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr, COMMON_BITS: tl.constexpr,
    COMMON_OFFSET: tl.constexpr, COMMON_GROUP: tl.constexpr, HAS_COMMON: tl.constexpr,
    HAS_SCORE: tl.constexpr, HAS_RESIDUAL: tl.constexpr, TOP_K: tl.constexpr, DEPTH: tl.constexpr,
    COMMON_DEPTH: tl.constexpr, EVEN_K: tl.constexpr, COMMON_EVEN_K: tl.constexpr,
    RANKS: tl.constexpr, BN: tl.constexpr, S: tl.constexpr, COMMON_S: tl.constexpr,
):
    """``BN`` rows of the experts of a token, ``RANKS`` of them at once with ``S`` blocks of columns
    each, which are all there are; the common expert is scaled by the sigmoid of its score.

    Who was chosen was written two launches before, and weights long before that: they are read
    while the launch before still runs.
    """
    t = tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    total = tl.zeros((BN, COLUMNS), tl.float32)
    s = tl.arange(0, RANKS * S)
    common_block = tl.arange(0, COMMON_S)
    if HAS_COMMON:
        of_common = fetch(
            common_codes, common_high, common_scales, common_divisor,
            (common_block * 0).to(tl.int64), common_block, width, COMMON_BITS, COMMON_OFFSET,
            COMMON_GROUP, COMMON_DEPTH, COMMON_S, BN)
    pair, expert, share = chosen(ids, weights, t, s // S, TOP_K)
    coming = fetch(codes, high, scales, divisor, expert, s % S, width, BITS, OFFSET, GROUP, DEPTH,
                   RANKS * S, BN)
    for first in tl.static_range(0, TOP_K, RANKS):
        own, own_pair, own_share = coming, pair, share
        if first + RANKS < TOP_K:
            pair, expert, share = chosen(ids, weights, t, first + RANKS + s // S, TOP_K)
            coming = fetch(codes, high, scales, divisor, expert, s % S, width, BITS, OFFSET, GROUP,
                           DEPTH, RANKS * S, BN)
        if first == 0:
            wait()
            release()
        part = multiply_fetched(
            hidden + own_pair[:, None, None] * DEPTH, own, s % S, BITS, OFFSET, GROUP, DEPTH,
            EVEN_K, RANKS * S, BN)
        total += tl.sum(part * own_share[:, None, None], 0)
    if HAS_COMMON:
        factor = tl.load(score + t * score_stride).to(tl.float32) if HAS_SCORE else 0.0
        factor = 1 / (1 + tl.exp(-factor)) if HAS_SCORE else 1.0
        part = multiply_fetched(
            common + (common_block * 0 + t)[:, None, None] * COMMON_DEPTH, of_common,
            common_block, COMMON_BITS, COMMON_OFFSET, COMMON_GROUP, COMMON_DEPTH, COMMON_EVEN_K,
            COMMON_S, BN)
        total += factor * tl.sum(part, 0)
    n = tl.program_id(0) * BN + tl.arange(0, BN)[:, None]
    live = (n < width) & (column == 0)[None, :]
    at = (column * 0 + t).to(tl.int64)[None, :]
    if HAS_RESIDUAL:
        rest = tl.load(residual + at * residual_stride + n, mask=live, other=0.0)
        total += rest.to(tl.float32)
    tl.store(out + at * out_stride + n, total.to(out.dtype.element_ty), mask=live)


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
    HAS_MINIMUM: tl.constexpr, LIMIT: tl.constexpr, TOP_K: tl.constexpr, M: tl.constexpr,
    EVEN_K: tl.constexpr, BN: tl.constexpr, S: tl.constexpr, STAGES: tl.constexpr,
):
    """As `gate_up_of_pairs`, for the pairs ``order[bounds[0, g] : bounds[1, g]]``, at most ``M``,
    of expert ``experts[g]``."""
    wait()
    group = tl.program_id(1)
    if tl.load(bounds + group) < tl.load(bounds + tl.num_programs(1) + group):
        expert, pairs, exists = pairs_of(group, order, experts, bounds, M)
        total = stored_product(
            x, pairs // TOP_K, exists, codes, high, scales, minimums, divisor, tl.program_id(0),
            expert, 2 * width, width, depth, x_stride, BITS, OFFSET, GROUP, HAS_MINIMUM, True,
            False, EVEN_K, BN, S, STAGES)
        store_pairs(gate(total, BN, LIMIT), hidden, pairs, exists, width, BN // 2)


@triton.jit
def down_of_group(
    hidden, order, experts, bounds, out, codes, high, scales, minimums, divisor, width, depth,
    BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr, HAS_MINIMUM: tl.constexpr,
    M: tl.constexpr, EVEN_K: tl.constexpr, BN: tl.constexpr, S: tl.constexpr, STAGES: tl.constexpr,
):
    """fp32 ``out[pair] = down hidden[pair]``, pairs as in `gate_up_of_group`."""
    wait()
    group = tl.program_id(1)
    if tl.load(bounds + group) < tl.load(bounds + tl.num_programs(1) + group):
        expert, pairs, exists = pairs_of(group, order, experts, bounds, M)
        total = stored_product(
            hidden, pairs, exists, codes, high, scales, minimums, divisor, tl.program_id(0), expert,
            width, width, depth, depth, BITS, OFFSET, GROUP, HAS_MINIMUM, False, False, EVEN_K, BN,
            S, STAGES)
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
