"""Codes of few bits to bf16 operands: words of two elements to the words of their planes.

A word holds a code of each plane in both of its halves, so that one step decodes two. All results
are exact.
"""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.fragments import row_halves
from ninfer_triton_kernels.kernels.products import INTERPRETED


@triton.constexpr_function
def both(half):
    """16 bits in both halves of an int32."""
    word = half * 0x10001
    return word - (1 << 32) if word >> 31 else word


@triton.constexpr_function
def multiply_assembly(half):
    """bf16 pairs times one half of a word."""
    return ("{ .reg .b16 a, b; .reg .b32 f; mov.b32 {a, b}, $2; "
            f"mov.b32 f, {{{'b, b' if half else 'a, a'}}}; mul.rn.bf16x2 $0, $1, f; }}")


ADD_ASSEMBLY = tl.constexpr(
    "{ .reg .b32 one; mov.b32 one, 0x3F803F80; fma.rn.bf16x2 $0, $1, one, $2; }")


@triton.jit
def upper(words):
    """The bf16 in the upper half of each word, as fp32."""
    return (words & -65536).to(tl.float32, bitcast=True)


@triton.jit
def joined(low, high):
    """Words of two fp32 that are bf16."""
    return ((low.to(tl.int32, bitcast=True) >> 16) & 0xFFFF) | high.to(tl.int32, bitcast=True)


@triton.jit
def times_half(words, factors, HALF: tl.constexpr):
    """bf16 pairs times the bf16 in one half of a word; exact products only."""
    if INTERPRETED:
        factor = upper(factors if HALF else factors << 16)
        result = joined(upper(words << 16) * factor, upper(words) * factor)
    else:
        result = tl.inline_asm_elementwise(
            multiply_assembly(HALF), "=r,r,r", [words, factors], dtype=tl.int32, is_pure=True,
            pack=1)
    return result


@triton.jit
def add_pairs(words, others):
    """Sums of bf16 pairs; exact sums only."""
    if INTERPRETED:
        result = joined(upper(words << 16) + upper(others << 16), upper(words) + upper(others))
    else:
        result = tl.inline_asm_elementwise(
            ADD_ASSEMBLY, "=r,r,r", [words, others], dtype=tl.int32, is_pure=True, pack=1)
    return result


@triton.jit
def less_plane(OFFSET: tl.constexpr, S: tl.constexpr):
    """Words of a plane of -(128 + ``OFFSET``), ``[S, 1, 32, 2, 2]``; not known to be constant, so
    that they are laid out as those of weights."""
    words = tl.full((S, 1, 32, 2, 2), both(0xC300 + OFFSET), tl.int32)
    if not INTERPRETED:
        words = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [words], dtype=tl.int32, is_pure=True, pack=1)
    return words


@triton.constexpr_function
def mask_assembly(mask, rest):
    return (f"{{ .reg .b32 rest; mov.b32 rest, {hex(rest * 0x10001)}; "
            f"lop3.b32 $0, $1, {hex(mask * 0x10001)}, rest, 0xEA; }}")


@triton.jit
def moved(words, LEFT: tl.constexpr, MASK: tl.constexpr, REST: tl.constexpr = 0):
    """What of the words lies under the mask, so many places to the left (right if negative), and
    the bits of ``REST``, all of them in both halves."""
    words = words >> -LEFT if LEFT < 0 else words << LEFT
    if REST == 0:
        words &= both(MASK)
    elif INTERPRETED:
        words = (words & both(MASK)) | both(REST)
    else:  # one instruction, if one of the constants is in a register
        words = tl.inline_asm_elementwise(
            mask_assembly(MASK, REST), "=r,r", [words], dtype=tl.int32, is_pure=True, pack=1)
    return words


@triton.jit
def codes_at(words, FIRST: tl.constexpr, BITS: tl.constexpr):
    """Codes that begin at this bit, as 128 + code: the mantissa of a bf16 counts so."""
    return moved(words, -FIRST, (1 << BITS) - 1, 0x4300)


