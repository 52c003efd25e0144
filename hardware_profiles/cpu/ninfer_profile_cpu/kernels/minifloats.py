"""Decoders of weights whose codes are small floating-point numbers."""

import dataclasses
import typing

from llvmlite import ir

from .machine import LANES
from .nibbles import look_up, pair_order
from .planes import TILE_SCALE_BYTES, Planes, Scales
from .vector_ir import F32, FLOATS, I8, I32, I64, INTS, const, lanes_of, load, plus, splat

FP8_SCALE_LIMIT = 128.0
"""What scales of `Fp8` are below."""
NVFP4_GROUP = 16
"""Elements that share a scale."""
NVFP4_TABLE = (256, 16)
"""Shape of the table of `Nvfp4`."""


@dataclasses.dataclass(frozen=True)
class Fp8:
    """E4M3FN codes with an fp32 scale below `FP8_SCALE_LIMIT` for ``group`` consecutive elements,
    or for a row (0). NaN codes, which no format allows, are not recognised.
    """

    group: int
    pads_rows: typing.ClassVar = False
    scales: typing.ClassVar = Scales.ROWS
    has_minimum: typing.ClassVar = False

    @property
    def step(self):
        return self.group or 32

    @property
    def step_bytes(self):
        return Planes(codes=self.step, scales=4 if self.group else 0)

    def strides(self, width, row_steps):
        num_scales = -(-width // self.group) if self.group else 1
        return Planes(codes=width, scales=4 * num_scales)

    def decode(self, b, row, step):
        offset = b.mul(step, const(self.step_bytes.scales))
        # Code bits in the place of an fp32's are 2^-120 of the code: exponents are biased by 7, not
        # 127. The product of both is exact, and so rounded once, as that of code and scale is.
        scale = b.fmul(splat(b, load(b, F32, row.scales, offset)), lanes_of(F32, 2.0**120))
        base = b.mul(step, const(self.step))
        starts = [plus(b, base, i) for i in range(0, self.step, LANES)]
        return [b.fmul(_code_bits(b, row.codes, start), scale) for start in starts]


def _code_bits(b, address, offset):
    """``LANES`` codes, sign, exponent and mantissa at their place in an fp32."""
    codes = b.sext(load(b, ir.VectorType(I8, LANES), address, offset), INTS)
    in_place = lanes_of(I32, 0x87F00000 - 2**32)
    return b.bitcast(b.and_(b.shl(codes, lanes_of(I32, 20)), in_place), FLOATS)


@dataclasses.dataclass(frozen=True)
class Nvfp4:
    """E2M1 codes, neighbours in a byte, with an E4M3 scale for 16 elements and a divisor for all.

    Scale and code have but 2048 pairs, so their values are worked out beforehand, with the one
    rounding that the division takes: ``table`` has a row of 16 fp32 for every scale byte. Of its
    16 KiB only the rows of scales that occur are touched, and they stay in the L1 cache.
    """

    scales: Scales
    pads_rows: typing.ClassVar = False
    has_minimum: typing.ClassVar = False

    @property
    def step(self):
        return 4 * NVFP4_GROUP if self.scales is Scales.TILED else NVFP4_GROUP

    @property
    def step_bytes(self):
        return Planes(codes=self.step // 2, scales=self.step // NVFP4_GROUP)

    def strides(self, width, row_steps):
        num_scales = width // NVFP4_GROUP
        tiled = num_scales // 4 * TILE_SCALE_BYTES
        scales = tiled if self.scales is Scales.TILED else num_scales
        return Planes(codes=width // 2, scales=scales)

    def decode(self, b, row, step):
        stride = TILE_SCALE_BYTES if self.scales is Scales.TILED else 1
        scales, codes = b.mul(step, const(stride)), b.mul(step, const(self.step // 2))
        values = []
        for group in range(self.step // NVFP4_GROUP):
            scale = b.zext(load(b, I8, row.scales, plus(b, scales, group)), I64)
            table = b.add(row.table, b.mul(scale, const(4 * NVFP4_TABLE[1])))
            start = plus(b, codes, group * NVFP4_GROUP // 2)
            words = pair_order(b, row.codes, start, NVFP4_GROUP)
            values += [look_up(b, table, word) for word in words]
        return values
