"""Reading, mixing and averaging the streams of a residual: hyper-connections whose mixes are
balanced."""

from __future__ import annotations

import functools
import math

import numpy as np
from numba import types

from .compile import compile_native, inline
from .machine import LANES
from .memory import arg, bits_of_float, float_of_bits, load_float
from .norm import sum_squares
from .vec import (
    copy_row,
    load_some,
    store_some,
    vadd,
    vdiv,
    vexp,
    vfma,
    vhmax,
    vkeep,
    vmax,
    vmul,
    vsigmoid,
    vsplat,
    vstore,
    vsub,
    vsum,
)

f32 = types.float32

TOKENS_PER_ITEM = 2
"""16,384 values of a token take some microseconds."""

FACTORS, BASE, NUM_STREAMS, ITERATIONS, EPS, NORM_EPS, WIDTH = range(7)
"""Static block of `sinkhorn_read_body`, but that the width (H) is of a call."""


def static_block(
    factors: int, base: int, num_streams: int, iterations: int, eps: float, norm_eps: float
) -> np.ndarray:
    """int64 block: addresses of fp32 [S (S + 2)], which the products are multiplied with and what
    is added; S; how often columns are balanced; what is added to sums, and to the mean."""
    limits = bits_of_float(eps), bits_of_float(norm_eps)
    return np.array([factors, base, num_streams, iterations, *limits, 0], dtype=np.int64)


def scratch_bytes(num_streams: int) -> int:
    """Scratch memory a worker needs: weights of a token, or a vector of each stream."""
    return 4 * max(num_streams * (num_streams + 2), LANES * num_streams)


@functools.cache
def sinkhorn_read_body() -> int:
    """Body ``(static, products, products_stride, streams, streams_stride, out, out_stride, mix,
    mix_stride)``, item = token; fp32, strides in bytes."""
    return compile_native(_sinkhorn_read)


@functools.cache
def sinkhorn_write_body() -> int:
    """Body ``(y, y_stride, mix, mix_stride, streams, streams_stride, num_streams, width)``, item =
    token."""
    return compile_native(_sinkhorn_write)


@functools.cache
def stream_mean_body() -> int:
    """Body ``(streams, streams_stride, out, out_stride, num_streams, width)``, item = token."""
    return compile_native(_stream_mean)


def _sinkhorn_read(args, begin, end, scratch):
    static = arg(args, 0)
    count, width = arg(static, NUM_STREAMS), arg(static, WIDTH)
    for t in range(begin, end):
        streams = arg(args, 3) + t * arg(args, 4)
        _weigh(static, arg(args, 1) + t * arg(args, 2), streams, scratch)
        _balance(static, scratch + 8 * count)
        _add_up(streams, scratch, count, width, arg(args, 5) + t * arg(args, 6))
        copy_row(scratch + 4 * count, count * (count + 1), arg(args, 7) + t * arg(args, 8))


@inline
def _weigh(static, products, streams, weights):
    """``pre``, ``post`` and rows of ``comb``, which are shares, of one token."""
    count, eps = arg(static, NUM_STREAMS), float_of_bits(arg(static, EPS))
    size, wide = count * (count + 2), count * arg(static, WIDTH)
    mean = sum_squares(streams, wide, f32(0.0)) / f32(wide)
    norm = vsplat(f32(1.0) / f32(math.sqrt(mean + float_of_bits(arg(static, NORM_EPS)))))
    for i in range(0, size, LANES):
        factors = load_some(arg(static, FACTORS) + 4 * i, size - i)
        m = vmul(load_some(products + 4 * i, size - i), norm)
        m = vfma(m, factors, load_some(arg(static, BASE) + 4 * i, size - i))
        store_some(weights + 4 * i, m, size - i)
    for i in range(0, count, LANES):
        pre, post = weights + 4 * i, weights + 4 * (count + i)
        read = vadd(vsigmoid(load_some(pre, count - i)), vsplat(eps))
        added = vmul(vsplat(f32(2.0)), vsigmoid(load_some(post, count - i)))
        store_some(pre, read, count - i)
        store_some(post, added, count - i)
    for row in range(count):
        _softmax(weights + 4 * count * (2 + row), count, eps)


