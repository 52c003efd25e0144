"""A call of attention: spread the spans of few rows over the cores, and merge them."""

from numba import types

from .attention import (
    HEAD_DIM,
    NUM_HEADS,
    NUM_ITEMS,
    NUM_KV_HEADS,
    NUM_SPANS,
    SPAN,
    STATIC,
    first_token,
    items_of_row,
    length_at,
    partial_state,
    result_of,
)
from .compile import entry, inline
from .launch import NUM_THREADS, SCRATCH, run
from .memory import arg, pack, store_int64
from .softmax_state import copy_state, merge_state, state_bytes, write_result

i64 = types.int64

ITEMS_PER_THREAD = 4
"""With so many items, threads finish together without spreading spans."""


@inline
def _longest(args, num_rows):
    longest = 0
    for row in range(num_rows):
        if first_token(args, row + 1) > first_token(args, row):
            longest = max(longest, length_at(args, first_token(args, row + 1)))
    return longest


@inline
def _count_items(args, num_rows):
    total = 0
    for row in range(num_rows):
        tiles, spans = items_of_row(args, row)
        total += tiles * spans
    return total * arg(arg(args, STATIC), NUM_KV_HEADS)


@inline
def _merge_spans(args, num_tokens, state):
    static, row = arg(args, STATIC), 0
    head_dim = arg(static, HEAD_DIM)
    for token in range(num_tokens):
        while token >= first_token(args, row + 1):
            row += 1
        spans = items_of_row(args, row)[1]
        for head in range(arg(static, NUM_HEADS)):
            copy_state(partial_state(args, token, head, 0), head_dim, state)
            for span in range(1, spans):
                merge_state(state, partial_state(args, token, head, span), head_dim)
            write_result(state, head_dim, result_of(args, token, head))


@entry
def attention(
    pool, body, static, q, q_stride, out, out_stride, row_start, positions, page_table,
    table_stride, num_rows, num_tokens, partials, partials_bytes,
):
    """fp32 ``q`` and ``out`` [T, Hq D], strides in bytes; ``row_start`` int32 [B + 1];
    ``positions`` int64 [T], ascending within a row; ``page_table`` int32 [B, pages].

    ``partials`` is memory for states of spans. Where it is too small, or there are items enough,
    spans are not spread; that changes no bit.
    """
    args = pack((
        static, q, q_stride, out, out_stride, row_start, positions, page_table, table_stride,
        i64(0), i64(0), partials,
    ))
    spans, num_items = -(-_longest(args, num_rows) // SPAN), _count_items(args, num_rows)
    size = state_bytes(arg(static, HEAD_DIM))
    fits = num_tokens * arg(static, NUM_HEADS) * spans * size <= partials_bytes
    if spans > 1 and num_items < ITEMS_PER_THREAD * arg(pool, NUM_THREADS) and fits:
        store_int64(args + 8 * NUM_SPANS, spans)
        num_items = _count_items(args, num_rows)
    store_int64(args + 8 * NUM_ITEMS, num_items)
    run(pool, body, num_items, 1, args)
    if arg(args, NUM_SPANS):
        _merge_spans(args, num_tokens, arg(pool, SCRATCH))
