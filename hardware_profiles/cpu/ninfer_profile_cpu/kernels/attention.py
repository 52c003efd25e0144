"""Causal grouped-query attention over a paged cache, for decode and prefill alike.

The keys of a sequence are cut into *blocks* (one page) and *spans* (a few pages) at absolute
positions. A query row visits the blocks of a span in order and merges its spans in order; that
alone defines its bits. How many rows share a work item, and whether the spans of a row are spread
over the cores (decode) or walked by one (prefill), is free.

A work item is a KV head and a tile of tokens of one sequence: all query heads of the group with
some tokens, so that a block of keys and values is read (and decoded) once for them all.
"""

from __future__ import annotations

import functools

import numpy as np
from numba import types

from .attention_tiles import BLOCK, LINE, add_values, score_keys
from .compile import compile_native, inline
from .kv_codecs import CODES_TOKEN, READ, code_address, prefetch_head
from .machine import LANES, TILE_TOKENS
from .memory import arg, bits_of_float, call, float_of_bits, load_int32, load_int64
from .softmax_state import (
    SUMS,
    clear_state,
    copy_state,
    merge_state,
    state_bytes,
    weigh_scores,
    write_result,
)
from .vec import vload, vmul, vsplat, vstore

i64 = types.int64

SPAN = 4 * BLOCK
"""Keys of a span: about the least work worth a core of its own."""

MAX_ROWS = 48
"""Query rows of a work item (at least one token's): all its memory stays in L2."""

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, SCALE, KEYS, VALUES, SCORE_KEYS, ADD_VALUES = range(8)
"""Static block of one layer, see `static_block`."""

(STATIC, Q, Q_STRIDE, OUT, OUT_STRIDE, ROW_START, POSITIONS, PAGE_TABLE, TABLE_STRIDE, NUM_ITEMS,
 NUM_SPANS, PARTIALS) = range(12)
"""Arguments of one call, see `attention_call`."""


def static_block(
    num_heads: int, num_kv_heads: int, head_dim: int, scale: float, keys: int, values: int
) -> np.ndarray:
    """int64 block of what does not change from call to call.

    ``keys`` and ``values`` are addresses of plane blocks (`kv_codecs.plane_block`).
    """
    fields = [num_heads, num_kv_heads, head_dim, bits_of_float(scale), keys, values]
    return np.array([*fields, score_keys(), add_values()], dtype=np.int64)


