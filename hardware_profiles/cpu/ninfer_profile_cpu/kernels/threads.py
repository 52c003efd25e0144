"""Instructions for memory that threads share."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .machine import IS_X86
from .vector_ir import I64, POINTER

i64 = types.int64


@intrinsic
def atomic_add(typing_context, address, value):
    """Add to an int64 (sequentially consistent); the value before."""

    def generate(context, b, signature, args):
        value = context.cast(b, args[1], signature.args[1], i64)
        return b.atomic_rmw("add", b.inttoptr(args[0], POINTER), value, "seq_cst")

    return i64(i64, value), generate


@intrinsic
def atomic_load(typing_context, address):
    """An int64 (sequentially consistent)."""

    def generate(context, b, signature, args):
        return b.load_atomic(b.inttoptr(args[0], POINTER), "seq_cst", 8, typ=I64)

    return i64(i64), generate


@intrinsic
def pause(typing_context):
    """Tell the processor that this is a loop that waits."""

    def generate(context, b, signature, args):
        name = "llvm.x86.sse2.pause" if IS_X86 else "llvm.donothing"
        typ = ir.FunctionType(ir.VoidType(), [])
        b.call(b.module.globals.get(name) or ir.Function(b.module, typ, name), [])
        return context.get_dummy_value()

    return types.void(), generate
