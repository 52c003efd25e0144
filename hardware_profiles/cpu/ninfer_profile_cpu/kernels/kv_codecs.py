"""KV codecs of the cache: one head of one token to stored form, and stored rows back to fp32.

A stored plane (keys or values of one layer) is described by a *plane block*, int64 fields written
at bind time; see `plane_block`.  Head dimensions are multiples of ``LANES``.
"""

import functools
import typing

import numpy as np
from numba import njit, types

from .machine import LANES
from .memory import arg, load_float, store_float
from .vec import vabs, vadd, vclamp, vdiv, vhmax, vload, vmax, vmul, vround, vsplat, vstore, vsum
from .vec_narrow import (
    load_half, store_half, vload_bf16, vload_fp8, vload_int8, vstore_bf16, vstore_fp8, vstore_int8,
)  # fmt: skip

f32, i64 = types.float32, types.int64

CODES, CODES_PAGE, CODES_TOKEN, CODES_HEAD, SCALES, SCALES_PAGE, SCALES_TOKEN, SCALES_HEAD = range(8)
"""For codes and for scales: address of page 0, then the bytes from page to page, token to token,
head to head."""

GROUP = 64
"""Components that share an int8 scale."""


class KVCodec(typing.NamedTuple):
    """Native functions of one codec.

    ``write(plane, page, token, head, source, head_dim)``: encode fp32 at ``source``.
    ``read(plane, page, head, num_tokens, head_dim, out)``: decode the first tokens of a page to
    rows of ``head_dim`` fp32 at ``out``.
    ``is_direct``: whether the stored form is fp32 itself, so that nothing needs reading.
    """

    write: typing.Any
    read: typing.Any
    is_direct: bool = False


def plane_block(codes, scales=None):
    """Plane block of strided tensors ``[num_pages, 64, heads, ...]`` (torch)."""
    fields = []
    for tensor in (codes, scales):
        if tensor is None:
            fields += [0, 0, 0, 0]
        else:
            fields += [tensor.data_ptr(), *(s * tensor.element_size() for s in tensor.stride()[:3])]
    return np.array(fields, dtype=np.int64)


@njit
def code_address(plane, page, token, head):
    """Where the head's components lie."""
    return arg(plane, CODES) + page * arg(plane, CODES_PAGE) + token * arg(plane, CODES_TOKEN) + head * arg(plane, CODES_HEAD)


@njit
def _scale_address(plane, page, token, head):
    return arg(plane, SCALES) + page * arg(plane, SCALES_PAGE) + token * arg(plane, SCALES_TOKEN) + head * arg(plane, SCALES_HEAD)


@njit
def _largest(source, count):
    """Largest magnitude; NaN if any component is not finite."""
    largest = taint = vsplat(f32(0.0))
    for i in range(0, count, LANES):
        x = vload(source + 4 * i)
        largest = vmax(largest, vabs(x))
        taint = vadd(taint, vmul(x, vsplat(f32(0.0))))
    return vhmax(largest) + vsum(taint)


@njit
def _divide(source, scale, i):
    return vdiv(vload(source + 4 * i), vsplat(scale))


def _fp32():
    @njit
    def write(plane, page, token, head, source, head_dim):
        to = code_address(plane, page, token, head)
        for i in range(0, head_dim, LANES):
            vstore(to + 4 * i, vload(source + 4 * i))

    @njit
    def read(plane, page, head, num_tokens, head_dim, out):
        return

    return KVCodec(write, read, is_direct=True)


def _bf16():
    @njit
    def write(plane, page, token, head, source, head_dim):
        to = code_address(plane, page, token, head)
        for i in range(0, head_dim, LANES):
            vstore_bf16(to + 2 * i, vload(source + 4 * i))

    @njit
    def read(plane, page, head, num_tokens, head_dim, out):
        for token in range(num_tokens):
            codes = code_address(plane, page, token, head)
            for i in range(0, head_dim, LANES):
                vstore(out + 4 * (token * head_dim + i), vload_bf16(codes + 2 * i))

    return KVCodec(write, read)


def _int8():
    @njit
    def write(plane, page, token, head, source, head_dim):
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

    @njit
    def read(plane, page, head, num_tokens, head_dim, out):
        for token in range(num_tokens):
            codes, scales = code_address(plane, page, token, head), _scale_address(plane, page, token, head)
            to = out + 4 * token * head_dim
            for begin in range(0, head_dim, GROUP):
                scale = vsplat(load_half(scales + 2 * (begin // GROUP)))
                for i in range(begin, min(begin + GROUP, head_dim), LANES):
                    vstore(to + 4 * i, vmul(vload_int8(codes + i), scale))

    return KVCodec(write, read)


def _fp8():
    @njit
    def write(plane, page, token, head, source, head_dim):
        codes, scale = code_address(plane, page, token, head), _scale_address(plane, page, token, head)
        largest = _largest(source, head_dim) / f32(448.0)
        step = f32(2.0**-126) if largest < f32(2.0**-126) else largest
        store_float(scale, step)
        for i in range(0, head_dim, LANES):
            vstore_fp8(codes + i, _divide(source, step, i))

    @njit
    def read(plane, page, head, num_tokens, head_dim, out):
        for token in range(num_tokens):
            codes, to = code_address(plane, page, token, head), out + 4 * token * head_dim
            scale = vsplat(load_float(_scale_address(plane, page, token, head)))
            for i in range(0, head_dim, LANES):
                vstore(to + 4 * i, vmul(vload_fp8(codes + i), scale))

    return KVCodec(write, read)


_CODECS = {"fp32": _fp32, "bf16": _bf16, "int8": _int8, "fp8": _fp8}
KV_CODECS = tuple(_CODECS)


@functools.cache
def kv_codec(name: str) -> KVCodec:
    """The native functions of codec ``name``, one of `KV_CODECS`."""
    return _CODECS[name]()
