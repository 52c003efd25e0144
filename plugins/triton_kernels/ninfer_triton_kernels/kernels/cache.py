"""Keys and values as the codecs of the cache store them."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.products import INTERPRETED

PAGE = tl.constexpr(64)
"""Tokens of a page."""

SPLIT_ASSEMBLY = tl.constexpr("""{
.reg .b32 t;
.reg .b16 lo, hi;
prmt.b32 t, $2, 0, 0x3120;
mov.b32 {lo, hi}, t;
cvt.rn.f16x2.e4m3x2 $0, lo;
cvt.rn.f16x2.e4m3x2 $1, hi;
}""")
"""Bytes 0 and 2 of a register, and bytes 1 and 3."""

SPLIT_SIGNED_ASSEMBLY = tl.constexpr("""{
.reg .b32 t, m;
mov.b32 m, 0x64806480;
xor.b32 t, $2, 0x80808080;
prmt.b32 $0, t, 0x64646464, 0x4240;
prmt.b32 $1, t, 0x64646464, 0x4341;
sub.f16x2 $0, $0, m;
sub.f16x2 $1, $1, m;
}""")
"""The same of signed bytes: 0x64 before a byte is 1024 and the byte, as fp16."""

WIDEN_SIGNED_ASSEMBLY = tl.constexpr(
    SPLIT_SIGNED_ASSEMBLY.value.replace("0x4240", "0x4140").replace("0x4341", "0x4342"))
"""Bytes 0 and 1, and bytes 2 and 3."""


@triton.jit
def read_page(entry):
    """A page's number from an entry of the table, by an instruction that the pipeliner does not
    know for a load: a load whose result addresses other loads would take half of their stages."""
    if INTERPRETED:
        page = tl.load(entry)
    else:
        page = tl.inline_asm_elementwise(
            "ld.global.b32 $0, [$1];", "=r,l", [entry], dtype=tl.int32, is_pure=True, pack=1)
    return page.to(tl.int64)


@triton.jit
def split_pairs(pairs, CODEC: tl.constexpr):
    """Codes of two neighbours each, as 16 bits, to fp16 of the first and of the second: single
    bytes would be read from shared memory one by one."""
    CODE: tl.constexpr = tl.float8e4nv if CODEC == "fp8" else tl.int8
    if INTERPRETED:
        first = (pairs & 255).to(tl.uint8).to(CODE, bitcast=True).to(tl.float16)
        second = ((pairs >> 8) & 255).to(tl.uint8).to(CODE, bitcast=True).to(tl.float16)
    else:
        first, second = tl.inline_asm_elementwise(
            SPLIT_ASSEMBLY if CODEC == "fp8" else SPLIT_SIGNED_ASSEMBLY, "=r,=r,r", [pairs],
            dtype=(tl.float16, tl.float16), is_pure=True, pack=2)
    return first, second


@triton.jit
def widen(codes, CODEC: tl.constexpr):
    """Codes of ``fp8`` or ``int8`` as fp16."""
    if CODEC == "fp8" or INTERPRETED:
        return codes.to(tl.float16)
    else:
        return tl.inline_asm_elementwise(
            WIDEN_SIGNED_ASSEMBLY, "=r,=r,r", [codes], dtype=tl.float16, is_pure=True, pack=4)


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
    values, codes, scales, at, scale_at, exists, width, CODEC: tl.constexpr, BLOCK: tl.constexpr,
):
    """Encode heads, fp32 ``[HEADS, BLOCK]``, zeros beyond ``width``, those that exist, to elements
    ``at`` of the codes and ``scale_at`` of the scales."""
    HEADS: tl.constexpr = values.shape[0]
    i = tl.arange(0, BLOCK)[None, :]
    to, live = codes + at[:, None] + i, exists[:, None] & (i < width)
    if CODEC == "bf16" or CODEC == "float32":
        tl.store(to, values.to(codes.dtype.element_ty), mask=live)
    elif CODEC == "fp8":
        scale = at_least(largest(values) / 448, 1.1754943508222875e-38)
        tl.store(to, to_e4m3(tl.div_rn(values, scale[:, None])), mask=live)
        tl.store(scales + scale_at, scale, mask=exists)
    else:
        GROUPS: tl.constexpr = (BLOCK + 63) // 64
        grouped = tl.reshape(values, (HEADS, GROUPS, BLOCK // GROUPS))
        limit = at_least(largest(grouped) / 127, 5.960464477539063e-08)
        scale = limit.to(tl.float16)
        codes_f = round_to_even(tl.div_rn(grouped, scale.to(tl.float32)[:, :, None]))
        clamped = tl.minimum(tl.maximum(codes_f, -127.0), 127.0)
        tl.store(to, tl.reshape(clamped, (HEADS, BLOCK)).to(tl.int8), mask=live)
        g = tl.arange(0, GROUPS)[None, :]
        tl.store(scales + scale_at[:, None] + g, scale, mask=exists[:, None] & (g * 64 < width))


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
        known = live[:, None] if EVEN else live[:, None] & (g * 64 < width)[None, :]
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
