"""Paged attention of many tokens: a segment of the context as bf16, then tiles over it.

Keys and values are decoded once for all tiles, not by each, and lie in a line, where blocks of them
need no page numbers. Where there are few tiles, several programs share a segment of each. Between
segments, what they have summed waits in memory.
"""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.cache import PAGE, as_operand, load_block
from ninfer_triton_kernels.kernels.products import multiply

STAGES = tl.constexpr(2)
"""Blocks that a program asks for ahead, and the one in use."""

LOWEST = tl.constexpr(-1e30)
"""Below every score; minus infinity less itself is not a number."""


@triton.jit
def last_position(positions, row_start, row):
    """Of a row's tokens."""
    return tl.load(positions + tl.load(row_start + row + 1) - 1).to(tl.int32)


@triton.jit
def unpack_head(
    codes, scales, out, page, page_stride, scale_stride, head, num_kv_heads, live, width, to,
    CODEC: tl.constexpr, EVEN: tl.constexpr, BLOCK: tl.constexpr,
):
    """One head of a page to rows ``to`` of ``out``; zeros where it is not ``live``."""
    tile, factors = load_block(
        codes, scales, page, page_stride, scale_stride, 0, head, num_kv_heads, live, width, CODEC,
        EVEN, PAGE, BLOCK)
    values = as_operand(tile, factors, CODEC)
    if CODEC == "fp8":
        values = (values.to(tl.float32) * factors[:, None]).to(tl.bfloat16)
    at = (to + tl.arange(0, PAGE)).to(tl.int64)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(out + at, values)


@triton.jit
def unpack_segment(
    keys, values, key_codes, key_scales, value_codes, value_scales, key_page, key_scale_page,
    value_page, value_scale_page, positions, row_start, page_table, table_stride, begin, segment,
    num_kv_heads, width, CODEC: tl.constexpr, EVEN: tl.constexpr, BLOCK: tl.constexpr,
):
    """One head of a page of a segment, tokens ``begin`` to ``begin + segment``, to ``keys`` and
    ``values`` bf16 ``[rows, Hkv, segment, BLOCK]``, if its row has got so far."""
    row, head, index = tl.program_id(2), tl.program_id(1), tl.program_id(0)
    first = index * PAGE
    last = last_position(positions, row_start, row) - begin
    if first <= last:
        page = tl.load(page_table + row * table_stride + begin // PAGE + index)
        live = first + tl.arange(0, PAGE) <= last
        to = (row * num_kv_heads + head) * segment + first
        unpack_head(
            key_codes, key_scales, keys, page, key_page, key_scale_page, head, num_kv_heads, live,
            width, to, CODEC, EVEN, BLOCK)
        unpack_head(
            value_codes, value_scales, values, page, value_page, value_scale_page, head,
            num_kv_heads, live, width, to, CODEC, EVEN, BLOCK)


@triton.jit
def attend_blocks(
    queries, places, keys, values, begin, end, scale, top, mass, total, EDGE: tl.constexpr,
    N: tl.constexpr,
):
    """Tokens ``begin`` to ``end`` of a head of a segment, ``N`` at a time, for queries
    ``[M, BLOCK]``, which see all of them, or with ``EDGE`` those up to ``places`` ``[M]``: the
    running maximum, the sum of weights and the weighted sum of values (Milakov and Gimelshein,
    2018). Scores are powers of two."""
    M: tl.constexpr = queries.shape[0]
    BLOCK: tl.constexpr = queries.shape[1]
    at = tl.arange(0, N)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    for first in tl.range(begin, end, N, num_stages=STAGES):
        block = tl.load(keys + first * BLOCK + at)
        scores = multiply(queries, tl.trans(block), tl.zeros((M, N), tl.float32))
        if EDGE:
            seen = first + tl.arange(0, N)[None, :] <= places[:, None]
            scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1) * scale)
        weights = tl.exp2(scores * scale - higher[:, None])
        faded = tl.exp2(top - higher)
        mass = mass * faded + tl.sum(weights, 1)
        block = tl.load(values + first * BLOCK + at)
        total = multiply(weights.to(tl.bfloat16), block, total * faded[:, None])
        top = higher
    return top, mass, total


@triton.jit
def tokens_of_part(part, parts, last, segment, N: tl.constexpr):
    """Tokens of a segment that one of ``parts`` programs takes, of those up to ``last``: whole
    blocks, as begin and end."""
    end = tl.minimum(segment, last + 1)
    blocks = tl.cdiv(end, N)
    return part * blocks // parts * N, tl.minimum((part + 1) * blocks // parts * N, end)


