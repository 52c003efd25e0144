"""Keys and values as the codecs of the cache store them."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.products import INTERPRETED

PAGE = tl.constexpr(64)
"""Tokens of a page."""


@triton.jit
def round_to_even(x):
    """Halves to even, of fp32 below 2^22 in magnitude."""
    magic = 12582912.0  # 1.5 * 2^23: the sum has no bits left below 1
    return (x + magic) - magic


@triton.jit
def to_e4m3(x):
    """Halves to even, of magnitudes up to 448."""
    if INTERPRETED:  # its cast loses the carry of the mantissa: give it nothing to round
        bits = x.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFFF + ((bits >> 20) & 1)) & ~0xFFFFF
        subnormal = round_to_even(x * 512) / 512
        x = tl.where(tl.abs(x) < 0.015625, subnormal, rounded.to(tl.float32, bitcast=True))
    return x.to(tl.float8e4nv)


@triton.jit
def largest(x):
    """The largest magnitude of the last dimension; not finite if a component is not."""
    axis: tl.constexpr = len(x.shape) - 1
    return tl.max(tl.abs(x), axis) + tl.sum(x * 0.0, axis)


@triton.jit
def at_least(x, least):
    """The larger of the two; NaN stays."""
    return tl.maximum(x, least, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def append(
    values, codes, scales, at, scale_at, width, CODEC: tl.constexpr, BLOCK: tl.constexpr,
):
    """Encode one head's fp32 ``[BLOCK]``, zeros beyond ``width``, to element ``at`` of the codes
    and ``scale_at`` of the scales."""
    i = tl.arange(0, BLOCK)
    live = i < width
    if CODEC == "bf16" or CODEC == "float32":
        tl.store(codes + at + i, values.to(codes.dtype.element_ty), mask=live)
    elif CODEC == "fp8":
        scale = at_least(largest(values) / 448, 1.1754943508222875e-38)
        tl.store(codes + at + i, to_e4m3(tl.div_rn(values, scale)), mask=live)
        tl.store(scales + scale_at, scale)
    else:
        GROUPS: tl.constexpr = (BLOCK + 63) // 64
        grouped = tl.reshape(values, (GROUPS, BLOCK // GROUPS))
        limit = at_least(largest(grouped) / 127, 5.960464477539063e-08)
        scale = limit.to(tl.float16)
        codes_f = round_to_even(tl.div_rn(grouped, scale.to(tl.float32)[:, None]))
        clamped = tl.minimum(tl.maximum(codes_f, -127.0), 127.0)
        tl.store(codes + at + i, tl.reshape(clamped, (BLOCK,)).to(tl.int8), mask=live)
        g = tl.arange(0, GROUPS)
        tl.store(scales + scale_at + g, scale, mask=g * 64 < width)


@triton.jit
def load_block(
    codes, scales, page, page_stride, scale_stride, offset, head, num_heads, live, width,
    CODEC: tl.constexpr, EVEN: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
):
    """One head of tokens ``offset`` to ``offset + N`` of a page, as stored ``[N, BLOCK]``, and the
    scales of its tokens, ``[N]``, or of groups, ``[N, BLOCK / 64]``. Tokens that are not ``live``
    are zero; columns beyond ``width`` too."""
    n = offset + tl.arange(0, N)
    i = tl.arange(0, BLOCK)
    row = n * num_heads + head
    here = live[:, None] if EVEN else live[:, None] & (i < width)[None, :]
    at = page.to(tl.int64) * page_stride + row[:, None] * width + i[None, :]
    tile = tl.load(codes + at, mask=here, other=0.0)
    base = scales + page.to(tl.int64) * scale_stride
    if CODEC == "fp8":
        factors = tl.load(base + row, mask=live, other=0.0)
    elif CODEC == "int8":
        GROUPS: tl.constexpr = (BLOCK + 63) // 64
        g = tl.arange(0, GROUPS)
        known = live[:, None] & (g * 64 < width)[None, :]
        factors = tl.load(
            base + row[:, None] * ((width + 63) // 64) + g[None, :], mask=known, other=0.0)
    else:
        factors = live
    return tile, factors


@triton.jit
def as_operand(tile, factors, CODEC: tl.constexpr):
    """What was loaded as bf16; the scales of whole tokens are not in it."""
    if CODEC == "int8":
        N: tl.constexpr = tile.shape[0]
        BLOCK: tl.constexpr = tile.shape[1]
        GROUPS: tl.constexpr = factors.shape[1]
        spread = tl.broadcast_to(factors.to(tl.float32)[:, :, None], (N, GROUPS, BLOCK // GROUPS))
        tile = tile.to(tl.float32) * tl.reshape(spread, (N, BLOCK))
    return tile.to(tl.bfloat16)
