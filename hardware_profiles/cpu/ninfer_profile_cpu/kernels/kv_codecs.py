"""KV codecs of the cache: one head of one token to stored form, and stored rows back to fp32.

A stored plane (keys or values of one layer) is described by a *plane block* of int64, written at
bind time by `plane_block`. A codec is two native functions, whose addresses are in the block:

- ``write(plane, page, token, head, source, head_dim)`` encodes fp32 at ``source``;
- ``read(plane, page, head, num_tokens, head_dim, out)`` decodes the first tokens of a page to rows
  of ``head_dim`` fp32 at ``out``. There is none for fp32, which is read where it lies.

Head dimensions are multiples of ``LANES``.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from numba import types

from .compile import compile_native, inline
from .machine import LANES
from .memory import arg, load_float, prefetch, store_float
from .vec import vabs, vadd, vclamp, vdiv, vhmax, vload, vmax, vmul, vround, vsplat, vstore, vsum
from .vec_narrow import (
    load_half,
    store_half,
    vload_bf16,
    vload_fp8,
    vload_int8,
    vstore_bf16,
    vstore_fp8,
    vstore_int8,
)

f32 = types.float32

(CODES, CODES_PAGE, CODES_TOKEN, CODES_HEAD, SCALES, SCALES_PAGE, SCALES_TOKEN, SCALES_HEAD, WRITE,
 READ) = range(10)
"""For codes and for scales: address of page 0, then the bytes from page to page, token to token,
head to head. Then addresses of native functions, 0 for a `READ` that is not needed."""

GROUP = 64
"""Components that share an int8 scale."""


def plane_block(codec: str, codes: torch.Tensor, scales: torch.Tensor | None = None) -> np.ndarray:
    """Plane block of strided tensors ``[num_pages, 64, heads, ...]``, stored by ``codec``."""
    fields = []
    for tensor in (codes, scales):
        if tensor is None:
            fields += [0, 0, 0, 0]
        else:
            strides = [stride * tensor.element_size() for stride in tensor.stride()[:3]]
            fields += [tensor.data_ptr(), *strides]
    return np.array([*fields, *_functions(codec)], dtype=np.int64)


@functools.cache
def _functions(codec: str) -> tuple[int, int]:
    write, read = _CODECS[codec]
    return compile_native(write), compile_native(read) if read else 0


@inline
def code_address(plane, page, token, head):
    """Where the head's components lie."""
    start = arg(plane, CODES) + page * arg(plane, CODES_PAGE)
    return start + token * arg(plane, CODES_TOKEN) + head * arg(plane, CODES_HEAD)


@inline
def prefetch_head(plane, page, head, num_tokens):
    """Ask for the components of one head in a page."""
    for token in range(num_tokens):
        prefetch(code_address(plane, page, token, head), arg(plane, CODES_HEAD))


@inline
def _scale_address(plane, page, token, head):
    start = arg(plane, SCALES) + page * arg(plane, SCALES_PAGE)
    return start + token * arg(plane, SCALES_TOKEN) + head * arg(plane, SCALES_HEAD)


@inline
def _largest(source, count):
    """Largest magnitude; NaN if any component is not finite."""
    largest = taint = vsplat(f32(0.0))
    for i in range(0, count, LANES):
        x = vload(source + 4 * i)
        largest = vmax(largest, vabs(x))
        taint = vadd(taint, vmul(x, vsplat(f32(0.0))))
    return vhmax(largest) + vsum(taint)


@inline
def _divide(source, scale, i):
    return vdiv(vload(source + 4 * i), vsplat(scale))


def _write_fp32(plane, page, token, head, source, head_dim):
    to = code_address(plane, page, token, head)
    for i in range(0, head_dim, LANES):
        vstore(to + 4 * i, vload(source + 4 * i))


def _write_bf16(plane, page, token, head, source, head_dim):
    to = code_address(plane, page, token, head)
    for i in range(0, head_dim, LANES):
        vstore_bf16(to + 2 * i, vload(source + 4 * i))


def _read_bf16(plane, page, head, num_tokens, head_dim, out):
    for token in range(num_tokens):
        codes = code_address(plane, page, token, head)
        for i in range(0, head_dim, LANES):
            vstore(out + 4 * (token * head_dim + i), vload_bf16(codes + 2 * i))


def _write_int8(plane, page, token, head, source, head_dim):
    codes, scales = code_address(plane, page, token, head), _scale_address(plane, page, token, head)
    for begin in range(0, head_dim, GROUP):
        end = min(begin + GROUP, head_dim)
        scale = scales + 2 * (begin // GROUP)
        # max() of Numba would drop a NaN.
        largest = _largest(source + 4 * begin, end - begin) / f32(127.0)
        store_half(scale, f32(2.0**-24) if largest < f32(2.0**-24) else largest)
        step = load_half(scale)
        for i in range(begin, end, LANES):
            # The fp16 scale may have been rounded down.
            code = vclamp(vround(_divide(source, step, i)), f32(-127.0), f32(127.0))
            vstore_int8(codes + i, code)


def _read_int8(plane, page, head, num_tokens, head_dim, out):
    for token in range(num_tokens):
        codes = code_address(plane, page, token, head)
        scales = _scale_address(plane, page, token, head)
        to = out + 4 * token * head_dim
        for begin in range(0, head_dim, GROUP):
            scale = vsplat(load_half(scales + 2 * (begin // GROUP)))
            for i in range(begin, min(begin + GROUP, head_dim), LANES):
                vstore(to + 4 * i, vmul(vload_int8(codes + i), scale))


def _write_fp8(plane, page, token, head, source, head_dim):
    codes, scale = code_address(plane, page, token, head), _scale_address(plane, page, token, head)
    largest = _largest(source, head_dim) / f32(448.0)
    step = f32(2.0**-126) if largest < f32(2.0**-126) else largest
    store_float(scale, step)
    for i in range(0, head_dim, LANES):
        vstore_fp8(codes + i, _divide(source, step, i))


def _read_fp8(plane, page, head, num_tokens, head_dim, out):
    for token in range(num_tokens):
        codes, to = code_address(plane, page, token, head), out + 4 * token * head_dim
        scale = vsplat(load_float(_scale_address(plane, page, token, head)))
        for i in range(0, head_dim, LANES):
            vstore(to + 4 * i, vmul(vload_fp8(codes + i), scale))


_CODECS = {
    "fp32": (_write_fp32, None),
    "bf16": (_write_bf16, _read_bf16),
    "int8": (_write_int8, _read_int8),
    "fp8": (_write_fp8, _read_fp8),
}
KV_CODECS = tuple(_CODECS)
