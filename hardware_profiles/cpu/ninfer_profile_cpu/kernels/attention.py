"""Causal grouped-query attention over a paged cache, for decode and prefill alike.

The keys of a sequence are cut into *blocks* (one page) and *spans* (a few pages) at absolute
positions.  A query row visits the blocks of a span in order and merges its spans in order; that
alone defines its bits.  How many rows share a work item, and whether the spans of a row are spread
over the cores (decode) or walked by one (prefill), is free.

A work item is a KV head and a tile of tokens of one sequence: all query heads of the group with
some tokens, so that a block of keys and values is read (and decoded) once for them all.
"""

import functools

import numpy as np
from numba import njit, types

from .attention_tiles import BLOCK, LINE, add_values, score_keys
from .compile import compile_body, entry
from .kv_codecs import CODES_TOKEN, code_address, kv_codec
from .launch import NUM_THREADS, SCRATCH, launch
from .machine import LANES, TILE_TOKENS
from .memory import arg, bits_of_float, float_of_bits, load_int32, load_int64, pack, store_int64
from .softmax_state import (
    SUMS, clear_state, copy_state, merge_state, state_bytes, weigh_scores, write_result,
)  # fmt: skip
from .vec import vload, vmul, vsplat, vstore

i64 = types.int64

SPAN = 4 * BLOCK
"""Keys of a span: about the least work worth a core of its own."""

MAX_ROWS = 48
"""Query rows of a work item (at least one token's): all its memory stays in L2."""

# Static block of one layer, int64 (see `static_block`).
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, SCALE, KEYS, VALUES = range(6)
# Arguments of one call.
(STATIC, Q, Q_STRIDE, OUT, OUT_STRIDE, ROW_START, POSITIONS, PAGE_TABLE, TABLE_STRIDE, NUM_SPANS,
 PARTIALS, NUM_ITEMS) = range(12)  # fmt: skip


def static_block(num_heads, num_kv_heads, head_dim, scale, keys, values):
    """int64 block of what does not change from call to call.

    ``keys`` and ``values`` are addresses of plane blocks (`kv_codecs`).
    """
    fields = [num_heads, num_kv_heads, head_dim, bits_of_float(scale), keys, values]
    return np.array(fields, dtype=np.int64)


