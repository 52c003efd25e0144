"""The best blocks of each token: scores of all, and the largest of them."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.cache import as_operand
from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.places import load_places
from ninfer_triton_kernels.kernels.products import multiply

LOWEST = tl.constexpr(-2147483648)


@triton.jit
def score_blocks(
    q, weights, q_stride, weight_stride, codes, key_scales, page_stride, scale_stride, positions,
    token_row, page_table, table_stride, scores, most, num_heads, width, per_page, block, scale,
    budget, CODEC: tl.constexpr, WEIGHED: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``N`` blocks for one token: fp32 ``scores`` ``[T, most]``, for tokens that have a choice."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * N + tl.arange(0, N)
    count = (tl.load(positions + t).to(tl.int32) + 1) // block
    if (count > budget) & (tl.program_id(1) * N < count):
        live = n < count
        m = tl.arange(0, M)
        i = tl.arange(0, BLOCK)
        exists = m < num_heads
        at = m[:, None] * width + i[None, :]
        queries = tl.load(
            q + t * q_stride + at, mask=exists[:, None] & (i < width)[None, :], other=0.0)
        table = page_table + tl.load(token_row + t) * table_stride
        page = tl.load(table + n // per_page, mask=live, other=0)
        keys, factors = load_places(
            codes, key_scales, page, n % per_page, page_stride, scale_stride, 0, 1, live, width,
            CODEC, N, BLOCK)
        zero = tl.zeros((M, N), tl.float32)
        each = multiply(queries, tl.trans(as_operand(keys, factors, CODEC)), zero) * scale
        if CODEC == "fp8":
            each *= factors[None, :]
        each = tl.maximum(each, 0.0, propagate_nan=tl.PropagateNan.ALL)
        if WEIGHED:
            each *= tl.load(weights + t * weight_stride + m, mask=exists, other=0.0)[:, None]
        total = tl.sum(each, 0)
        total = tl.where(total == 0.0, 0.0, total)  # zeros of either sign are equal
        tl.store(scores + t * most + n, total, mask=live)


@triton.jit
def rank_of(scores, n, count):
    """Integers in the order of fp32, the lowest where there is none; NaN is high."""
    bits = tl.load(scores + n, mask=n < count, other=0.0).to(tl.int32, bitcast=True)
    rank = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    rank = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FFFFFFF, rank)
    return tl.where(n < count, rank, LOWEST)


@triton.jit
def num_at_least(scores, least, count, N: tl.constexpr):
    total = tl.sum(tl.zeros((N,), tl.int32), 0)
    for first in range(0, count, N):
        n = first + tl.arange(0, N)
        total += tl.sum(((rank_of(scores, n, count) >= least) & (n < count)).to(tl.int32), 0)
    return total


@triton.jit
def choose_blocks(
    scores, most, positions, blocks, blocks_stride, block, budget, N: tl.constexpr,
):
    """One token: the ``budget`` largest scores, of equal ones the first, in ascending order."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    count = (tl.load(positions + t).to(tl.int32) + 1) // block
    to = blocks + t * blocks_stride
    if count <= budget:
        for first in range(0, budget, N):
            n = first + tl.arange(0, N)
            tl.store(to + n, tl.where(n < count, n, -1), mask=n < budget)
    else:
        own = scores + t * most
        enough = num_at_least(own, 0, count, N) >= budget
        least = tl.where(enough, 0, LOWEST)  # the largest that `budget` scores reach, bit by bit
        for step in range(0, 31):
            higher = least + (1 << (30 - step))
            enough = num_at_least(own, higher, count, N) >= budget
            least = tl.where(enough, higher, least)
        room = budget - num_at_least(own, least + 1, count, N) if least < 0x7FFFFFFF else budget
        seen = tl.sum(tl.zeros((N,), tl.int32), 0)
        written = seen
        for first in range(0, count, N):
            n = first + tl.arange(0, N)
            rank = rank_of(own, n, count)
            equal = ((rank == least) & (n < count)).to(tl.int32)
            taken = (rank > least) | ((equal != 0) & (seen + tl.cumsum(equal, 0) <= room))
            place = written + tl.cumsum(taken.to(tl.int32), 0) - 1
            tl.store(to + place, n, mask=taken)
            seen += tl.sum(equal, 0)
            written += tl.sum(taken.to(tl.int32), 0)
