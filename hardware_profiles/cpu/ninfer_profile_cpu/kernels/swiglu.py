"""``out = silu(x G^T) * (x U^T)``: the gated half of an MLP in one pass over its weights."""

import functools

from numba import njit

from .compile import compile_body, entry
from .launch import launch
from .machine import LANES
from .memory import arg, pack
from .products import BUFFER_BYTES, products
from .vec import store_some, vload, vmul, vsilu
from .weight_block import AREA, BLOCK_ROWS, NUM_ROWS


@functools.cache
def swiglu_body(fmt: str) -> int:
    """Address of the body for one format: work item = ``BLOCK_ROWS`` outputs.

    The weight has the gate's rows above the rows of the up projection.
    """
    prepare, multiply = products(fmt).prepare, products(fmt).multiply

    def swiglu(args, begin, end, scratch):
        weight, x, x_stride, num_tokens = arg(args, 0), arg(args, 1), arg(args, 2), arg(args, 3)
        out, out_stride = arg(args, 4), arg(args, 5)
        width = arg(weight, NUM_ROWS) // 2
        gate, up = scratch, scratch + BUFFER_BYTES
        gate_area = up + BUFFER_BYTES
        up_area = gate_area + arg(weight, AREA)
        for item in range(begin, end):
            first = item * BLOCK_ROWS
            num_rows = min(BLOCK_ROWS, width - first)
            step = prepare(weight, first, num_rows, num_tokens, gate_area)
            prepare(weight, width + first, num_rows, num_tokens, up_area)
            for t in range(0, num_tokens, step):
                tokens = min(step, num_tokens - t)
                rows = x + t * x_stride
                multiply(weight, first, num_rows, rows, x_stride, tokens, step, gate_area, gate)
                multiply(weight, width + first, num_rows, rows, x_stride, tokens, step, up_area, up)
                _finish(gate, up, num_rows, tokens, out + t * out_stride + 4 * first, out_stride)

    return compile_body(swiglu, fmt)


@njit
def _finish(gate, up, num_rows, num_tokens, out, out_stride):
    for t in range(num_tokens):
        for n in range(0, num_rows, LANES):
            offset = 4 * (t * BLOCK_ROWS + n)
            y = vmul(vsilu(vload(gate + offset)), vload(up + offset))
            store_some(out + t * out_stride + 4 * n, y, num_rows - n)


@entry(8)
def swiglu(pool, body, weight, x, x_stride, num_tokens, out, out_stride):
    """Launch a `swiglu_body`: fp32 ``x`` [T, K], ``out`` [T, F]; strides in bytes."""
    args = pack((weight, x, x_stride, num_tokens, out, out_stride))
    launch(pool, body, -(-(arg(weight, NUM_ROWS) // 2) // BLOCK_ROWS), 1, args)