def scratch_bytes(num_heads, num_kv_heads, head_dim):
    """Scratch memory a worker needs."""
    rows = _room(num_heads // num_kv_heads)
    return rows * (4 * head_dim + LINE + 2 * 4 * (LANES + head_dim) + 8) + 2 * BLOCK * 4 * head_dim


def _room(group):
    # Room for the query rows of an item, and for a register tile that runs over.
    return max(MAX_ROWS, group) + TILE_TOKENS


_native_room = njit(_room)


@njit
def _tokens_per_item(group):
    return max(1, MAX_ROWS // group)


@njit
def _items_of_row(args, row):
    """Tiles of tokens, and spans that are items of their own, of one sequence."""
    static = arg(args, STATIC)
    num_tokens = _start(args, row + 1) - _start(args, row)
    tile = _tokens_per_item(arg(static, NUM_HEADS) // arg(static, NUM_KV_HEADS))
    spans = -(-_length(args, _start(args, row + 1)) // SPAN) if arg(args, NUM_SPANS) else 1
    return -(-num_tokens // tile), spans


@njit
def _start(args, row):
    return load_int32(arg(args, ROW_START) + 4 * row)


@njit
def _length(args, end_token):
    """Keys that the token before ``end_token`` sees: those of its position and before."""
    return load_int64(arg(args, POSITIONS) + 8 * (end_token - 1)) + 1


@njit
def _partial(args, token, head, span):
    """Where the state of one span of one query row waits to be merged."""
    static = arg(args, STATIC)
    row = token * arg(static, NUM_HEADS) + head
    size = state_bytes(arg(static, HEAD_DIM))
    return arg(args, PARTIALS) + (row * arg(args, NUM_SPANS) + span) * size


@functools.cache
def attention_body(codec: str) -> int:
    """Address of the body for one KV codec."""
    read, is_direct = kv_codec(codec).read, kv_codec(codec).is_direct

    @njit
    def visit_block(args, page, start, head, num_keys, q, num_rows, begin, group, memory, states, scores, scales, room):
        static = arg(args, STATIC)
        head_dim = arg(static, HEAD_DIM)
        size = state_bytes(head_dim)
        keys, values = arg(static, KEYS), arg(static, VALUES)
        if is_direct:
            k, k_stride = code_address(keys, page, 0, head), arg(keys, CODES_TOKEN)
            v, v_stride = code_address(values, page, 0, head), arg(values, CODES_TOKEN)
        else:
            k, k_stride = memory, 4 * head_dim
            v, v_stride = memory + 4 * BLOCK * head_dim, 4 * head_dim
            read(keys, page, head, num_keys, head_dim, k)
            read(values, page, head, num_keys, head_dim, v)
        score_keys(q, num_rows, head_dim, k, k_stride, num_keys, scores)
        new_scales = scales + 4 * room
        width = -(-num_keys // LANES) * LANES
        for r in range(num_rows):
            visible = min(num_keys, _length(args, begin + r // group + 1) - start)
            weigh_scores(scores + r * LINE, width, visible, states + r * size, scales + 4 * r, new_scales + 4 * r)
        add_values(scores, num_rows, head_dim, v, v_stride, num_keys, states + SUMS, size, scales, new_scales)

    @njit
    def run_item(args, row, head, tile, first_span, end_span, scratch):
        static = arg(args, STATIC)
        head_dim, group = arg(static, HEAD_DIM), arg(static, NUM_HEADS) // arg(static, NUM_KV_HEADS)
        size, room = state_bytes(head_dim), _native_room(group)
        q = scratch
        scores = q + room * 4 * head_dim
        states = scores + room * LINE
        totals = states + room * size
        scales = totals + room * size
        memory = scales + room * 8

        begin = _start(args, row) + tile * _tokens_per_item(group)
        num_tokens = min(_tokens_per_item(group), _start(args, row + 1) - begin)
        num_rows = num_tokens * group
        length = _length(args, begin + num_tokens)
        _copy_queries(args, begin, num_tokens, head * group, group, q)
        pages = arg(args, PAGE_TABLE) + row * arg(args, TABLE_STRIDE)

        for span in range(first_span, min(end_span, -(-length // SPAN))):
            for r in range(num_rows):
                clear_state(states + r * size, head_dim)
            for start in range(span * SPAN, min(length, (span + 1) * SPAN), BLOCK):
                visit_block(
                    args, load_int32(pages + 4 * (start // BLOCK)), start, head,
                    min(BLOCK, length - start), q, num_rows, begin, group, memory, states, scores, scales, room,
                )  # fmt: skip
            for r in range(num_rows):
                token, query_head = begin + r // group, head * group + r % group
                if arg(args, NUM_SPANS):
                    copy_state(states + r * size, head_dim, _partial(args, token, query_head, span))
                elif span == 0:
                    copy_state(states + r * size, head_dim, totals + r * size)
                else:
                    merge_state(totals + r * size, states + r * size, head_dim, scales)
        if not arg(args, NUM_SPANS):
            for r in range(num_rows):
                write_result(totals + r * size, head_dim, _result(args, begin + r // group, head * group + r % group))

    def attention(args, begin, end, scratch):
        num_kv_heads = arg(arg(args, STATIC), NUM_KV_HEADS)
        for count in range(begin, end):
            item = arg(args, NUM_ITEMS) - 1 - count  # the longest items first: an even finish
            row = i64(0)
            tiles, spans = _items_of_row(args, row)
            while item >= tiles * spans * num_kv_heads:
                item -= tiles * spans * num_kv_heads
                row += 1
                tiles, spans = _items_of_row(args, row)
            head, tile, span = item % num_kv_heads, item // num_kv_heads // spans, item // num_kv_heads % spans
            if arg(args, NUM_SPANS):
                run_item(args, row, head, tile, span, span + 1, scratch)
            else:
                run_item(args, row, head, tile, 0, 1 << 40, scratch)

    return compile_body(attention, codec)


@njit
def _copy_queries(args, begin, num_tokens, head, group, q):
    """Query rows of an item, one after the other and already scaled."""
    static = arg(args, STATIC)
    head_dim, scale = arg(static, HEAD_DIM), vsplat(float_of_bits(arg(static, SCALE)))
    for t in range(num_tokens):
        source = arg(args, Q) + (begin + t) * arg(args, Q_STRIDE) + 4 * head * head_dim
        target = q + 4 * t * group * head_dim
        for i in range(0, 4 * group * head_dim, 4 * LANES):
            vstore(target + i, vmul(vload(source + i), scale))


@njit
def _result(args, token, head):
    return arg(args, OUT) + token * arg(args, OUT_STRIDE) + 4 * head * arg(arg(args, STATIC), HEAD_DIM)


@njit
def _merge_spans(args, num_tokens, state, scratch):
    """Results of a call whose spans were items of their own."""
    static, row = arg(args, STATIC), 0
    head_dim = arg(static, HEAD_DIM)
    for token in range(num_tokens):
        while token >= _start(args, row + 1):
            row += 1
        spans = _items_of_row(args, row)[1]
        for head in range(arg(static, NUM_HEADS)):
            copy_state(_partial(args, token, head, 0), head_dim, state)
            for span in range(1, spans):
                merge_state(state, _partial(args, token, head, span), head_dim, scratch)
            write_result(state, head_dim, _result(args, token, head))


@njit
def _count_items(args, num_rows):
    total = 0
    for row in range(num_rows):
        tiles, spans = _items_of_row(args, row)
        total += tiles * spans
    return total * arg(arg(args, STATIC), NUM_KV_HEADS)


@njit
def _longest(args, num_rows):
    longest = 0
    for row in range(num_rows):
        if _start(args, row + 1) > _start(args, row):
            longest = max(longest, _length(args, _start(args, row + 1)))
    return longest


@entry(15)
def attention(
    pool, body, static, q, q_stride, out, out_stride, row_start, positions, page_table, table_stride,
    num_rows, num_tokens, partials, partials_bytes,
):  # fmt: skip
    """Launch an `attention_body`.

    fp32 ``q`` and ``out`` [T, Hq D], strides in bytes; ``row_start`` int32 [B + 1]; ``positions``
    int64 [T], ascending within a row; ``page_table`` int32 [B, pages].  ``partials`` is memory for
    states of spans; where it is too small, or there are items enough, spans are not spread.
    """
    args = pack((static, q, q_stride, out, out_stride, row_start, positions, page_table, table_stride, i64(0), partials, i64(0)))
    spans = -(-_longest(args, num_rows) // SPAN)
    num_items = _count_items(args, num_rows)
    size = state_bytes(arg(static, HEAD_DIM))
    fits = num_tokens * arg(static, NUM_HEADS) * spans * size <= partials_bytes
    if spans > 1 and num_items < 4 * arg(pool, NUM_THREADS) and fits:
        store_int64(args + 8 * NUM_SPANS, spans)
        num_items = _count_items(args, num_rows)
    store_int64(args + 8 * NUM_ITEMS, num_items)
    launch(pool, body, num_items, 1, args)
    if arg(args, NUM_SPANS):
        scratch = arg(pool, SCRATCH)
        _merge_spans(args, num_tokens, scratch + 64, scratch)
