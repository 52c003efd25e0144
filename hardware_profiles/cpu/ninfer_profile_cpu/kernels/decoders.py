"""Decoders: how one group of stored weights becomes vectors of fp32, exactly.

A decoder emits LLVM IR.  It is described by structure (bits, group, order of codes), never by the
name of a model or a format. ``decode`` gives the values ``fp32(scale) * code (+ fp32(minimum))``
of a group in natural order, so all formats are summed over k in the same order.

Scales and minimums are fp16 in memory but fp32 here: `products` converts those of a few rows at a
time, which costs a tenth of converting each where it is used.
"""

import dataclasses
import functools
import typing

from llvmlite import ir

from .machine import HAS_AVX512, LANES
from .vector_ir import (
    F32,
    FLOATS,
    I8,
    I16,
    I32,
    INTS,
    bf16_to_floats,
    call,
    const,
    fma,
    lanes_of,
    load,
    splat,
    take,
    vector,
)


class Planes(typing.NamedTuple):
    """One value for each plane of a weight: IR addresses of a row, or bytes a group takes."""

    codes: typing.Any
    high: typing.Any
    scales: typing.Any
    minimums: typing.Any


@dataclasses.dataclass(frozen=True)
class Dense:
    """Values stored as fp32 or bf16; no groups, so a step is one vector."""

    bits: int
    step: int = LANES
    is_grouped: typing.ClassVar = False
    has_minimum: typing.ClassVar = False

    @property
    def step_bytes(self):
        return Planes(self.step * self.bits // 8, 0, 0, 0)

    def decode(self, b, row, group):
        offset = b.mul(group, const(self.step_bytes.codes))
        if self.bits == 32:
            return [load(b, FLOATS, row.codes, offset)]
        return [bf16_to_floats(b, load(b, ir.VectorType(I16, LANES), row.codes, offset))]


@dataclasses.dataclass(frozen=True)
class Affine:
    """Groups of 4, 5, 6 or 8-bit codes with an fp16 scale, and perhaps an fp16 minimum.

    ``order`` of 4-bit words in the code plane: ``"half"`` puts elements 0..15 of 32 in the low
    nibbles of 16 bytes and 16..31 in the high ones; ``"pair"`` puts neighbours (2j, 2j+1) into byte
    j. Bits above the fourth have a plane of their own, LSB first in element order.
    """

    signed: bool
    bits: int
    step: int
    order: str
    has_minimum: bool
    is_grouped: typing.ClassVar = True

    @property
    def step_bytes(self):
        low = 8 if self.bits == 8 else 4
        high = self.bits - low
        return Planes(self.step * low // 8, self.step * high // 8, 4, 4 * self.has_minimum)

    def decode(self, b, row, group):
        offset = b.mul(group, const(4))
        scale = splat(b, load(b, F32, row.scales, offset))
        minimum = splat(b, load(b, F32, row.minimums, offset)) if self.has_minimum else None
        if self.bits == 4 and HAS_AVX512:
            return self._look_up(b, row, group, scale, minimum)
        return self._compute(b, row, group, scale, minimum)

    def _compute(self, b, row, group, scale, minimum):
        codes = [b.sitofp(word, FLOATS) for word in self._words(b, row, group)]
        if self.bits == 8 or not self.signed:
            return [_affine(b, code, scale, minimum) for code in codes]
        # These codes count from the lowest one. What undoes that is a multiple of the scale, and so
        # is the sum: nothing is rounded, and it is cheaper than extending a sign.
        shift = b.fmul(scale, lanes_of(F32, -float(1 << self.bits - 1)))
        values = [fma(b, code, scale, shift) for code in codes]
        return values if minimum is None else [b.fadd(value, minimum) for value in values]

    def _look_up(self, b, row, group, scale, minimum):
        # All 16 values of a group fit one register: compute them once, then pick by code. The
        # permutation reads the low four bits of an index only, so codes need no masking.
        values = [float(n - 16 if self.signed and n > 7 else n) for n in range(16)]
        table = _affine(b, vector(F32, values), scale, minimum)
        pick = "llvm.x86.avx512.permvar.sf.512"
        return [call(b, pick, FLOATS, [table, word]) for word in self._nibbles(b, row, group)]

    def _words(self, b, row, group):
        """Vectors of i32 in element order; signed codes of less than 8 bits have their top bit
        flipped, so that they count from the lowest one."""
        if self.bits == 8:
            return self._bytes(b, row, group)
        words, low = self._nibbles(b, row, group), lanes_of(I32, 15)
        if self.bits > 4:
            high = self._high_bits(b, row, group)
            words = [
                b.or_(b.and_(w, low), b.and_(h, lanes_of(I32, ~15)))
                for w, h in zip(words, high, strict=True)
            ]
        words = [b.and_(w, lanes_of(I32, (1 << self.bits) - 1)) for w in words]
        flip = lanes_of(I32, 1 << self.bits - 1)
        return [b.xor(w, flip) for w in words] if self.signed else words

    def _bytes(self, b, row, group):
        widen = b.sext if self.signed else b.zext
        base, vectors = b.mul(group, const(self.step)), range(0, self.step, LANES)
        return [widen(_load_bytes(b, row, _plus(b, base, i)), INTS) for i in vectors]

    def _nibbles(self, b, row, group):
        """Vectors of i32 in element order, with a nibble in the low bits and anything above."""
        base = b.mul(group, const(self.step // 2))
        order = self._half_order if self.order == "half" else self._pair_order
        starts = [_plus(b, base, i) for i in range(0, self.step // 2, 16)]
        return [word for start in starts for word in order(b, row, start)]

    def _half_order(self, b, row, offset):
        starts = [_plus(b, offset, i) for i in range(0, 16, LANES)]
        wide = [b.zext(_load_bytes(b, row, start), INTS) for start in starts]
        return wide + [b.lshr(w, lanes_of(I32, 4)) for w in wide]

    def _pair_order(self, b, row, offset):
        # Every lane gets the 32 bits with its nibble, then shifts it down to bit 0.
        shifts = vector(I32, [4 * (i % 8) for i in range(LANES)])
        starts = [_plus(b, offset, i // 2) for i in range(0, 32, LANES)]
        return [b.lshr(_nibble_words(b, row.codes, start), shifts) for start in starts]

    def _high_bits(self, b, row, group):
        """Vectors of i32 with the bits above the fourth at their place, and anything around."""
        width = self.bits - 4
        base = b.mul(group, const(self.step_bytes.high))
        rotation, vectors = vector(I32, [(4 - width * i) % 32 for i in range(LANES)]), []
        for bit in range(0, self.step * width, LANES * width):
            word = splat(b, _word(b, row.high, _plus(b, base, bit // 8), bit % 8, LANES * width))
            vectors.append(call(b, f"llvm.fshl.v{LANES}i32", INTS, [word, word, rotation]))
        return vectors


def _load_bytes(b, row, offset):
    return load(b, ir.VectorType(I8, LANES), row.codes, offset)


def _nibble_words(b, address, offset):
    """For each of ``LANES`` nibbles, the 32 bits (fewer if there are fewer) that it lies in."""
    if LANES <= 8:
        word = load(b, ir.IntType(4 * LANES), address, offset)
        return splat(b, b.zext(word, I32) if LANES < 8 else word)
    words = load(b, ir.VectorType(I32, LANES // 8), address, offset)
    return take(b, words, [i // 8 for i in range(LANES)])


def _word(b, address, offset, first_bit, num_bits):
    """``num_bits`` bits that start ``first_bit`` bits into a byte, as i32."""
    typ = ir.IntType(max(8, num_bits))
    word = load(b, typ, address, offset)
    word = b.zext(word, I32) if typ.width < 32 else word
    return b.lshr(word, ir.Constant(I32, first_bit)) if first_bit else word


def _affine(b, codes, scale, minimum):
    # The product is exact in fp32 (11 bits by 8), so a fused multiply-add would give the same; but
    # it would compete with those of the dot product, where an addition has units of its own.
    value = b.fmul(codes, scale)
    return value if minimum is None else b.fadd(value, minimum)


def _plus(b, value, offset):
    return b.add(value, const(offset)) if offset else value


@functools.cache
def decoder(name: str) -> Dense | Affine:
    """The decoder called ``name``: ``fp32``, ``bf16``, or as `affine_name` makes it."""
    if name in ("fp32", "bf16"):
        return Dense(32 if name == "fp32" else 16)
    codes, group, order, *minimum = name.split("_")
    return Affine(codes[0] == "s", int(codes[1:]), int(group[1:]), order, minimum == ["min"])


def affine_name(signed: bool, bits: int, group: int, order: str, has_minimum: bool) -> str:
    """Name of an `Affine` decoder, such as ``u4_g32_half_min`` or ``s6_g64_pair``."""
    return f"{'s' if signed else 'u'}{bits}_g{group}_{order}{'_min' if has_minimum else ''}"