@triton.jit
def attend_segment(
    q, q_stride, out, out_stride, keys, values, sums, tops, positions, row_start, begin, segment,
    parts, num_kv_heads, width, scale, GROUP: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``M`` pairs of a token and a query head of one key head, tokens of one row, over one of
    ``parts`` shares of a segment as `unpack_segment` leaves it.

    ``sums`` fp32 ``[parts, T, Hq, width]`` and ``tops`` fp32 ``[parts, T, Hq, 2]`` (maximum and
    mass) are read if there was a segment before, and written, for the next one or `merge_shares`;
    but what a single program has got through to its last token goes to ``out``.
    """
    row, kv_head = tl.program_id(0), tl.program_id(1)
    start = tl.load(row_start + row)
    num_pairs = (tl.load(row_start + row + 1) - start) * GROUP
    index = tl.num_programs(2) - 1 - tl.program_id(2)  # those that see most first
    first_pair = index // parts * M
    pair = first_pair + tl.arange(0, M)
    exists = pair < num_pairs
    t = (start + pair // GROUP).to(tl.int64)
    places = tl.load(positions + t, mask=exists, other=-1).to(tl.int32) - begin
    last = tl.max(places, 0)
    if (first_pair < num_pairs) & (last >= 0):
        heads = kv_head * GROUP + pair % GROUP
        i = tl.arange(0, BLOCK)
        live = exists[:, None] & (i < width)[None, :]
        at = heads[:, None] * width + i[None, :]
        queries = tl.load(q + t[:, None] * q_stride + at, mask=live, other=0.0)
        count = tl.load(row_start + tl.num_programs(0)).to(tl.int64) * num_kv_heads * GROUP
        state = index % parts * count + t * num_kv_heads * GROUP + heads
        top = tl.full((M,), LOWEST, tl.float32)
        mass = tl.zeros((M,), tl.float32)
        total = tl.zeros((M, BLOCK), tl.float32)
        if begin > 0:
            top = tl.load(tops + 2 * state, mask=exists, other=0.0)
            mass = tl.load(tops + 2 * state + 1, mask=exists, other=1.0)
            total = tl.load(sums + state[:, None] * width + i[None, :], mask=live, other=0.0)
        first, end = tokens_of_part(index % parts, parts, last, segment, N)
        seen_by_all = tl.min(tl.where(exists, places, segment), 0) + 1
        edge = tl.maximum(tl.minimum(end, seen_by_all // N * N), first)
        base = (row * num_kv_heads + kv_head).to(tl.int64) * segment * BLOCK
        top, mass, total = attend_blocks(
            queries, places, keys + base, values + base, first, edge, scale, top, mass, total,
            False, N)
        top, mass, total = attend_blocks(
            queries, places, keys + base, values + base, edge, end, scale, top, mass, total, True,
            N)
        if (parts == 1) & (last < segment):
            result = (total / tl.where(exists, mass, 1.0)[:, None]).to(out.dtype.element_ty)
            tl.store(out + t[:, None] * out_stride + at, result, mask=live)
        else:
            tl.store(tops + 2 * state, top, mask=exists)
            tl.store(tops + 2 * state + 1, mass, mask=exists)
            tl.store(sums + state[:, None] * width + i[None, :], total, mask=live)


@triton.jit
def merge_shares(
    sums, tops, out, out_stride, parts, num_heads, width, BLOCK: tl.constexpr,
):
    """One head of one token: what ``parts`` programs of `attend_segment` have, in order."""
    t, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    count = tl.num_programs(0).to(tl.int64) * num_heads
    i = tl.arange(0, BLOCK)
    top = tl.max(tl.full((BLOCK,), LOWEST, tl.float32), 0)
    mass = tl.sum(tl.zeros((BLOCK,), tl.float32), 0)
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(parts):
        state = part * count + t * num_heads + head
        top_here = tl.load(tops + 2 * state)
        higher = tl.maximum(top, top_here)
        faded, fresh = tl.exp2(top - higher), tl.exp2(top_here - higher)
        mass = mass * faded + tl.load(tops + 2 * state + 1) * fresh
        here = tl.load(sums + state * width + i, mask=i < width, other=0.0)
        total = total * faded + here * fresh
        top = higher
    row = (total / mass).to(out.dtype.element_ty)
    tl.store(out + t * out_stride + head * width + i, row, mask=i < width)
