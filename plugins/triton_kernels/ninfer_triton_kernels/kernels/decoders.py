"""Codes of few bits to bf16 operands, two or four at a time.

Triton would take each code apart by itself; here a 32-bit register holds several, and what comes
out of a step is already an operand of the matrix instruction. All results are exact.
"""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.products import INTERPRETED

_ONE = "0x3F803F80"


@triton.constexpr_function
def affine_assembly(bits, offset):
    """Registers of 16-bit elements, two each, and of the words of the bits above four, to planes
    0..3: one register of elements, but two, the row halves, for 5 bits.

    A code in the mantissa of 128 is 128 + code; one multiply-add takes 128 and the offset away.
    """
    more, pairs = bits - 4, 2 if bits == 5 else 1
    lines = ["{ .reg .b32 t, h, g, k, o, m;", f"mov.b32 k, 0x43004300; mov.b32 o, {_ONE};",
             f"mov.b32 m, {hex(0xC300C300 + offset * 0x10001)};"]
    for pair in range(pairs):
        low, high = f"${4 * pairs + pair}", f"${5 * pairs + pair}"
        if bits == 6:  # the second byte of the word is the second element's
            lines.append(f"prmt.b32 g, {high}, 0, 0x4140;")
        if bits == 5:  # the second four bits, of the byte of the row half
            lines.append(f"shr.u32 g, {high}, {8 * pair};")
            lines.append("shr.u32 h, g, 4; prmt.b32 g, g, h, 0x7610;")
        for j in range(4):
            out = f"${j * pairs + pair}"
            if j:
                lines.append(f"shr.u32 t, {low}, {4 * j};")
            lines.append(f"lop3.b32 {out}, {'t' if j else low}, 0x000F000F, k, 0xEA;")
            if more:
                mask, shift = ((1 << more) - 1) << 4, 4 - more * j
                step = f"shl.b32 h, g, {shift};" if shift >= 0 else f"shr.u32 h, g, {-shift};"
                lines.append(f"{step} lop3.b32 {out}, h, {hex(mask * 0x10001)}, {out}, 0xEA;")
            lines.append(f"fma.rn.bf16x2 {out}, {out}, o, m;")
    return " ".join([*lines, "}"])


E2M1_ASSEMBLY = tl.constexpr("""{
.reg .b32 t, h, even, odd, lo, hi, bias;
.reg .b16 a, b;
mov.b32 bias, 0x76007600;
and.b32 $0, $4, 0x81C081C0;
shl.b32 t, $4, 3; and.b32 $1, t, 0x81C081C0;
shl.b32 t, $4, 6; and.b32 t, t, 0x01C001C0; shl.b32 h, $4, 1; lop3.b32 $2, h, 0x80008000, t, 0xEA;
shr.u32 t, $4, 3; and.b32 t, t, 0x01C001C0; shl.b32 h, $4, 2; lop3.b32 $3, h, 0x80008000, t, 0xEA;
and.b32 even, $5, 0x00FF00FF; mad.lo.u32 even, even, 16, bias;
shr.u32 odd, $5, 8; and.b32 odd, odd, 0x00FF00FF; mad.lo.u32 odd, odd, 16, bias;
mov.b32 {a, b}, even; mov.b32 lo, {a, a}; mov.b32 hi, {b, b};
mul.rn.bf16x2 $0, $0, lo; mul.rn.bf16x2 $2, $2, hi;
mov.b32 {a, b}, odd; mov.b32 lo, {a, a}; mov.b32 hi, {b, b};
mul.rn.bf16x2 $1, $1, lo; mul.rn.bf16x2 $3, $3, hi;
}""")
"""Both elements of a pair have the same scales: they are of one row."""

E4M3_ASSEMBLY = tl.constexpr("""{
.reg .b32 t, h, k;
mov.b32 k, 0x7B807B80;
prmt.b32 t, $2, 0, 0x1404; shr.u32 h, t, 4; and.b32 h, h, 0x07F007F0;
lop3.b32 t, t, 0x80008000, h, 0xEA; mul.rn.bf16x2 $0, t, k;
prmt.b32 t, $2, 0, 0x3424; shr.u32 h, t, 4; and.b32 h, h, 0x07F007F0;
lop3.b32 t, t, 0x80008000, h, 0xEA; mul.rn.bf16x2 $1, t, k;
}""")
"""Exponent and mantissa in their places of a bf16 are 2^-120 times the value."""

INT8_ASSEMBLY = tl.constexpr("""{
.reg .b32 u, t;
.reg .f32 a, b, m;
mov.b32 m, 0xCB000080;
xor.b32 u, $2, 0x80808080;
prmt.b32 t, u, 0x4B000000, 0x7440; mov.b32 a, t; prmt.b32 t, u, 0x4B000000, 0x7441; mov.b32 b, t;
add.f32 a, a, m; add.f32 b, b, m; cvt.rn.bf16x2.f32 $0, b, a;
prmt.b32 t, u, 0x4B000000, 0x7442; mov.b32 a, t; prmt.b32 t, u, 0x4B000000, 0x7443; mov.b32 b, t;
add.f32 a, a, m; add.f32 b, b, m; cvt.rn.bf16x2.f32 $1, b, a;
}""")
"""An unsigned byte in the mantissa of 2^23 is 2^23 + byte."""


