"""Rows of a table in any weight format, decoded exactly."""

from __future__ import annotations

import functools

from .compile import compile_native
from .machine import LANES
from .memory import arg, call, load_int64
from .vec import load_some, store_some
from .weight_fields import DECODE_ROW, PADDED_WIDTH, WIDTH

TOKENS_PER_ITEM = 8


@functools.cache
def embedding_body() -> int:
    """Body ``(weight, ids, out, out_stride)``, item = one token.

    int64 ``ids`` [T], fp32 ``out`` [T, K], stride in bytes.
    """
    return compile_native(_embedding)


def _embedding(args, begin, end, scratch):
    weight, ids, out, out_stride = arg(args, 0), arg(args, 1), arg(args, 2), arg(args, 3)
    width, padded = arg(weight, WIDTH), arg(weight, PADDED_WIDTH)
    for t in range(begin, end):
        row, to = load_int64(ids + 8 * t), out + t * out_stride
        fits = width == padded
        values = to if fits else scratch  # whole groups may be wider than the output
        call(arg(weight, DECODE_ROW), (weight, row, scratch + 4 * padded, values))
        if not fits:
            for i in range(0, width, LANES):
                store_some(to + 4 * i, load_some(scratch + 4 * i, width - i), width - i)
