"""Vectors of fp32 from and to narrower types in memory: bf16, fp16, int8, fp8 (E4M3FN).

Loads widen exactly; stores round to nearest, ties to even.
"""

from llvmlite import ir
from numba import types

from .machine import HAS_FP16_CONVERT, LANES
from .vec import f32, i64, load_partial, operation, vec
from .vector_ir import (
    F16,
    F32,
    FLOATS,
    I8,
    I16,
    I32,
    INTS,
    bf16_to_floats,
    call,
    halves_to_floats,
    lanes_of,
    load,
    store,
)

SHORTS, BYTES = ir.VectorType(I16, LANES), ir.VectorType(I8, LANES)


@operation(vec, i64)
def vload_bf16(b, address):
    """Load bf16, widened exactly."""
    return bf16_to_floats(b, load(b, SHORTS, address))


@operation(vec, i64)
def vload_half(b, address):
    """Load fp16, widened exactly."""
    return halves_to_floats(b, load(b, SHORTS, address))


@operation(vec, i64, i64)
def vload_half_n(b, address, count):
    return halves_to_floats(b, load_partial(b, I16, SHORTS, address, count))


@operation(vec, i64)
def vload_int8(b, address):
    """Load signed bytes as fp32."""
    return b.sitofp(b.sext(load(b, BYTES, address), INTS), FLOATS)


@operation(vec, i64)
def vload_fp8(b, address):
    """Load FP8 E4M3FN; NaN stays NaN."""
    code = b.zext(load(b, BYTES, address), INTS)
    magnitude = b.and_(code, lanes_of(I32, 0x7F))
    # Exponent and mantissa in place, then the difference of the exponent biases, 127 - 7.
    value = b.fmul(b.bitcast(b.shl(magnitude, lanes_of(I32, 20)), FLOATS), lanes_of(F32, 2.0**120))
    sign = b.shl(b.and_(code, lanes_of(I32, 0x80)), lanes_of(I32, 24))
    signed = b.bitcast(b.or_(b.bitcast(value, INTS), sign), FLOATS)
    is_nan = b.icmp_unsigned("==", magnitude, lanes_of(I32, 0x7F))
    return b.select(is_nan, lanes_of(F32, float("nan")), signed)


@operation(types.void, i64, vec)
def vstore_bf16(b, address, value):
    bits = b.bitcast(value, INTS)
    rounded = b.lshr(_round_bits(b, bits, 16), lanes_of(I32, 16))
    quiet = b.or_(b.lshr(bits, lanes_of(I32, 16)), lanes_of(I32, 0x40))
    is_nan = b.fcmp_unordered("uno", value, value)
    store(b, b.trunc(b.select(is_nan, quiet, rounded), SHORTS), address)


@operation(types.void, i64, vec)
def vstore_int8(b, address, value):
    """Store whole numbers of -128..127 (anything else is stored as some byte)."""
    saturated = call(b, f"llvm.fptosi.sat.v{LANES}i32.v{LANES}f32", INTS, [value])
    store(b, b.trunc(saturated, BYTES), address)


@operation(types.void, i64, vec)
def vstore_fp8(b, address, value):
    """Store FP8 E4M3FN; magnitudes beyond 464 and NaN become NaN."""
    bits = b.bitcast(value, INTS)
    magnitude = b.and_(bits, lanes_of(I32, 0x7FFFFFFF))
    sign = b.and_(b.lshr(bits, lanes_of(I32, 24)), lanes_of(I32, 0x80))
    # Normal numbers: round at 3 bits of mantissa, then change the exponent's bias by 120.
    rounded = b.lshr(_round_bits(b, magnitude, 20), lanes_of(I32, 20))
    normal = b.sub(rounded, lanes_of(I32, 120 << 3))
    # Below 2^-6 the step is 2^-9: adding 2^14 leaves units of 2^-9 in the last bits of fp32.
    shifted = b.fadd(b.bitcast(magnitude, FLOATS), lanes_of(F32, 2.0**14))
    small = b.sub(b.bitcast(shifted, INTS), lanes_of(I32, 0x46800000))
    code = b.select(b.icmp_unsigned("<", magnitude, lanes_of(I32, 0x3C800000)), small, normal)
    too_big = b.icmp_unsigned(">", magnitude, lanes_of(I32, 0x43E80000))
    code = b.select(too_big, lanes_of(I32, 0x7F), code)
    store(b, b.trunc(b.or_(code, sign), BYTES), address)


def _round_bits(b, bits, count):
    # Add half of the last kept bit, less one unless that bit is odd: ties go to even.
    odd = b.and_(b.lshr(bits, lanes_of(I32, count)), lanes_of(I32, 1))
    return b.add(bits, b.add(odd, lanes_of(I32, (1 << (count - 1)) - 1)))


@operation(f32, i64)
def load_half(b, address):
    """Load one fp16."""
    bits = ir.Constant(SHORTS, None)
    wide = halves_to_floats(b, b.insert_element(bits, load(b, I16, address), ir.Constant(I32, 0)))
    return b.extract_element(wide, ir.Constant(I32, 0))


@operation(types.void, i64, f32)
def store_half(b, address, value):
    """Store one fp32 as fp16."""
    if HAS_FP16_CONVERT:
        store(b, b.fptrunc(value, F16), address)
    else:
        store(b, _half_bits(b, value), address)


def _half_bits(b, value):
    def number(n):
        return ir.Constant(I32, n)

    bits = b.bitcast(value, I32)
    magnitude = b.and_(bits, number(0x7FFFFFFF))
    sign = b.and_(b.lshr(bits, number(16)), number(0x8000))
    odd = b.and_(b.lshr(magnitude, number(13)), number(1))
    rounded = b.add(magnitude, b.add(odd, number(0xFFF)))
    normal = b.sub(b.lshr(rounded, number(13)), number(112 << 10))
    # Below 2^-14 the step is 2^-24: adding 2^-1 leaves units of 2^-24 in the last bits of fp32.
    shifted = b.fadd(b.bitcast(magnitude, F32), ir.Constant(F32, 0.5))
    small = b.sub(b.bitcast(shifted, I32), number(0x3F000000))
    code = b.select(b.icmp_unsigned("<", magnitude, number(0x38800000)), small, normal)
    code = b.select(b.icmp_unsigned(">=", magnitude, number(0x477FF000)), number(0x7C00), code)
    code = b.select(b.icmp_unsigned(">", magnitude, number(0x7F800000)), number(0x7E00), code)
    return b.trunc(b.or_(code, sign), I16)
