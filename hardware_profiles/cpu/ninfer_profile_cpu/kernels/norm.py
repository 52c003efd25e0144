"""RMSNorm of rows, in fp32.

A row is summed in ``LANES`` partial sums; a row's bits do not depend on other rows.
"""

from __future__ import annotations

import functools
import math

from numba import types

from .compile import compile_native, inline
from .machine import LANES
from .memory import arg, float_of_bits
from .vec import load_some, store_some, vadd, vfma, vkeep, vmul, vsplat, vsub, vsum

f32 = types.float32

ROWS_PER_ITEM = 16
"""A row of a few hundred values takes 50 ns: fewer rows than this are not worth a fork."""


@inline
def sum_squares(x, width, mean):
    """Of the differences from ``mean``, of ``width`` fp32."""
    total = vsplat(f32(0.0))
    for i in range(0, width, LANES):
        v = vkeep(vsub(load_some(x + 4 * i, width - i), vsplat(mean)), width - i, f32(0.0))
        total = vfma(v, v, total)
    return vsum(total)


@functools.cache
def rmsnorm_body() -> int:
    """Body ``(x, x_stride, out, out_stride, weight, width, eps, offset)``, item = one row.

    fp32 ``x`` and ``out`` [T, width] may be the same; strides in bytes; ``eps`` and ``offset``
    (added to the weight) as bits of fp32.
    """
    return compile_native(_rmsnorm)


def _rmsnorm(args, begin, end, scratch):
    x, x_stride, out, out_stride = arg(args, 0), arg(args, 1), arg(args, 2), arg(args, 3)
    weight, width, eps, offset = arg(args, 4), arg(args, 5), arg(args, 6), arg(args, 7)
    for t in range(begin, end):
        rms_normalize(x + t * x_stride, out + t * out_stride, weight, width, eps, offset)


@inline
def rms_normalize(row, to, weight, width, eps, offset):
    """RMSNorm of one row, which may be ``to``; arguments as of `rmsnorm_body`."""
    mean = sum_squares(row, width, f32(0.0)) / f32(width)
    scale = vsplat(f32(1.0) / f32(math.sqrt(mean + float_of_bits(eps))))
    for i in range(0, width, LANES):
        count = width - i
        w = vadd(load_some(weight + 4 * i, count), vsplat(float_of_bits(offset)))
        store_some(to + 4 * i, vmul(vmul(load_some(row + 4 * i, count), scale), w), count)