@triton.jit
def five_bit_planes(words, high, S: tl.constexpr, BN: tl.constexpr):
    """As `affine_planes`, from high words ``[S, BN / 16, 32]``."""
    whole = tl.reshape(words, (S, BN // 16, 32, 2, 2))
    p0, p1, p2 = codes_at(whole, 0, 5), codes_at(whole, 5, 5), codes_at(whole, 10, 5)
    a, b = row_halves(words, S, BN)
    a0, a1 = tl.split(a)
    b0, b1 = tl.split(b)
    last = codes_at(a0, 15, 1) | moved(b0, -14, 2) | moved(a1, -13, 4) | moved(b1, -12, 8)
    last |= moved(high, -11, 16)
    p3 = tl.join(tl.join(codes_at(high, 0, 5), codes_at(high, 10, 5)),
                 tl.join(codes_at(high, 5, 5), last))
    return p0, p1, p2, p3


@triton.jit
def six_bit_planes(words, high, S: tl.constexpr, BN: tl.constexpr):
    """As `affine_planes`, from high words ``[S, BN / 16, 32, 2]``."""
    a, b = row_halves(words, S, BN)
    p0 = tl.join(codes_at(a, 0, 6), codes_at(b, 0, 6))
    p1 = tl.join(codes_at(a, 6, 6), codes_at(b, 6, 6))
    p2 = tl.join(codes_at(high, 0, 6), codes_at(high, 6, 6))
    p3 = tl.join(codes_at(a, 12, 4) | moved(high, -8, 0x30),
                 codes_at(b, 12, 4) | moved(high, -10, 0x30))
    return p0, p1, p2, p3


@triton.jit
def affine_planes(words, high, BITS: tl.constexpr, S: tl.constexpr, BN: tl.constexpr):
    """128 + code of each plane, from `load_elements` and `load_high`.

    4 bits: each element has its four codes. 6 bits: an element has codes of planes 0 and 1 and the
    low four bits of plane 3; the high word has plane 2 of both row halves and the rest of plane 3.
    5 bits: an element has planes 0 to 2, and in its last bit one of the last code: plane 3 of the
    other three, and the last bit of the fourth, are in the high word.
    """
    if BITS == 4:
        whole = tl.reshape(words, (S, BN // 16, 32, 2, 2))
        p0, p1 = codes_at(whole, 0, 4), codes_at(whole, 4, 4)
        p2, p3 = codes_at(whole, 8, 4), codes_at(whole, 12, 4)
    elif BITS == 6:
        p0, p1, p2, p3 = six_bit_planes(words, tl.permute(high, (1, 2, 0, 3)), S, BN)
    else:
        p0, p1, p2, p3 = five_bit_planes(words, tl.permute(high, (1, 2, 0)), S, BN)
    return p0, p1, p2, p3


@triton.jit
def e2m1_of(words, factors, HALF: tl.constexpr):
    """Four planes of elements times the scales in one half of two words, for planes 0 and 1 and
    for 2 and 3.

    An E2M1 code is the sign and the last three bits of a bf16 of 2^-126 times its value. Signs are
    bits 15, 12, 14 and 13 of an element, magnitudes begin at bits 6, 3, 0 and 9: the first code is
    in place, the others are a shift or two away.
    """
    one, two = factors
    p0 = times_half(moved(words, 0, 0x81C0), one, HALF)
    p1 = times_half(moved(words, 3, 0x81C0), one, HALF)
    p2 = times_half(moved(words, 6, 0x01C0) | moved(words, 1, 0x8000), two, HALF)
    p3 = times_half(moved(words, -3, 0x01C0) | moved(words, 2, 0x8000), two, HALF)
    return p0, p1, p2, p3


@triton.jit
def scaled_e2m1_planes(words, scales, S: tl.constexpr, BN: tl.constexpr):
    """As `e2m1_planes`, from scales ``[S, BN / 16, 32, 1]``."""
    factors = (moved(scales, 4, 0x0FF0, 0x7000), moved(scales, -4, 0x0FF0, 0x7000))
    a, b = row_halves(words, S, BN)
    a0, a1, a2, a3 = e2m1_of(a, factors, 0)
    b0, b1, b2, b3 = e2m1_of(b, factors, 1)
    return tl.join(a0, b0), tl.join(a1, b1), tl.join(a2, b2), tl.join(a3, b3)


@triton.jit
def e2m1_planes(words, scales, S: tl.constexpr, BN: tl.constexpr):
    """Planes of 2^-7 times the values, from `load_elements` and `load_factors`.

    A lane's four columns of two planes are of one group, so it needs a byte for each row half and
    half of the planes: by (row half, half of the planes). It is exponent and mantissa of a bf16 of
    2^119 times the scale.
    """
    return scaled_e2m1_planes(words, tl.permute(scales, (1, 2, 0))[:, :, :, None], S, BN)


@triton.jit
def byte_planes(words, E4M3: tl.constexpr, S: tl.constexpr, BN: tl.constexpr):
    """Two planes of codes of 8 bits: signed integers, one in each byte of an element; or E4M3, as
    2^-120 times the value: its bits in their places of a bf16 are that. The first is in place, of
    the second sign and last four bits are four places to the right, the others four to the left.
    """
    whole = tl.reshape(words, (S, BN // 16, 32, 2, 2))
    if E4M3:
        p0 = moved(whole, 0, 0x87F0)
        p1 = moved(whole, 4, 0x80F0) | moved(whole, -4, 0x0700)
    else:  # 128 + the last seven bits, less 128, or 256 for a negative one
        p0 = add_pairs(moved(whole, 0, 0x7F, 0x4300), moved(whole, 0, 0x80, 0xC300))
        p1 = add_pairs(moved(whole, -8, 0x7F, 0x4300), moved(whole, -8, 0x80, 0xC300))
    return p0, p1
