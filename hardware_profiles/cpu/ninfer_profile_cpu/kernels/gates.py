"""Rows of activations times a function of their gates."""

from __future__ import annotations

import functools
import math

import numpy as np
from numba import types

from .compile import compile_native, inline
from .machine import LANES
from .memory import arg, bits_of_float, float_of_bits, load_float
from .norm import sum_squares
from .vec import load_some, store_some, vfma, vmul, vsigmoid, vsilu, vsplat, vsum

f32 = types.float32

HEADS_PER_ITEM = 16
"""A head of 128 values takes 100 ns: fewer are not worth a fork."""

STRIP = 1024
"""Columns of an item of the plain gate, and"""
STRIPS_PER_ITEM = 4
"""how many of those are worth a fork."""

TINY = 1e-6
"""Least size of which a signed root is taken."""

SILU, SIGMOID = range(2)
"""Activations, in the order of `accepts.ACTIVATIONS`."""

WEIGHT, WIDTH, NUM_HEADS, EPS, ACTIVATION = range(5)
"""Static block of `gated_rmsnorm_body`."""


def gated_rmsnorm_block(
    weight: int, width: int, num_heads: int, eps: float, activation: int
) -> np.ndarray:
    """int64 block: address of fp32 [width], width and number of heads, eps, ``SILU`` or
    ``SIGMOID``."""
    fields = [weight, width, num_heads, bits_of_float(eps), activation]
    return np.array(fields, dtype=np.int64)


@functools.cache
def gated_rmsnorm_body() -> int:
    """Body ``(static, x, x_stride, gate, gate_stride, out, out_stride)``, item = one head of a
    token.

    fp32 [T, heads * width], ``x`` and ``out`` may be the same; strides in bytes.
    """
    return compile_native(_gated_rmsnorm)


@functools.cache
def sigmoid_gate_body() -> int:
    """Body ``(x, x_stride, gate, gate_stride, out, out_stride, width, is_scalar)``, item = one
    strip of a token.

    fp32 ``x`` and ``out`` [T, width] may be the same, ``gate`` [T, width] or, if ``is_scalar``,
    [T, 1]; strides in bytes.
    """
    return compile_native(_sigmoid_gate)


@functools.cache
def signed_sqrt_gate_body() -> int:
    """Body ``(k, k_stride, q, q_stride, v, v_stride, out, out_stride, static)``, item = stream of a
    token; ``static``: int64 number of streams, and width H of one.

    fp32 ``k``, ``q``, ``out`` [T, S H], ``v`` [T, H]; strides in bytes.
    """
    return compile_native(_signed_sqrt_gate)


def _gated_rmsnorm(args, begin, end, scratch):
    static = arg(args, 0)
    x, x_stride, gate, gate_stride = arg(args, 1), arg(args, 2), arg(args, 3), arg(args, 4)
    out, out_stride, size = arg(args, 5), arg(args, 6), 4 * arg(static, WIDTH)
    for item in range(begin, end):
        token, head = item // arg(static, NUM_HEADS), item % arg(static, NUM_HEADS)
        row = x + token * x_stride + head * size
        to = out + token * out_stride + head * size
        _gate_head(static, row, gate + token * gate_stride + head * size, to)


@inline
def _gate_head(static, x, gate, out):
    weight, width = arg(static, WEIGHT), arg(static, WIDTH)
    mean = sum_squares(x, width, f32(0.0)) / f32(width)
    scale = vsplat(f32(1.0) / f32(math.sqrt(mean + float_of_bits(arg(static, EPS)))))
    for i in range(0, width, LANES):
        count = width - i
        y = vmul(vmul(load_some(x + 4 * i, count), scale), load_some(weight + 4 * i, count))
        g = load_some(gate + 4 * i, count)
        g = vsilu(g) if arg(static, ACTIVATION) == SILU else vsigmoid(g)
        store_some(out + 4 * i, vmul(y, g), count)


def _sigmoid_gate(args, begin, end, scratch):
    x, x_stride, gate, gate_stride = arg(args, 0), arg(args, 1), arg(args, 2), arg(args, 3)
    out, out_stride, width, is_scalar = arg(args, 4), arg(args, 5), arg(args, 6), arg(args, 7)
    num_strips = -(-width // STRIP)
    for item in range(begin, end):
        token, column = item // num_strips, item % num_strips * STRIP
        row, to = x + token * x_stride, out + token * out_stride
        gates = gate + token * gate_stride
        for i in range(column, min(column + STRIP, width), LANES):
            g = vsplat(load_float(gates)) if is_scalar else load_some(gates + 4 * i, width - i)
            y = vmul(load_some(row + 4 * i, width - i), vsigmoid(g))
            store_some(to + 4 * i, y, width - i)


def _signed_sqrt_gate(args, begin, end, scratch):
    count, width = arg(arg(args, 8), 0), arg(arg(args, 8), 1)
    for item in range(begin, end):
        t, column = item // count, 4 * width * (item % count)
        k = arg(args, 0) + t * arg(args, 1) + column
        gate = _signed_sqrt(k, arg(args, 2) + t * arg(args, 3) + column, width)
        v, out = arg(args, 4) + t * arg(args, 5), arg(args, 6) + t * arg(args, 7) + column
        for i in range(0, width, LANES):
            gated = vmul(load_some(v + 4 * i, width - i), gate)
            store_some(out + 4 * i, gated, width - i)


@inline
def _signed_sqrt(k, q, width):
    """The gate of one stream, in all lanes."""
    total = vsplat(f32(0.0))
    for i in range(0, width, LANES):
        total = vfma(load_some(k + 4 * i, width - i), load_some(q + 4 * i, width - i), total)
    score = vsum(total) / f32(math.sqrt(f32(width)))
    size = abs(score)
    size = f32(TINY) if size < f32(TINY) else size  # max() of Numba would drop a NaN
    root = f32(math.sqrt(size))
    if score == f32(0.0):
        root = f32(0.0)
    return vsigmoid(vsplat(-root if score < f32(0.0) else root))