@inline
def _softmax(row, count, eps):
    top, total = vsplat(f32(-math.inf)), vsplat(f32(0.0))
    for i in range(0, count, LANES):
        top = vmax(top, vkeep(load_some(row + 4 * i, count - i), count - i, f32(-math.inf)))
    largest = vsplat(vhmax(top))
    for i in range(0, count, LANES):
        share = vexp(vsub(load_some(row + 4 * i, count - i), largest))
        total = vadd(total, vkeep(share, count - i, f32(0.0)))
        store_some(row + 4 * i, share, count - i)
    whole = vsplat(vsum(total))
    for i in range(0, count, LANES):
        share = vdiv(load_some(row + 4 * i, count - i), whole)
        store_some(row + 4 * i, vadd(share, vsplat(eps)), count - i)


@inline
def _balance(static, mix):
    """Columns and rows that sum to 1 (Sinkhorn and Knopp, 1967), columns last."""
    count, eps = arg(static, NUM_STREAMS), float_of_bits(arg(static, EPS))
    _divide_columns(mix, count, eps)
    for _ in range(arg(static, ITERATIONS) - 1):
        for row in range(count):
            _divide_row(mix + 4 * count * row, count, eps)
        _divide_columns(mix, count, eps)


@inline
def _divide_row(row, count, eps):
    total = vsplat(f32(0.0))
    for i in range(0, count, LANES):
        total = vadd(total, load_some(row + 4 * i, count - i))
    whole = vsplat(vsum(total) + eps)
    for i in range(0, count, LANES):
        store_some(row + 4 * i, vdiv(load_some(row + 4 * i, count - i), whole), count - i)


@inline
def _divide_columns(mix, count, eps):
    for i in range(0, count, LANES):
        total = vsplat(eps)
        for row in range(count):
            total = vadd(total, load_some(mix + 4 * (count * row + i), count - i))
        for row in range(count):
            at = mix + 4 * (count * row + i)
            store_some(at, vdiv(load_some(at, count - i), total), count - i)


@inline
def _add_up(streams, weights, count, width, out):
    """The weighted sum of the streams."""
    for i in range(0, width, LANES):
        total = vsplat(f32(0.0))
        for s in range(count):
            value = load_some(streams + 4 * (s * width + i), width - i)
            total = vfma(vsplat(load_float(weights + 4 * s)), value, total)
        store_some(out + 4 * i, total, width - i)


def _sinkhorn_write(args, begin, end, scratch):
    count, width = arg(args, 6), arg(args, 7)
    for t in range(begin, end):
        y, mix = arg(args, 0) + t * arg(args, 1), arg(args, 2) + t * arg(args, 3)
        streams = arg(args, 4) + t * arg(args, 5)
        for i in range(0, width, LANES):
            added = load_some(y + 4 * i, width - i)
            _mix(streams + 4 * i, mix, added, count, width, width - i, scratch)


@inline
def _mix(streams, mix, added, count, width, left, old):
    """A vector of each stream, of ``left`` values that there are."""
    for s in range(count):
        vstore(old + 4 * LANES * s, load_some(streams + 4 * s * width, left))
    for t in range(count):
        total = vmul(vsplat(load_float(mix + 4 * t)), added)
        for s in range(count):
            share = vsplat(load_float(mix + 4 * (count + s * count + t)))
            total = vfma(share, load_some(old + 4 * LANES * s, LANES), total)
        store_some(streams + 4 * t * width, total, left)


def _stream_mean(args, begin, end, scratch):
    count, width = arg(args, 4), arg(args, 5)
    for t in range(begin, end):
        streams, out = arg(args, 0) + t * arg(args, 1), arg(args, 2) + t * arg(args, 3)
        for i in range(0, width, LANES):
            total = vsplat(f32(0.0))
            for s in range(count):
                total = vadd(total, load_some(streams + 4 * (s * width + i), width - i))
            store_some(out + 4 * i, vdiv(total, vsplat(f32(count))), width - i)