@triton.jit
def high_shifts(BITS: tl.constexpr, BN: tl.constexpr):
    """Where the bits of rows and columns 0..15 begin in their words: ``[BN, 16]``."""
    second = tl.arange(0, 16)[None, :] % 2
    half = tl.arange(0, BN)[:, None] // 8 % 2
    return half * 0 + second * 8 if BITS == 6 else half * 8 + second * 4


@triton.jit
def affine_plane(low, high, J: tl.constexpr, BITS: tl.constexpr, OFFSET: tl.constexpr):
    """Codes of plane J, one by one."""
    words = (low >> (4 * J)).to(tl.int32) & 15
    if BITS > 4:
        own = high.to(tl.int32) >> high_shifts(BITS, low.shape[1])[None, :, :]
        words |= ((own >> ((BITS - 4) * J)) & ((1 << (BITS - 4)) - 1)) << 4
    return (words - OFFSET).to(tl.float32).to(tl.bfloat16)


@triton.jit
def affine_planes(low, high, BITS: tl.constexpr, OFFSET: tl.constexpr):
    """16-bit elements of the low four bits, and the words of those above (`fragments.high_rows`),
    to four planes."""
    if INTERPRETED:
        p0 = affine_plane(low, high, 0, BITS, OFFSET)
        p1 = affine_plane(low, high, 1, BITS, OFFSET)
        p2 = affine_plane(low, high, 2, BITS, OFFSET)
        p3 = affine_plane(low, high, 3, BITS, OFFSET)
    elif BITS == 4:
        p0, p1, p2, p3 = tl.inline_asm_elementwise(
            affine_assembly(BITS, OFFSET), "=&r,=&r,=&r,=&r,r", [low],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2)
    elif BITS == 5:
        p0, p1, p2, p3 = tl.inline_asm_elementwise(
            affine_assembly(BITS, OFFSET), "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r", [low, high],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=4)
    else:
        p0, p1, p2, p3 = tl.inline_asm_elementwise(
            affine_assembly(BITS, OFFSET), "=&r,=&r,=&r,=&r,r,r", [low, high],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2)
    return p0, p1, p2, p3


@triton.jit
def e2m1_plane(words, scales, SIGN: tl.constexpr, FIRST: tl.constexpr, J: tl.constexpr):
    """Codes of plane J times their scales: sign and first bit of the magnitude at these places."""
    code = words.to(tl.int32)
    bits = (((code >> SIGN) & 1) << 15) | (((code >> FIRST) & 7) << 6)
    scale = ((scales >> (8 * J)) & 255) * 16 + 0x7600
    value = (bits << 16).to(tl.float32, bitcast=True)
    return (value * (scale << 16).to(tl.float32, bitcast=True)).to(tl.bfloat16)


@triton.jit
def e2m1_planes(words, scales):
    """Elements of four E2M1 codes, and four scale bytes each, to planes of 2^-7 times the values.

    An E2M1 code is the sign and the last three bits of a bf16 of 2^-126 times its value; a scale
    byte is exponent and mantissa of one of 2^119 times its value, less 236 in the exponent. The
    planes' signs are bits 15, 12, 14 and 13 of an element, their magnitudes begin at bits 6, 3, 0
    and 9: the first is in place, the others are a shift or two away.
    """
    if INTERPRETED:
        p0 = e2m1_plane(words, scales, 15, 6, 0)
        p1 = e2m1_plane(words, scales, 12, 3, 1)
        p2 = e2m1_plane(words, scales, 14, 0, 2)
        p3 = e2m1_plane(words, scales, 13, 9, 3)
    else:
        p0, p1, p2, p3 = tl.inline_asm_elementwise(
            E2M1_ASSEMBLY, "=&r,=&r,=&r,=&r,r,r,r", [words, scales],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2)
    return p0, p1, p2, p3


@triton.jit
def byte_values(codes, E4M3: tl.constexpr):
    """Bytes, of E4M3 or of signed integers, as bf16."""
    if INTERPRETED:
        if E4M3:
            values = codes.to(tl.float8e4nv, bitcast=True).to(tl.float32).to(tl.bfloat16)
        else:
            values = codes.to(tl.float32).to(tl.bfloat16)
    elif E4M3:
        values = tl.inline_asm_elementwise(
            E4M3_ASSEMBLY, "=&r,=&r,r", [codes], dtype=tl.bfloat16, is_pure=True, pack=4)
    else:
        values = tl.inline_asm_elementwise(
            INT8_ASSEMBLY, "=&r,=&r,r", [codes], dtype=tl.bfloat16, is_pure=True, pack=4)
    return values