def scratch_bytes(num_heads: int, num_kv_heads: int, head_dim: int) -> int:
    """Scratch memory a worker needs."""
    room = _room(num_heads // num_kv_heads)
    states = 2 * 4 * (LANES + head_dim)
    return room * (4 * head_dim + LINE + states + 8) + BLOCK * 4 * head_dim


@functools.cache
def attention_body() -> int:
    """Body with the arguments above, item = KV head, tile of tokens (and span)."""
    return compile_native(_attention)


def _attention(args, begin, end, scratch):
    num_kv_heads = arg(arg(args, STATIC), NUM_KV_HEADS)
    for count in range(begin, end):
        item = arg(args, NUM_ITEMS) - 1 - count  # the longest items first, for an even finish
        row = i64(0)
        tiles, spans = items_of_row(args, row)
        while item >= tiles * spans * num_kv_heads:
            item -= tiles * spans * num_kv_heads
            row += 1
            tiles, spans = items_of_row(args, row)
        head, index = item % num_kv_heads, item // num_kv_heads
        _run_item(args, row, head, index // spans, index % spans, scratch)


def _room(group):
    # Room for the query rows of an item, and for a register tile that runs over.
    return max(MAX_ROWS, group) + TILE_TOKENS


_native_room = inline(_room)


@inline
def _tokens_per_item(group):
    return max(1, MAX_ROWS // group)


@inline
def items_of_row(args, row):
    """Tiles of tokens, and spans that are items of their own, of one sequence."""
    static = arg(args, STATIC)
    num_tokens = first_token(args, row + 1) - first_token(args, row)
    tile, spans = _tokens_per_item(arg(static, NUM_HEADS) // arg(static, NUM_KV_HEADS)), 1
    if num_tokens and arg(args, NUM_SPANS):
        spans = -(-length_at(args, first_token(args, row + 1)) // SPAN)
    return -(-num_tokens // tile), spans


@inline
def first_token(args, row):
    """Index of the first token of a sequence."""
    return load_int32(arg(args, ROW_START) + 4 * row)


@inline
def length_at(args, end_token):
    """Keys that the token before ``end_token`` sees: those of its position and before."""
    return load_int64(arg(args, POSITIONS) + 8 * (end_token - 1)) + 1


@inline
def partial_state(args, token, head, span):
    """Where the state of one span of one query row waits to be merged."""
    static = arg(args, STATIC)
    row = token * arg(static, NUM_HEADS) + head
    index, size = row * arg(args, NUM_SPANS) + span, state_bytes(arg(static, HEAD_DIM))
    return arg(args, PARTIALS) + index * size


@inline
def result_of(args, token, head):
    """Where the output of one query row goes."""
    size = 4 * arg(arg(args, STATIC), HEAD_DIM)
    return arg(args, OUT) + token * arg(args, OUT_STRIDE) + head * size


@inline
def _run_item(args, row, head, tile, span, scratch):
    static = arg(args, STATIC)
    head_dim, group = arg(static, HEAD_DIM), arg(static, NUM_HEADS) // arg(static, NUM_KV_HEADS)
    tile_tokens, room, size = _tokens_per_item(group), _native_room(group), state_bytes(head_dim)
    begin = first_token(args, row) + tile * tile_tokens
    end = min(begin + tile_tokens, first_token(args, row + 1))
    num_rows = (end - begin) * group
    totals = scratch
    states = totals + room * size
    memory = states + room * size
    _copy_queries(args, begin, end, head * group, group, memory)
    if arg(args, NUM_SPANS):
        _visit_span(args, row, head, begin, end, span, states, memory)
        for r in range(num_rows):
            token, query_head = begin + r // group, head * group + r % group
            to = partial_state(args, token, query_head, span)
            copy_state(states + r * size, head_dim, to)
        return
    for r in range(num_rows):
        clear_state(totals + r * size, head_dim)
    for each in range(-(-length_at(args, end) // SPAN)):
        _visit_span(args, row, head, begin, end, each, states, memory)
        for r in range(num_rows):
            merge_state(totals + r * size, states + r * size, head_dim)
    for r in range(num_rows):
        to = result_of(args, begin + r // group, head * group + r % group)
        write_result(totals + r * size, head_dim, to)


@inline
def _copy_queries(args, begin, end, head, group, q):
    """Query rows of an item, one after the other and already scaled."""
    static = arg(args, STATIC)
    head_dim, scale = arg(static, HEAD_DIM), vsplat(float_of_bits(arg(static, SCALE)))
    for t in range(end - begin):
        source = arg(args, Q) + (begin + t) * arg(args, Q_STRIDE) + 4 * head * head_dim
        target = q + 4 * t * group * head_dim
        for i in range(0, 4 * group * head_dim, 4 * LANES):
            vstore(target + i, vmul(vload(source + i), scale))


@inline
def _visit_span(args, row, head, begin, end, span, states, memory):
    """States of the query rows of tokens ``begin:end`` after the keys of one span."""
    static = arg(args, STATIC)
    head_dim, group = arg(static, HEAD_DIM), arg(static, NUM_HEADS) // arg(static, NUM_KV_HEADS)
    for r in range((end - begin) * group):
        clear_state(states + r * state_bytes(head_dim), head_dim)
    pages = arg(args, PAGE_TABLE) + row * arg(args, TABLE_STRIDE)
    for start in range(span * SPAN, min(length_at(args, end), (span + 1) * SPAN), BLOCK):
        block, last = start // BLOCK, (length_at(args, end) - 1) // BLOCK
        page = load_int32(pages + 4 * block)
        next_page = load_int32(pages + 4 * min(block + 1, last))
        _visit_block(args, page, next_page, start, head, begin, end, states, memory)


@inline
def _visit_block(args, page, next_page, start, head, begin, end, states, memory):
    static = arg(args, STATIC)
    head_dim, group = arg(static, HEAD_DIM), arg(static, NUM_HEADS) // arg(static, NUM_KV_HEADS)
    room, size, num_rows = _native_room(group), state_bytes(head_dim), (end - begin) * group
    num_keys = min(BLOCK, length_at(args, end) - start)
    q = memory
    scores = q + room * 4 * head_dim
    old_scales = scores + room * LINE
    new_scales = old_scales + 4 * room
    area = new_scales + 4 * room
    # Values are asked for while keys are scored, and the next keys while values are added.
    prefetch_head(arg(static, VALUES), page, head, num_keys)
    k, k_stride = _rows_of_page(arg(static, KEYS), page, head, num_keys, head_dim, area)
    call(arg(static, SCORE_KEYS), (q, num_rows, head_dim, k, k_stride, num_keys, scores))
    width = -(-num_keys // LANES) * LANES
    for r in range(num_rows):
        visible = min(num_keys, length_at(args, begin + r // group + 1) - start)
        old, new = old_scales + 4 * r, new_scales + 4 * r
        weigh_scores(scores + r * LINE, width, visible, states + r * size, old, new)
    prefetch_head(arg(static, KEYS), next_page, head, BLOCK)
    v, v_stride = _rows_of_page(arg(static, VALUES), page, head, num_keys, head_dim, area)
    sums = states + SUMS
    call(
        arg(static, ADD_VALUES),
        (scores, num_rows, head_dim, v, v_stride, num_keys, sums, size, old_scales, new_scales),
    )


@inline
def _rows_of_page(plane, page, head, num_keys, head_dim, area):
    """Address and stride of fp32 rows: in the page itself, or decoded to ``area``."""
    if not arg(plane, READ):
        return code_address(plane, page, 0, head), arg(plane, CODES_TOKEN)
    call(arg(plane, READ), (plane, page, head, num_keys, head_dim, area))
    return area, 4 * head_dim
