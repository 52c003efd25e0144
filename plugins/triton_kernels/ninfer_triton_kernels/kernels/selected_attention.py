"""Attention of one token to the tokens of its blocks and of its open one.

A few tokens do not fill a card, unless the tokens that one attends to are cut into parts.
"""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.cache import PAGE, as_operand, read_page
from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.places import load_places
from ninfer_triton_kernels.kernels.products import multiply


@triton.jit
def places_of(own, table, n, count, chosen, opened, block):
    """Pages, and places in them, of the ``n``-th of ``count`` tokens: those of blocks, ``chosen``
    tokens, then those of the open block; behind the last, the last."""
    n = tl.minimum(n, count - 1)
    number = read_page(own + tl.maximum(tl.minimum(n, chosen - 1), 0) // block).to(tl.int32)
    token = tl.where(n < chosen, number * block + n % block, opened + n - chosen)
    return read_page(table + token // PAGE), token % PAGE


@triton.jit
def selected_attention(
    q, q_stride, blocks, blocks_stride, out, out_stride, sums, tops, key_codes, key_scales,
    value_codes, value_scales, key_page, key_scale_page, value_page, value_scale_page, positions,
    token_row, page_table, table_stride, num_kv_heads, width, group, num_blocks, scale, block, span,
    CODEC: tl.constexpr, SHARED: tl.constexpr, PARTED: tl.constexpr, B: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):
    """``M`` of the query heads of one key head. With ``SHARED``, keys are the values too. With
    ``PARTED``, ``span`` of the attended tokens, from the program's third number times ``span`` on:
    to ``sums`` fp32 ``[T, Hq, parts, width]`` and ``tops`` fp32 ``[T, Hq, parts, 2]`` (maximum and
    mass; that of no token is minus infinity)."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    shares = tl.cdiv(group, M)
    kv_head = tl.program_id(1) // shares
    m = tl.program_id(1) % shares * M + tl.arange(0, M)
    i = tl.arange(0, BLOCK)
    live = (m < group)[:, None] & (i < width)[None, :]
    heads = kv_head * group + m
    position = tl.load(positions + t).to(tl.int32)
    own = blocks + t * blocks_stride
    b = tl.arange(0, B)
    chosen = tl.sum((tl.load(own + b, mask=b < num_blocks, other=-1) >= 0).to(tl.int32), 0) * block
    opened = (position + 1) // block * block
    count = chosen + position + 1 - opened
    begin = tl.program_id(2) * span
    end = tl.minimum(begin + span, count)
    table = page_table + tl.load(token_row + t) * table_stride
    top = tl.full((M,), float("-inf"), tl.float32)
    mass = tl.zeros((M,), tl.float32)
    at = heads[:, None] * width + i[None, :]
    queries = tl.load(q + t * q_stride + at, mask=live, other=0.0)
    total = tl.zeros((M, BLOCK), tl.float32)
    pages, places = places_of(
        own, table, begin + tl.arange(0, N), count, chosen, opened, block)
    for first in tl.range(begin, end, N, num_stages=STAGES):
        n = first + tl.arange(0, N)
        seen = n < end
        keys, key_factors = load_places(
            key_codes, key_scales, pages, places, key_page, key_scale_page, kv_head,
            num_kv_heads, seen, width, CODEC, N, BLOCK)
        if SHARED:
            values, value_factors = keys, key_factors
        else:
            values, value_factors = load_places(
                value_codes, value_scales, pages, places, value_page, value_scale_page, kv_head,
                num_kv_heads, seen, width, CODEC, N, BLOCK)
        zero = tl.zeros((M, N), tl.float32)
        scores = multiply(queries, tl.trans(as_operand(keys, key_factors, CODEC)), zero) * scale
        if CODEC == "fp8":
            scores *= key_factors[None, :]
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        faded = tl.exp2(top - base)
        mass = mass * faded + tl.sum(weights, 1)
        if CODEC == "fp8":
            weights *= value_factors[None, :]
        total = multiply(weights.to(tl.bfloat16), as_operand(values, value_factors, CODEC),
                         total * faded[:, None])
        top = higher
        pages, places = places_of(own, table, n + N, count, chosen, opened, block)
    if PARTED:
        part = (t * num_kv_heads * group + heads) * tl.num_programs(2) + tl.program_id(2)
        tl.store(sums + part[:, None] * width + i[None, :], total, mask=live & (begin < end))
        tl.store(tops + 2 * part, top, mask=m < group)
        tl.store(tops + 2 * part + 1, mass, mask=m < group)
    else:
        result = (total / mass[:, None]).to(out.dtype.element_ty)
        tl.store(out + t * out_stride + at, result, mask=live)


@triton.jit
def merge_chosen(
    sums, tops, out, out_stride, num_heads, width, parts, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):
    """``BLOCK`` components of a head of one token: all its parts."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    part = tl.arange(0, PARTS)
    at = (t * num_heads + head) * parts + part
    top = tl.load(tops + 2 * at, mask=part < parts, other=float("-inf"))
    seen = top != float("-inf")
    mass = tl.load(tops + 2 * at + 1, mask=seen, other=0.0)
    here = tl.load(sums + at[:, None] * width + i[None, :],
                   mask=seen[:, None] & (i < width)[None, :], other=0.0)
    fresh = tl.exp2(top - tl.max(top, 0))
    row = tl.sum(here * fresh[:, None], 0) / tl.sum(mass * fresh, 0)
    tl.store(out + t * out_stride + head * width + i, row.to(out.dtype.element_ty), mask=i < width)
