"""Decoders: how one step of stored weights becomes vectors of fp32, exactly.

A decoder emits LLVM IR.  It is described by structure (bits, group, order of codes), never by the
name of a model or a format. ``decode`` gives the values of a step of a row in natural order, so all
formats are summed over k in the same order. ``strides`` are the bytes from row to row of each
plane; rows of a decoder that ``pads_rows`` take ``row_steps`` whole steps in memory, others end
where their values end.
"""

import dataclasses
import functools
import typing

from llvmlite import ir

from .machine import HAS_AVX512, LANES
from .minifloats import Fp8, Nvfp4
from .nibbles import half_order, pair_order, pick
from .planes import Planes, Scales
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
    plus,
    splat,
    vector,
)


@dataclasses.dataclass(frozen=True)
class Dense:
    """Values stored as fp32 or bf16; a step is one vector."""

    bits: int
    step: int = LANES
    pads_rows: typing.ClassVar = False
    scales: typing.ClassVar = Scales.NONE
    has_minimum: typing.ClassVar = False

    @property
    def step_bytes(self):
        return Planes(codes=self.step * self.bits // 8)

    def strides(self, width, row_steps):
        return Planes(codes=width * self.bits // 8)

    def decode(self, b, row, step):
        offset = b.mul(step, const(self.step_bytes.codes))
        if self.bits == 32:
            return [load(b, FLOATS, row.codes, offset)]
        return [bf16_to_floats(b, load(b, ir.VectorType(I16, LANES), row.codes, offset))]


@dataclasses.dataclass(frozen=True)
class Affine:
    """Groups of 4, 5, 6 or 8-bit codes with an fp16 scale, and perhaps an fp16 minimum:
    ``fp32(scale) * code (+ fp32(minimum))``. A step is a group.

    ``order`` of 4-bit words in the code plane: see `nibbles`. Bits above the fourth have a plane of
    their own, LSB first in element order.
    """

    signed: bool
    bits: int
    step: int
    order: str
    has_minimum: bool
    pads_rows: typing.ClassVar = True
    scales: typing.ClassVar = Scales.HALVES

    @property
    def step_bytes(self):
        low = 8 if self.bits == 8 else 4
        high = self.bits - low
        return Planes(self.step * low // 8, self.step * high // 8, 2, 2 * self.has_minimum)

    def strides(self, width, row_steps):
        return Planes(*[row_steps * nbytes for nbytes in self.step_bytes])

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
        return [pick(b, table, word) for word in self._nibbles(b, row, group)]

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
        return [widen(_load_bytes(b, row, plus(b, base, i)), INTS) for i in vectors]

    def _nibbles(self, b, row, group):
        """Vectors of i32 in element order, with a nibble in the low bits and anything above."""
        order = half_order if self.order == "half" else pair_order
        return order(b, row.codes, b.mul(group, const(self.step // 2)), self.step)

    def _high_bits(self, b, row, group):
        """Vectors of i32 with the bits above the fourth at their place, and anything around."""
        width = self.bits - 4
        base = b.mul(group, const(self.step_bytes.high))
        rotation, vectors = vector(I32, [(4 - width * i) % 32 for i in range(LANES)]), []
        for bit in range(0, self.step * width, LANES * width):
            word = splat(b, _word(b, row.high, plus(b, base, bit // 8), bit % 8, LANES * width))
            vectors.append(call(b, f"llvm.fshl.v{LANES}i32", INTS, [word, word, rotation]))
        return vectors


def _load_bytes(b, row, offset):
    return load(b, ir.VectorType(I8, LANES), row.codes, offset)


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


@functools.cache
def decoder(name: str) -> Dense | Affine | Fp8 | Nvfp4:
    """The decoder called ``name``: one of the dictionary, or as `affine_name` makes it."""
    if name in _IRREGULAR:
        return _IRREGULAR[name]
    codes, group, order, *minimum = name.split("_")
    return Affine(codes[0] == "s", int(codes[1:]), int(group[1:]), order, minimum == ["min"])


_IRREGULAR: dict[str, Dense | Fp8 | Nvfp4] = {
    "fp32": Dense(32),
    "bf16": Dense(16),
    "fp8_row": Fp8(0),
    "fp8_g128": Fp8(128),
    "nvfp4_tiled": Nvfp4(Scales.TILED),
    "nvfp4_rows": Nvfp4(Scales.ROWS),
}


def affine_name(signed: bool, bits: int, group: int, order: str, has_minimum: bool) -> str:
    """Name of an `Affine` decoder, such as ``u4_g32_half_min`` or ``s6_g64_pair``."""
    return f"{'s' if signed else 'u'}{bits}_g{group}_{order}{'_min' if has_minimum else ''}"
