"""``out = silu(x G^T) * (x U^T)``: the gated half of an MLP in one pass over its weights."""

from __future__ import annotations

import functools

import numpy as np
from numba import types

from .compile import compile_native, inline
from .machine import LANES
from .memory import arg, float_of_bits
from .products import BUFFER_BYTES, multiply, prepare
from .vec import store_some, vclamp, vload, vmul, vsilu
from .weight_fields import AREA, BLOCK_ROWS, LINE, NUM_ROWS

f32 = types.float32
INFINITY = np.float32(np.inf)


def scratch_bytes(area_bytes: int) -> int:
    """Scratch memory a worker needs for a weight whose blocks of rows need ``area_bytes``."""
    return 2 * (BUFFER_BYTES + area_bytes)


@functools.cache
def swiglu_body() -> int:
    """Body ``(weight, x, x_stride, num_tokens, out, out_stride, limit)``, item = ``BLOCK_ROWS``
    outputs.

    The weight has the gate's rows above those of the up projection; fp32 ``x`` [T, K], ``out``
    [T, F]; strides in bytes; bits of the limit of both products, of 0 for none.
    """
    return compile_native(_swiglu)


def _swiglu(args, begin, end, scratch):
    weight, x, x_stride, num_tokens = arg(args, 0), arg(args, 1), arg(args, 2), arg(args, 3)
    out, out_stride = arg(args, 4), arg(args, 5)
    width = arg(weight, NUM_ROWS) // 2
    for item in range(begin, end):
        first = item * BLOCK_ROWS
        num_rows = min(BLOCK_ROWS, width - first)
        gated_rows(
            weight, first, width + first, num_rows, x, x_stride, num_tokens, out + 4 * first,
            out_stride, float_of_bits(arg(args, 6)), scratch,
        )


@inline
def gated_rows(
    weight, gate_row, up_row, num_rows, x, x_stride, num_tokens, out, out_stride, limit,
    scratch,
):
    """``out[t, n]`` of a block of rows of the gate and as many of the up projection."""
    gate, up = scratch, scratch + BUFFER_BYTES
    gate_area = up + BUFFER_BYTES
    up_area = gate_area + arg(weight, AREA)
    limit = limit if limit > f32(0.0) else INFINITY
    step = prepare(weight, gate_row, num_rows, num_tokens, gate_area)
    prepare(weight, up_row, num_rows, num_tokens, up_area)
    for t in range(0, num_tokens, step):
        tokens, rows = min(step, num_tokens - t), x + t * x_stride
        multiply(weight, gate_row, num_rows, rows, x_stride, tokens, step, gate_area, gate)
        multiply(weight, up_row, num_rows, rows, x_stride, tokens, step, up_area, up)
        _finish(gate, up, num_rows, tokens, out + t * out_stride, out_stride, limit)


@inline
def _finish(gate, up, num_rows, num_tokens, out, out_stride, limit):
    for t in range(num_tokens):
        for n in range(0, num_rows, LANES):
            offset = t * LINE + 4 * n
            gated = vsilu(vclamp(vload(gate + offset), -INFINITY, limit))
            y = vmul(gated, vclamp(vload(up + offset), -limit, limit))
            store_some(out + t * out_stride + 4 * n, y, num_rows - n)
