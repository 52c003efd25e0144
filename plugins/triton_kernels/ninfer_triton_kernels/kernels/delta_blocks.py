"""The gated delta rule by blocks of 64 tokens: few matrix products instead of a long recurrence.

The system of the corrections of a block (Yang, Kautz and Hatamizadeh, 2024, section 3.3) is
inverted for all blocks at once, then one program for some value columns of a head walks over its
blocks. Keys and queries enter products as they come, in bf16, which is exact: their lengths are
factors of rows. What is fp32 enters as the sum of two bf16, so that products have 16 bits.

No product here is one of a warp group, which Triton would take on Hopper for 64 rows and four
warps, and of which the assembler makes wrong code in chains: `hopper_delta` is for that card. So
the walk has fewer rows, and the preparation fewer warps.
"""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.delta_rule import BLOCK, blocks_of, softplus
from ninfer_triton_kernels.kernels.products import multiply

SOLVED = tl.constexpr(16)
"""Rows of the parts of a system that are solved row by row."""


FACTORS = tl.constexpr(5)
"""Vectors that are kept of a block and a head, see `prepare_block`."""


@triton.jit
def halves(x):
    """fp32 as the sum of two bf16, to 2^-17 of it."""
    high = x.to(tl.bfloat16)
    return high, (x - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def multiply_fine(a, b, total):
    """``total + a b`` of fp32, to 2^-16 of the factors."""
    a_high, a_low = halves(a)
    b_high, b_low = halves(b)
    return multiply(a_high, b_high, multiply(a_high, b_low, multiply(a_low, b_high, total)))


@triton.jit
def store_halves(base, place, x):
    """fp32 ``[64, 64]`` as it enters products: one matrix of bf16 behind the other."""
    high, low = halves(x)
    tl.store(base + place, high)
    tl.store(base + place + BLOCK * BLOCK, low)


@triton.jit
def multiply_stored(a, base, place, total):
    """``total + a B^T`` of what `store_halves` stored of B."""
    a_high, a_low = halves(a)
    high = tl.trans(tl.load(base + place))
    low = tl.trans(tl.load(base + place + BLOCK * BLOCK))
    return multiply(a_high, high, multiply(a_high, low, multiply(a_low, high, total)))


@triton.jit
def multiply_exact(high, low, b, total):
    """``total + a b`` of bf16 ``b``, and ``a`` as `halves` gives it."""
    return multiply(high, b, multiply(low, b, total))


@triton.jit
def inverse_of_parts(system):
    """``(1 + A)^-1`` of the parts of 16 rows on the diagonal of a strictly lower triangular A
    ``[64, 64]``, zeros elsewhere."""
    PARTS: tl.constexpr = BLOCK // SOLVED
    part = tl.arange(0, PARTS)
    is_own = (part[:, None] == part[None, :])[:, None, :, None]
    parts = tl.reshape(system, (PARTS, SOLVED, PARTS, SOLVED))
    solved = -tl.sum(tl.where(is_own, parts, 0.0), 2)
    row = tl.arange(0, SOLVED)[None, :, None]
    for i in range(1, SOLVED):
        own = tl.sum(tl.where(row == i, solved, 0.0), 1)
        own += tl.sum(own[:, :, None] * solved, 1)
        solved = tl.where(row == i, own[:, None, :], solved)
    solved += tl.where(row == tl.arange(0, SOLVED)[None, None, :], 1.0, 0.0)
    return tl.reshape(tl.where(is_own, solved[:, :, None, :], 0.0), (BLOCK, BLOCK))


@triton.jit
def join(inverse, system, i, j, ROWS: tl.constexpr):
    """From inverses of parts of ``ROWS`` rows to those of twice as many."""
    is_between = (i // (2 * ROWS) == j // (2 * ROWS)) & (i // ROWS != j // ROWS)
    between = tl.where(is_between, system, 0.0)
    zero = tl.zeros_like(system)
    return inverse - multiply_fine(multiply_fine(inverse, between, zero), inverse, zero)


@triton.jit
def blocks_before(row, row_start, context, certain):
    """Whole blocks of the rows before one."""
    before = 0
    for other in range(0, row):
        _, count = blocks_of(other, row_start, context, certain)
        before += count
    return before


@triton.jit
def find_block(index, num_rows, row_start, context, certain):
    """First token of a block of the step, -1 if there are not so many."""
    token, before = -1, 0
    for row in range(0, num_rows):
        first, count = blocks_of(row, row_start, context, certain)
        place = index - before
        token = tl.where((place >= 0) & (place < count), first + place * BLOCK, token)
        before += count
    return token


@triton.jit
def prepare_block(
    q, k, a, b, matrices, factors, rates, biases, row_start, context, certain, q_stride,
    k_stride, a_stride, b_stride, num_rows, key_heads, value_heads, key_dim, eps, query_scale,
    BK: tl.constexpr,
):
    """What of a block and a value head does not depend on the state.

    ``matrices`` bf16 ``[blocks, Hv, 4, 64, 64]``, as `store_halves` stores them: the inverse of the
    system, and what queries have of the keys before them, decayed. ``factors`` fp32
    ``[blocks, Hv, FACTORS, 64]``: betas; of products of keys and of queries with the state before
    the block; of corrections in the state behind it; what is left of the state after each token.
    """
    index, head = tl.program_id(0), tl.program_id(1)
    token = find_block(index, num_rows, row_start, context, certain)
    if token >= 0:
        key_head = head // (value_heads // key_heads)
        n, d = tl.arange(0, BLOCK), tl.arange(0, BK)
        t = token.to(tl.int64) + n
        live = (d < key_dim)[None, :]
        at = key_head * key_dim + d[None, :]
        keys = tl.load(k + t[:, None] * k_stride + at, mask=live, other=0.0)
        queries = tl.load(q + t[:, None] * q_stride + at, mask=live, other=0.0)
        wide, wide_queries = keys.to(tl.float32), queries.to(tl.float32)
        key_factor = 1 / tl.sqrt(tl.sum(wide * wide, 1) + eps)
        query_factor = query_scale / tl.sqrt(tl.sum(wide_queries * wide_queries, 1) + eps)
        gates = tl.load(a + t * a_stride + head).to(tl.float32) + tl.load(biases + head)
        total = tl.cumsum(tl.load(rates + head) * softplus(gates), 0)
        beta = 1 / (1 + tl.exp(-tl.load(b + t * b_stride + head).to(tl.float32)))
        own = index.to(tl.int64) * value_heads + head
        faded = tl.exp(total)
        end = tl.sum(tl.where(n == BLOCK - 1, total, 0.0))
        store = factors + own * (FACTORS * BLOCK) + n
        tl.store(store, beta)
        tl.store(store + BLOCK, beta * faded * key_factor)
        tl.store(store + 2 * BLOCK, faded * query_factor)
        tl.store(store + 3 * BLOCK, tl.exp(end - total) * key_factor)
        tl.store(store + 4 * BLOCK, faded)

        i, j = n[:, None], n[None, :]
        decays = tl.exp(tl.minimum(total[:, None] - total[None, :], 0.0)) * key_factor[None, :]
        zero = tl.zeros((BLOCK, BLOCK), tl.float32)
        met = multiply(queries, tl.trans(keys), zero) * decays * query_factor[:, None]
        place = own * (4 * BLOCK * BLOCK) + i * BLOCK + j
        store_halves(matrices, place + 2 * BLOCK * BLOCK, tl.where(i >= j, met, 0.0))
        system = multiply(keys, tl.trans(keys), zero) * decays * (beta * key_factor)[:, None]
        system = tl.where(i > j, system, 0.0)
        inverse = join(inverse_of_parts(system), system, i, j, SOLVED)
        inverse = join(inverse, system, i, j, 2 * SOLVED)
        store_halves(matrices, place, inverse)


@triton.jit
def advance_blocks(
    q, k, v, out, committed, matrices, factors, row_start, context, slots, certain,
    q_stride, k_stride, v_stride, out_stride, slot_stride, key_heads, value_heads, key_dim,
    value_dim, BK: tl.constexpr, BV: tl.constexpr,
):
    """All whole blocks of a row, for ``BV`` value columns of a head. The state is transposed,
    ``[BV, BK]``, so that what one product gives is the first factor of the next."""
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, count = blocks_of(row, row_start, context, certain)
    if count > 0:
        index = blocks_before(row, row_start, context, certain)
        key_head = head // (value_heads // key_heads)
        n, d = tl.arange(0, BLOCK), tl.arange(0, BK)
        j = part * BV + tl.arange(0, BV)
        is_key, is_value = d < key_dim, j < value_dim
        slot = tl.load(slots + row).to(tl.int64)
        at = committed + slot * slot_stride + head * key_dim * value_dim
        at = at + d[None, :] * value_dim + j[:, None]
        live = is_key[None, :] & is_value[:, None]
        state = tl.load(at, mask=live, other=0.0)
        zero = tl.zeros((BV, BLOCK), tl.float32)
        for block in tl.range(0, count, num_stages=1):  # more do not fit smaller cards
            own = (index + block).to(tl.int64) * value_heads + head
            known = factors + own * (FACTORS * BLOCK) + n
            beta, asked = tl.load(known), tl.load(known + BLOCK)
            read_by, kept = tl.load(known + 2 * BLOCK), tl.load(known + 3 * BLOCK)
            faded = tl.load(factors + (own + 1) * (FACTORS * BLOCK) - 1)
            place = own * (4 * BLOCK * BLOCK) + n[:, None] * BLOCK + n[None, :]
            t = (first + block * BLOCK).to(tl.int64) + n
            column = key_head * key_dim + d[None, :]
            keys = tl.load(
                k + t[:, None] * k_stride + column, mask=is_key[None, :], other=0.0)
            queries = tl.load(
                q + t[:, None] * q_stride + column, mask=is_key[None, :], other=0.0)
            values = tl.load(v + t[None, :] * v_stride + head * value_dim + j[:, None],
                             mask=is_value[:, None], other=0.0)
            high, low = halves(state)
            expected = multiply_exact(high, low, tl.trans(keys), zero)
            missing = values.to(tl.float32) * beta[None, :] - expected * asked[None, :]
            deltas = multiply_stored(missing, matrices, place, zero)
            read = multiply_exact(high, low, tl.trans(queries), zero) * read_by[None, :]
            read = multiply_stored(deltas, matrices, place + 2 * BLOCK * BLOCK, read)
            tl.store(out + t[None, :] * out_stride + head * value_dim + j[:, None],
                     read.to(out.dtype.element_ty), mask=is_value[:, None])
            left, left_low = halves(deltas * kept[None, :])
            state = multiply_exact(left, left_low, keys, state * faded)
        tl.store(at, state, mask=live)
