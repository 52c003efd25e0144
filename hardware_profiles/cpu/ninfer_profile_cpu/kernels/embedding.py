"""Rows of a table in any weight format, decoded exactly."""

import functools

from .compile import compile_body, entry
from .launch import launch
from .machine import LANES
from .memory import arg, load_int64, pack
from .products import products
from .vec import load_some, store_some
from .weight_block import PADDED_WIDTH, WIDTH

ROWS_PER_ITEM = 8


@functools.cache
def embedding_body(fmt: str) -> int:
    """Address of the body for one format: work item = one token."""
    decode_row = products(fmt).decode_row

    def embedding(args, begin, end, scratch):
        weight, ids, out, out_stride = arg(args, 0), arg(args, 1), arg(args, 2), arg(args, 3)
        width, padded = arg(weight, WIDTH), arg(weight, PADDED_WIDTH)
        scales = scratch + 4 * padded
        for t in range(begin, end):
            row, to = load_int64(ids + 8 * t), out + t * out_stride
            if width == padded:
                decode_row(weight, row, scales, to)
            else:  # whole groups do not fit the output
                decode_row(weight, row, scales, scratch)
                for i in range(0, width, LANES):
                    store_some(to + 4 * i, load_some(scratch + 4 * i, width - i), width - i)

    return compile_body(embedding, fmt)


@entry(7)
def embedding(pool, body, weight, ids, num_tokens, out, out_stride):
    """Launch an `embedding_body`: int64 ``ids`` [T], fp32 ``out`` [T, K], stride in bytes."""
    launch(pool, body, num_tokens, ROWS_PER_ITEM, pack((weight, ids, out, out_stride)))
