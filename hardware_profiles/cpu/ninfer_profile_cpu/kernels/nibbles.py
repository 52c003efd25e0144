"""Packed 4-bit codes as vectors of i32, and tables of 16 values that they index.

Vectors are in element order, with a code in the low four bits of a lane and anything above.
"""

from llvmlite import ir

from .machine import HAS_AVX512, LANES
from .vector_ir import (
    F32,
    FLOATS,
    I8,
    I32,
    I64,
    INTS,
    call,
    const,
    lanes_of,
    load,
    plus,
    splat,
    take,
    vector,
)


def half_order(b, codes, base, count):
    """Vectors of ``count`` codes (a multiple of 32) at ``codes + base``: of 32 elements, 0..15 are
    the low nibbles of 16 bytes and 16..31 the high ones."""
    words = []
    for offset in range(0, count // 2, 16):
        starts = [plus(b, base, offset + i) for i in range(0, 16, LANES)]
        low = [b.zext(load(b, ir.VectorType(I8, LANES), codes, s), INTS) for s in starts]
        words += low + [b.lshr(w, lanes_of(I32, 4)) for w in low]
    return words


def pair_order(b, codes, base, count):
    """Vectors of ``count`` codes (a multiple of 16) at ``codes + base``: elements 2j and 2j + 1 are
    the low and the high nibble of byte j."""
    # Every lane gets the 32 bits with its nibble, then shifts it down to bit 0.
    shifts = vector(I32, [4 * (i % 8) for i in range(LANES)])
    starts = [plus(b, base, i // 2) for i in range(0, count, LANES)]
    return [b.lshr(_words_around(b, codes, start), shifts) for start in starts]


def _words_around(b, address, offset):
    """For each of ``LANES`` nibbles, the 32 bits (fewer if there are fewer) that it lies in."""
    if LANES <= 8:
        word = load(b, ir.IntType(4 * LANES), address, offset)
        return splat(b, b.zext(word, I32) if LANES < 8 else word)
    words = load(b, ir.VectorType(I32, LANES // 8), address, offset)
    return take(b, words, [i // 8 for i in range(LANES)])


def pick(b, table, indexes):
    """Lanes of a register of 16 fp32 values by the low four bits of indexes (AVX-512 only)."""
    return call(b, "llvm.x86.avx512.permvar.sf.512", FLOATS, [table, indexes])


def look_up(b, table, indexes):
    """Of 16 fp32 values at an address, those that the low four bits of indexes say."""
    if HAS_AVX512:
        return pick(b, load(b, FLOATS, table), indexes)
    if LANES == 8:
        halves = [load(b, FLOATS, table, offset) for offset in (0, 32)]
        low, high = (call(b, "llvm.x86.avx2.permps", FLOATS, [h, indexes]) for h in halves)
        is_high = b.icmp_signed("<", b.shl(indexes, lanes_of(I32, 28)), lanes_of(I32, 0))
        return b.select(is_high, high, low)
    result, masked = ir.Constant(FLOATS, ir.Undefined), b.and_(indexes, lanes_of(I32, 15))
    for lane in (ir.Constant(I32, i) for i in range(LANES)):
        offset = b.mul(b.zext(b.extract_element(masked, lane), I64), const(4))
        result = b.insert_element(result, load(b, F32, table, offset), lane)
    return result
