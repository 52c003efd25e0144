"""Gated MLPs of the experts that each token chose, summed by their shares.

The choices are sorted by expert, so that the weights of an expert are read (and decoded) once for
all of its tokens, whose rows are copied side by side. Then come two jobs: gated products, item =
expert and block of its rows; and weighted sums, item = block of output columns, where the products
of all experts wait until they are added in the order of each token's choices. So a row's bits
depend on its own choices alone.
"""

from __future__ import annotations

import numpy as np
from numba import types

from .compile import compile_native, inline
from .machine import LANES
from .memory import arg, bits_of_float, float_of_bits, load_float, load_int64
from .products import BUFFER_BYTES, multiply, prepare
from .swiglu import gated_rows
from .vec import load_some, store_some, vadd, vfma, vload, vsplat
from .weight_fields import BLOCK_ROWS, LINE

f32 = types.float32

PASS_TOKENS = 512
"""Most tokens that are sorted together: the more, the more rows an expert's weights serve, and the
more memory is needed."""

(GATE_UP, DOWN, NUM_EXPERTS, TOP_K, WIDTH, INNER, PASS, STARTS, ACTIVE, TOKENS, PLACES, ROWS,
 PRODUCTS, COPY_ROWS, GATED_PRODUCTS, WEIGHTED_SUMS, LIMIT) = range(17)
"""Static block of one layer, see `static_block`."""

(STATIC, ROW, ROW_STRIDE, NUM_TOKENS, IDS, SHARES, OUT, OUT_STRIDE, RESIDUAL,
 RESIDUAL_STRIDE) = range(10)
"""Arguments of one pass, see `moe_call`."""


def static_block(
    gate_up: int, down: int, num_experts: int, top_k: int, width: int, inner: int,
    max_tokens: int, memory: int, limit: float,
) -> np.ndarray:
    """int64 block of what does not change from call to call.

    ``gate_up`` and ``down``: addresses of weights with ``2 inner`` and ``width`` rows an expert;
    ``memory``: address of as many bytes as `memory_sizes` has in all; ``limit`` as of ``swiglu``.
    """
    tokens = min(max_tokens, PASS_TOKENS)
    sizes = memory_sizes(num_experts, top_k, width, inner, max_tokens)
    starts = memory + np.cumsum([0, *sizes[:-1]])
    bodies = [compile_native(body) for body in (_copy_rows, _gated_products, _weighted_sums)]
    fields = [gate_up, down, num_experts, top_k, width, inner, tokens, *starts, *bodies,
              bits_of_float(limit)]
    return np.array(fields, dtype=np.int64)


def memory_sizes(
    num_experts: int, top_k: int, width: int, inner: int, max_tokens: int
) -> list[int]:
    """Bytes of the memory of a pass: int64 starts of each expert's choices in their sorted order,
    and where the last end; int64 experts with any, and -1 behind them; int64 tokens of sorted
    choices; int64 places of choices in that order; fp32 rows of x, and fp32 gated products, in that
    order."""
    choices = min(max_tokens, PASS_TOKENS) * top_k
    rows = 4 * choices * width, 4 * choices * inner
    return [8 * (num_experts + 1), 8 * (num_experts + 1), 8 * choices, 8 * choices, *rows]


def scratch_bytes(top_k: int, max_tokens: int, area_bytes: int) -> int:
    """Scratch memory a worker needs for sums with a ``down`` whose blocks need ``area_bytes``."""
    return min(max_tokens, PASS_TOKENS) * top_k * LINE + BUFFER_BYTES + area_bytes


@inline
def start_of(static, expert):
    """Where the choices of an expert start in the sorted order."""
    return load_int64(arg(static, STARTS) + 8 * expert)


def _copy_rows(args, begin, end, scratch):
    static = arg(args, STATIC)
    width = arg(static, WIDTH)
    for place in range(begin, end):
        token = load_int64(arg(static, TOKENS) + 8 * place)
        row, to = arg(args, ROW) + token * arg(args, ROW_STRIDE), 4 * place * width
        for i in range(0, width, LANES):
            values = load_some(row + 4 * i, width - i)
            store_some(arg(static, ROWS) + to + 4 * i, values, width - i)


def _gated_products(args, begin, end, scratch):
    static, stride = arg(args, STATIC), arg(args, ROW_STRIDE)
    inner = arg(static, INNER)
    blocks = -(-inner // BLOCK_ROWS)
    for item in range(begin, end):
        expert = load_int64(arg(static, ACTIVE) + 8 * (item // blocks))
        first, start = item % blocks * BLOCK_ROWS, start_of(static, expert)
        gate, count = 2 * expert * inner + first, start_of(static, expert + 1) - start
        gated_rows(
            arg(static, GATE_UP), gate, gate + inner, min(BLOCK_ROWS, inner - first),
            arg(args, ROW) + start * stride, stride, count,
            arg(static, PRODUCTS) + 4 * (start * inner + first), 4 * inner,
            float_of_bits(arg(static, LIMIT)), scratch,
        )


def _weighted_sums(args, begin, end, scratch):
    static = arg(args, STATIC)
    width, choices = arg(static, WIDTH), arg(args, NUM_TOKENS) * arg(static, TOP_K)
    area = scratch + choices * LINE + BUFFER_BYTES  # a tile may write lines beyond the last
    for item in range(begin, end):
        first = item * BLOCK_ROWS
        num_rows, active = min(BLOCK_ROWS, width - first), arg(static, ACTIVE)
        while load_int64(active) >= 0:
            _multiply_products(static, load_int64(active), first, num_rows, area, scratch)
            active += 8
        _add_up(args, first, num_rows, scratch)


@inline
def _multiply_products(static, expert, first, num_rows, area, lines):
    """Lines of a block of output columns, for the choices of one expert."""
    down, stride = arg(static, DOWN), 4 * arg(static, INNER)
    row, start, end = (
        expert * arg(static, WIDTH) + first, start_of(static, expert), start_of(static, expert + 1)
    )
    step = prepare(down, row, num_rows, end - start, area)
    for place in range(start, end, step):
        tokens, x = min(step, end - place), arg(static, PRODUCTS) + place * stride
        multiply(down, row, num_rows, x, stride, tokens, step, area, lines + place * LINE)


@inline
def _add_up(args, first, num_rows, lines):
    top_k, places = arg(arg(args, STATIC), TOP_K), arg(arg(args, STATIC), PLACES)
    for t in range(arg(args, NUM_TOKENS)):
        out = arg(args, OUT) + t * arg(args, OUT_STRIDE) + 4 * first
        residual = arg(args, RESIDUAL) + t * arg(args, RESIDUAL_STRIDE) + 4 * first
        for n in range(0, num_rows, LANES):
            total = vsplat(f32(0.0))
            for choice in range(t * top_k, (t + 1) * top_k):
                line = lines + LINE * load_int64(places + 8 * choice) + 4 * n
                share = vsplat(load_float(arg(args, SHARES) + 4 * choice))
                total = vfma(vload(line), share, total)
            if arg(args, RESIDUAL):
                total = vadd(total, load_some(residual + 4 * n, num_rows - n))
            store_some(out + 4 * n, total, num_rows - n)
