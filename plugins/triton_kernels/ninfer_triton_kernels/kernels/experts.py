"""The gated MLPs of experts, for few tokens.

A *pair* is a token and one of its experts, ``t * top_k + j``. Weights are banks of all experts; the
columns of the activations are pairs that share an expert, each the same bits in any company.
"""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.products import COLUMNS, gate
from ninfer_triton_kernels.kernels.stored import stored_product


@triton.jit(do_not_specialize=["num_pairs"])
def find_companies(ids, companies, num_pairs, PAIRS: tl.constexpr):
    """For each pair those that share its expert, ``[COLUMNS]``, -1 where there are none; all are -1
    if another pair has this one among its own. ``PAIRS`` are no fewer than all."""
    wait()
    release()
    pair, column, i = tl.program_id(0), tl.arange(0, COLUMNS), tl.arange(0, PAIRS)
    expert = tl.load(ids + pair, cache_modifier=".cg")
    every = tl.load(ids + i, mask=i < num_pairs, other=-1, cache_modifier=".cg")
    is_same = every == expert
    before = tl.sum((is_same & (i < pair)).to(tl.int32), 0)
    pairs = tl.full((COLUMNS,), -1, tl.int32)
    if before % COLUMNS == 0:
        rank = tl.where(is_same, tl.cumsum(is_same.to(tl.int32), 0) - 1 - before, -1)
        pairs = tl.max(tl.where(rank[None, :] == column[:, None], i[None, :], -1), 1)
    tl.store(companies + pair * COLUMNS + column, pairs)


@triton.jit
def company_of(pair, ids, companies, ALONE: tl.constexpr):
    """What `find_companies` gave for a pair, its expert, and whether it has a company of its own:
    else another program takes it. The pairs of one token are ``ALONE``."""
    column, leads = tl.arange(0, COLUMNS), True
    expert = tl.load(ids + pair, cache_modifier=".cg").to(tl.int64)
    if ALONE:
        pairs = tl.where(column == 0, pair, -1)
    else:
        pairs = tl.load(companies + pair * COLUMNS + column, cache_modifier=".cg")
        leads = tl.load(companies + pair * COLUMNS, cache_modifier=".cg") >= 0
    return pairs, expert, leads


