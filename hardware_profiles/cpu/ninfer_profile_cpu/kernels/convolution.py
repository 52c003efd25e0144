"""A short causal convolution along sequences whose last columns lie in slots, and SiLU."""

from __future__ import annotations

import functools

import numpy as np
from numba import types

from .compile import compile_native, inline
from .machine import LANES
from .memory import arg, load_int32
from .vec import copy_row, load_some, store_some, vfma, vsilu, vsplat

f32 = types.float32

STRIP = 512
"""Channels of an item: a strip of a few tokens and of the weight stays in L1."""

WEIGHT, TAPS, DILATION, WIDTH, COMMITTED, SLOT_BYTES, RECORD, RECORD_BYTES = range(8)
"""Static block of one layer, see `static_block`."""

STATIC, X, X_STRIDE, OUT, OUT_STRIDE, ROW_START, SLOTS, REPLAY, CERTAIN = range(9)
"""Arguments of one call, see `convolution_body`."""


def static_block(
    *, weight: int, taps: int, dilation: int, width: int, committed: int, slot_bytes: int,
    record: int, record_bytes: int,
) -> np.ndarray:
    """int64 block of what does not change from call to call.

    fp32 at addresses: ``weight`` [taps, width], ``committed`` [(taps - 1) dilation, width] a slot,
    ``record`` [rows, width] a slot; ``slot_bytes``, ``record_bytes``: from slot to slot of the two.
    """
    fields = [weight, taps, dilation, width, committed, slot_bytes, record, record_bytes]
    return np.array(fields, dtype=np.int64)


@functools.cache
def convolution_body() -> int:
    """Body ``(static, x, x_stride, out, out_stride, row_start, slots, replay, certain)``, item =
    sequence and ``STRIP`` channels.

    fp32 ``x`` and ``out`` [T, width], strides in bytes; int32 ``row_start`` [B + 1], ``slots``,
    ``replay``, ``certain`` [B].
    """
    return compile_native(_convolution)


def _convolution(args, begin, end, scratch):
    num_strips = -(-arg(arg(args, STATIC), WIDTH) // STRIP)
    for item in range(begin, end):
        _run_strip(args, item // num_strips, item % num_strips * STRIP)


@inline
def _run_strip(args, row, channel):
    static = arg(args, STATIC)
    slot, stride = load_int32(arg(args, SLOTS) + 4 * row), 4 * arg(static, WIDTH)
    committed = arg(static, COMMITTED) + slot * arg(static, SLOT_BYTES) + 4 * channel
    record = arg(static, RECORD) + slot * arg(static, RECORD_BYTES) + 4 * channel
    channels = min(STRIP, arg(static, WIDTH) - channel)
    first = load_int32(arg(args, ROW_START) + 4 * row)
    count = load_int32(arg(args, ROW_START) + 4 * (row + 1)) - first
    x = arg(args, X) + first * arg(args, X_STRIDE) + 4 * channel
    replay = load_int32(arg(args, REPLAY) + 4 * row)
    _append(static, committed, record, stride, replay, channels)
    for t in range(count):
        out = arg(args, OUT) + (first + t) * arg(args, OUT_STRIDE) + 4 * channel
        _convolve(static, committed, x, arg(args, X_STRIDE), t, channel, channels, out)
    if load_int32(arg(args, CERTAIN) + 4 * row):
        _append(static, committed, x, arg(args, X_STRIDE), count, channels)
    else:
        for t in range(count):
            copy_row(x + t * arg(args, X_STRIDE), channels, record + t * stride)


@inline
def _column(static, committed, x, x_stride, index):
    """Where the column ``index`` tokens behind the first of the step is; before it, committed."""
    if index >= 0:
        return x + index * x_stride
    return committed + (_history(static) + index) * 4 * arg(static, WIDTH)


@inline
def _history(static):
    """Committed columns of a slot."""
    return (arg(static, TAPS) - 1) * arg(static, DILATION)


@inline
def _convolve(static, committed, x, x_stride, token, channel, channels, out):
    taps, stride = arg(static, TAPS), 4 * arg(static, WIDTH)
    weight = arg(static, WEIGHT) + 4 * channel
    for i in range(0, channels, LANES):
        total = vsplat(f32(0.0))
        for j in range(taps):
            index = token + (j - (taps - 1)) * arg(static, DILATION)
            column = _column(static, committed, x, x_stride, index)
            factors = load_some(weight + j * stride + 4 * i, channels - i)
            total = vfma(factors, load_some(column + 4 * i, channels - i), total)
        store_some(out + 4 * i, vsilu(total), channels - i)


@inline
def _append(static, committed, new, new_stride, count, channels):
    """Append ``count`` columns to the committed ones, of which the last stay."""
    history, stride = _history(static), 4 * arg(static, WIDTH)
    if count:
        for j in range(history):  # in place: each is read before it is written
            column = _column(static, committed, new, new_stride, j + count - history)
            copy_row(column, channels, committed + j * stride)
