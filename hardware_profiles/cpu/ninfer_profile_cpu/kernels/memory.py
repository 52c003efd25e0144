"""Scalars at raw addresses, argument blocks, and calls of native functions by address."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compile import inline
from .vector_ir import F32, I32, I64, const, load, prefetch_line, store

i64, i32, f32 = types.int64, types.int32, types.float32


@intrinsic
def arg(typing_context, block, index):
    """int64 number ``index`` of an argument block."""

    def generate(context, b, signature, args):
        return load(b, I64, args[0], b.mul(args[1], const(8)))

    return i64(i64, i64), generate


@intrinsic
def pack(typing_context, values):
    """Address of a block with a tuple of int64, alive until the caller returns."""
    count = len(values)

    def generate(context, b, signature, args):
        block = b.ptrtoint(cgutils.alloca_once(b, I64, size=count), I64)
        for i in range(count):
            store(b, context.cast(b, b.extract_value(args[0], i), values[i], i64), block, 8 * i)
        return block

    return i64(values), generate


@intrinsic
def call(typing_context, function, values):
    """Call the native function at an address with a tuple of int64 (see `compile`)."""

    def generate(context, b, signature, args):
        numbers = [b.extract_value(args[1], i) for i in range(len(values))]
        numbers = [context.cast(b, n, t, i64) for n, t in zip(numbers, values, strict=True)]
        typ = ir.FunctionType(ir.VoidType(), [I64] * len(numbers))
        b.call(b.inttoptr(args[0], typ.as_pointer()), numbers)
        return context.get_dummy_value()

    return types.void(i64, values), generate


@intrinsic
def load_int64(typing_context, address):
    def generate(context, b, signature, args):
        return load(b, I64, args[0])

    return i64(i64), generate


@intrinsic
def load_int32(typing_context, address):
    """int32, widened."""

    def generate(context, b, signature, args):
        return b.sext(load(b, I32, args[0]), I64)

    return i64(i64), generate


@intrinsic
def store_int32(typing_context, address, value):
    """The low half of an int64."""

    def generate(context, b, signature, args):
        store(b, b.trunc(args[1], I32), args[0])
        return context.get_dummy_value()

    return types.void(i64, i64), generate


@intrinsic
def load_float(typing_context, address):
    def generate(context, b, signature, args):
        return load(b, F32, args[0])

    return f32(i64), generate


@intrinsic
def store_float(typing_context, address, value):
    def generate(context, b, signature, args):
        store(b, args[1], args[0])
        return context.get_dummy_value()

    return types.void(i64, f32), generate


@intrinsic
def store_int64(typing_context, address, value):
    def generate(context, b, signature, args):
        store(b, args[1], args[0])
        return context.get_dummy_value()

    return types.void(i64, i64), generate


@intrinsic
def float_of_bits(typing_context, bits):
    """fp32 whose bits are the low 32 of an int64: how a float travels in an argument block."""

    def generate(context, b, signature, args):
        return b.bitcast(b.trunc(args[0], I32), F32)

    return f32(i64), generate


@intrinsic
def _ask_for_line(typing_context, address):
    def generate(context, b, signature, args):
        prefetch_line(b, args[0])
        return context.get_dummy_value()

    return types.void(i64), generate


@inline
def prefetch(address, nbytes):
    """Ask for memory that will be read soon. Any address is allowed."""
    for offset in range(0, nbytes, 64):
        _ask_for_line(address + offset)


def bits_of_float(value: float) -> int:
    """What `float_of_bits` turns back into ``value``, rounded to fp32."""
    return int(np.float32(value).view(np.int32))