@triton.jit
def store_rows(total, out, row, exists, width, BN: tl.constexpr):
    """Columns of a tile to rows of ``out``, of ``width`` columns."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    live = (n < width)[:, None] & exists[None, :]
    at = row.to(tl.int64)[None, :] * width + n[:, None]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["num_tokens"])
def gate_up_of_pairs(
    x, ids, companies, hidden, codes, high, scales, minimums, divisor, common, common_codes,
    common_high, common_scales, common_minimums, common_divisor, num_tokens, width, common_width,
    x_stride, BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr,
    HAS_MINIMUM: tl.constexpr, COMMON_BITS: tl.constexpr, COMMON_OFFSET: tl.constexpr,
    COMMON_GROUP: tl.constexpr, COMMON_MINIMUM: tl.constexpr, HAS_COMMON: tl.constexpr,
    LIMIT: tl.constexpr, TOP_K: tl.constexpr, ALONE: tl.constexpr, DEPTH: tl.constexpr,
    EVEN_K: tl.constexpr, BN: tl.constexpr, S: tl.constexpr, STAGES: tl.constexpr,
    COMMON_EVEN_K: tl.constexpr, COMMON_BN: tl.constexpr, COMMON_S: tl.constexpr,
    COMMON_STAGES: tl.constexpr,
):
    """``hidden[pair] = silu(gate x) * up x``, a pair for each of the grid's second axis; the first
    of that axis are of the expert that all tokens share, 8 tokens each."""
    groups = tl.cdiv(num_tokens, COLUMNS) if HAS_COMMON else 0
    pair = tl.program_id(1) - groups
    if pair >= 0:
        wait()
        release()
        pairs, expert, leads = company_of(pair, ids, companies, ALONE)
        if leads and tl.program_id(0) * (BN // 2) < width:
            total = stored_product(
                x, pairs // TOP_K, pairs >= 0, codes, high, scales, minimums, divisor,
                tl.program_id(0), expert, 2 * width, width, DEPTH, x_stride, BITS, OFFSET, GROUP,
                HAS_MINIMUM, True, False, EVEN_K, BN, S, STAGES)
            store_rows(gate(total, BN, LIMIT), hidden, pairs, pairs >= 0, width, BN // 2)
    elif HAS_COMMON:
        if COMMON_BITS == 16:  # others wait when their first weights are asked for
            wait()
        t = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        total = stored_product(
            x, t, t < num_tokens, common_codes, common_high, common_scales, common_minimums,
            common_divisor, tl.program_id(0), 0, 2 * common_width, common_width, DEPTH, x_stride,
            COMMON_BITS, COMMON_OFFSET, COMMON_GROUP, COMMON_MINIMUM, True, False, COMMON_EVEN_K,
            COMMON_BN, COMMON_S, COMMON_STAGES)
        release()
        store_rows(gate(total, COMMON_BN, LIMIT), common, t, t < num_tokens, common_width,
                   COMMON_BN // 2)


@triton.jit
def beside_experts(
    score, residual, t, i, width, score_stride, residual_stride, HAS_SCORE: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """Of columns ``i`` of a token the factor of the expert that all share, and the residual."""
    factor, rest = 1.0, tl.zeros(i.shape, tl.float32)
    if HAS_RESIDUAL:
        rest = tl.load(residual + t * residual_stride + i, mask=i < width, other=0.0,
                       cache_modifier=".cg").to(tl.float32)
    if HAS_SCORE:
        given = tl.load(score + t * score_stride, cache_modifier=".cg").to(tl.float32)
        factor = 1 / (1 + tl.exp(-given))
    return factor, rest


@triton.jit
def write_sum(
    parts, weights, factor, rest, out, t, i, num_pairs, width, out_stride,
    HAS_COMMON: tl.constexpr, TOP_K: tl.constexpr,
):
    """Columns ``i`` of a token: its experts in the order of their ranks, then the one that all
    share. ``parts`` are ``[pairs, width]``, behind them ``[tokens, width]`` of the shared one."""
    live, total = i < width, tl.zeros(i.shape, tl.float32)
    for j in tl.static_range(TOP_K):
        pair = t * TOP_K + j
        part = tl.load(parts + pair * width + i, mask=live, other=0.0, cache_modifier=".cg")
        total += part.to(tl.float32) * tl.load(weights + pair, cache_modifier=".cg")
    if HAS_COMMON:
        at = parts + (num_pairs + t) * width + i
        part = tl.load(at, mask=live, other=0.0, cache_modifier=".cg")
        total += factor * part.to(tl.float32)
    tl.store(out + t * out_stride + i, (total + rest).to(out.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["num_tokens"])
def down_of_pairs(
    hidden, ids, companies, parts, codes, high, scales, minimums, divisor, common, common_codes,
    common_high, common_scales, common_minimums, common_divisor, weights, score, residual, out,
    arrivals, num_tokens, width, score_stride, residual_stride, out_stride,
    BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr, HAS_MINIMUM: tl.constexpr,
    COMMON_BITS: tl.constexpr, COMMON_OFFSET: tl.constexpr, COMMON_GROUP: tl.constexpr,
    COMMON_MINIMUM: tl.constexpr, HAS_COMMON: tl.constexpr, TOP_K: tl.constexpr,
    ALONE: tl.constexpr, DEPTH: tl.constexpr, EVEN_K: tl.constexpr, BN: tl.constexpr,
    S: tl.constexpr, STAGES: tl.constexpr, COMMON_DEPTH: tl.constexpr, COMMON_EVEN_K: tl.constexpr,
    COMMON_BN: tl.constexpr, COMMON_S: tl.constexpr, COMMON_STAGES: tl.constexpr,
    HAS_SCORE: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
):
    """``parts[pair] = down hidden[pair]``, fp32, and behind all pairs those of the expert that all
    tokens share; the grid as of `gate_up_of_pairs`. Of one token the last program of a tile sums
    its experts up; ``arrivals`` are zeros before and after.

    Who was chosen, and its company, was written two launches before, and weights long before that:
    they are read while the launch before still runs.
    """
    groups = tl.cdiv(num_tokens, COLUMNS) if HAS_COMMON else 0
    num_pairs = num_tokens * TOP_K
    pair = tl.program_id(1) - groups
    if pair >= 0:
        pairs, expert, leads = company_of(pair, ids, companies, ALONE)
        if leads:
            if BITS == 16:
                wait()
            total = stored_product(
                hidden, pairs, pairs >= 0, codes, high, scales, minimums, divisor, tl.program_id(0),
                expert, width, width, DEPTH, DEPTH, BITS, OFFSET, GROUP, HAS_MINIMUM, False, False,
                EVEN_K, BN, S, STAGES)
            release()
            store_rows(total, parts, pairs, pairs >= 0, width, BN)
    elif HAS_COMMON:
        if COMMON_BITS == 16:
            wait()
        t = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        total = stored_product(
            common, t, t < num_tokens, common_codes, common_high, common_scales, common_minimums,
            common_divisor, tl.program_id(0), 0, width, width, COMMON_DEPTH, COMMON_DEPTH,
            COMMON_BITS, COMMON_OFFSET, COMMON_GROUP, COMMON_MINIMUM, False, False, COMMON_EVEN_K,
            COMMON_BN, COMMON_S, COMMON_STAGES)
        release()
        store_rows(total, parts, num_pairs + t, t < num_tokens, width, COMMON_BN)
    if ALONE:
        tile = tl.program_id(0)
        tl.debug_barrier()  # all threads' parts are written before one of them says so
        if tl.atomic_add(arrivals + tile, 1, sem="acq_rel") == tl.num_programs(1) - 1:
            tl.store(arrivals + tile, 0)
            i = tile * BN + tl.arange(0, BN)
            factor, rest = beside_experts(score, residual, 0, i, width, score_stride,
                                          residual_stride, HAS_SCORE, HAS_RESIDUAL)
            write_sum(parts, weights, factor, rest, out, 0, i, num_pairs, width, out_stride,
                      HAS_COMMON, TOP_K)


@triton.jit
def combine_pairs(
    parts, weights, score, residual, out, num_pairs, width, score_stride, residual_stride,
    out_stride, HAS_COMMON: tl.constexpr, HAS_SCORE: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    TOP_K: tl.constexpr, BLOCK: tl.constexpr,
):
    """`write_sum` for ``BLOCK`` columns of a token. All but the parts were written two launches
    before."""
    t = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    factor, rest = beside_experts(
        score, residual, t, i, width, score_stride, residual_stride, HAS_SCORE, HAS_RESIDUAL)
    wait()
    release()
    write_sum(parts, weights, factor, rest, out, t, i, num_pairs, width, out_stride, HAS_COMMON,
              TOP_K)
