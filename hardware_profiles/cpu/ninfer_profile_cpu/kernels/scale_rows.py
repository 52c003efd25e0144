"""The scales of a few consecutive rows of a weight: where decoders find them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .compile import inline, named
from .decoders import decoder
from .machine import LANES
from .memory import arg, prefetch
from .planes import TILE_SCALE_BYTES, TILE_SCALE_ROWS, Scales
from .vec import store_some, vstore
from .vec_narrow import vload_half, vload_half_n
from .weight_fields import MINIMUMS, SCALES, SCALES_STRIDE

ScaleFunction = Callable[..., Any]


def find_scales(fmt: str) -> ScaleFunction:
    """Inline ``(weight, row, num_rows, scratch)``: the address of the scales of ``row``.

    Those of the next rows follow at `scales_stride`; the minimums of ``num_rows`` rows, if the
    format has any, follow behind all scales. ``scratch``: memory for both in fp32. Rows whose
    scales are tiled lie in one run of 32, which begins at a multiple of 32.
    """
    halves, tiled, has_minimum = _kind(fmt)

    def find(weight, row, num_rows, scratch):
        scales, stride = arg(weight, SCALES), arg(weight, SCALES_STRIDE)
        if tiled:
            tile, inside = row // TILE_SCALE_ROWS, row % TILE_SCALE_ROWS
            return scales + tile * stride + inside % 32 * 16 + inside // 32 * 4
        if not halves:
            return scales + row * stride
        count = num_rows * stride // 2
        _halves_to_floats(scales + row * stride, count, scratch)
        if has_minimum:
            minimums = arg(weight, MINIMUMS) + row * stride
            _halves_to_floats(minimums, count, scratch + 4 * count)
        return scratch

    return inline(named(find, fmt))


def scales_stride(fmt: str) -> ScaleFunction:
    """Inline ``(weight)``: bytes from row to row of what `find_scales` finds."""
    halves, tiled, _ = _kind(fmt)

    def distance(weight):
        stride = arg(weight, SCALES_STRIDE)
        return 16 if tiled else 2 * stride if halves else stride

    return inline(named(distance, fmt))


def prefetch_scales(fmt: str) -> ScaleFunction:
    """Inline ``(weight, row, num_rows)``: ask for what `find_scales` will read."""
    _, tiled, has_minimum = _kind(fmt)

    def ask(weight, row, num_rows):
        scales, stride = arg(weight, SCALES), arg(weight, SCALES_STRIDE)
        if tiled:
            first = scales + row // TILE_SCALE_ROWS * stride + row % 32 * 16
            for offset in range(0, stride, TILE_SCALE_BYTES):
                prefetch(first + offset, 1)
        else:
            prefetch(scales + row * stride, num_rows * stride)
        if has_minimum:
            prefetch(arg(weight, MINIMUMS) + row * stride, num_rows * stride)

    return inline(named(ask, fmt))


def _kind(fmt: str) -> tuple[bool, bool, bool]:
    form = decoder(fmt)
    return form.scales is Scales.HALVES, form.scales is Scales.TILED, form.has_minimum


@inline
def _halves_to_floats(source, count, out):
    whole = count // LANES * LANES
    for i in range(0, whole, LANES):
        vstore(out + 4 * i, vload_half(source + 2 * i))
    if whole < count:
        rest = count - whole
        store_some(out + 4 * whole, vload_half_n(source + 2 * whole, rest), rest)
