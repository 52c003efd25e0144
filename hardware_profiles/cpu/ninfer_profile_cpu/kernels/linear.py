"""``out = x W^T (+ bias) (+ residual)``"""

from __future__ import annotations

import functools

from .compile import compile_native, inline
from .machine import LANES
from .memory import arg
from .products import BUFFER_BYTES, multiply, prepare
from .vec import load_some, store_some, vadd, vload
from .weight_fields import BLOCK_ROWS, LINE, NUM_ROWS


@functools.cache
def linear_body() -> int:
    """Body ``(weight, x, x_stride, num_tokens, out, out_stride, bias, residual, residual_stride)``,

    item = ``BLOCK_ROWS`` weight rows.  fp32 ``x`` [T, K], ``out`` [T, N], ``bias`` [N] (or 0),
    ``residual`` [T, N] (or 0; may be ``out``); strides in bytes.
    """
    return compile_native(_linear)


def _linear(args, begin, end, scratch):
    weight, x, x_stride, num_tokens = arg(args, 0), arg(args, 1), arg(args, 2), arg(args, 3)
    out, out_stride, bias = arg(args, 4), arg(args, 5), arg(args, 6)
    residual, residual_stride = arg(args, 7), arg(args, 8)
    area = scratch + BUFFER_BYTES
    for item in range(begin, end):
        first = item * BLOCK_ROWS
        num_rows = min(BLOCK_ROWS, arg(weight, NUM_ROWS) - first)
        step = prepare(weight, first, num_rows, num_tokens, area)
        for t in range(0, num_tokens, step):
            tokens = min(step, num_tokens - t)
            rows = x + t * x_stride
            multiply(weight, first, num_rows, rows, x_stride, tokens, step, area, scratch)
            _finish(
                scratch, num_rows, tokens, out + t * out_stride + 4 * first, out_stride,
                bias + 4 * first if bias else 0,
                residual + t * residual_stride + 4 * first if residual else 0, residual_stride,
            )


@inline
def _finish(products, num_rows, num_tokens, out, out_stride, bias, residual, residual_stride):
    for t in range(num_tokens):
        for n in range(0, num_rows, LANES):
            count = num_rows - n
            y = vload(products + t * LINE + 4 * n)
            if bias:
                y = vadd(y, load_some(bias + 4 * n, count))
            if residual:
                y = vadd(y, load_some(residual + t * residual_stride + 4 * n, count))
            store_some(out + t * out_stride + 4 * n, y, count)
