"""Vector instructions as LLVM IR: the small vocabulary in which tiles and decoders are written.

All functions take an ``llvmlite.ir.IRBuilder`` first. Addresses are int64 values and offsets are
bytes, because kernels work on raw memory of many formats. Plain LLVM vector types keep the code
valid on any processor; the few processor-specific instructions are chosen by `machine`.
"""

from llvmlite import ir
from numba.core import cgutils

from .machine import HAS_FMA, HAS_FP16_CONVERT, LANES

F16, F32 = ir.HalfType(), ir.FloatType()
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
POINTER = ir.PointerType()
FLOATS = ir.VectorType(F32, LANES)
INTS = ir.VectorType(I32, LANES)


def const(value: int):
    return ir.Constant(I64, value)


def vector(typ, values):
    """Constant vector of element type ``typ``."""
    return ir.Constant(ir.VectorType(typ, len(values)), list(values))


def lanes_of(typ, value):
    """Constant with ``value`` in every lane."""
    return vector(typ, [value] * LANES)


def plus(b, value, number):
    """``value + number``, an int64 and a Python integer."""
    return b.add(value, const(number)) if number else value


def load(b, typ, address, offset=0):
    """Load ``typ`` from ``address + offset`` bytes, aligned to nothing."""
    return b.load(_pointer(b, address, offset), align=1, typ=typ)


def store(b, value, address, offset=0):
    b.store(value, _pointer(b, address, offset), align=1)


def _pointer(b, address, offset):
    pointer = b.inttoptr(address, POINTER)
    if offset == 0:
        return pointer
    return b.gep(pointer, [const(offset) if isinstance(offset, int) else offset], source_etype=I8)


def prefetch_line(b, address, offset=0):
    """Ask for the cache line at an address, which may be any, into the L2 cache."""
    numbers = [ir.Constant(I32, n) for n in (0, 2, 1)]  # read; keep in L2; data
    typ = ir.FunctionType(ir.VoidType(), [POINTER, I32, I32, I32])
    name = "llvm.prefetch.p0"
    function = b.module.globals.get(name) or ir.Function(b.module, typ, name)
    b.call(function, [_pointer(b, address, offset), *numbers])


def splat(b, scalar, count=LANES):
    """Vector with ``scalar`` in every lane."""
    typ = ir.VectorType(scalar.type, count)
    one = b.insert_element(ir.Constant(typ, ir.Undefined), scalar, ir.Constant(I32, 0))
    return b.shuffle_vector(one, ir.Constant(typ, ir.Undefined), vector(I32, [0] * count))


def take(b, value, lanes, other=None):
    """Pick constant ``lanes`` of ``value`` (and of ``other``, whose lanes count on from there)."""
    other = ir.Constant(value.type, ir.Undefined) if other is None else other
    return b.shuffle_vector(value, other, vector(I32, lanes))


def fma(b, x, y, z):
    """``x * y + z``, rounded once where the processor can, else twice."""
    if not HAS_FMA:
        return b.fadd(b.fmul(x, y), z)
    return call(b, f"llvm.fma.{_suffix(x.type)}", x.type, [x, y, z])


def zero_variable(b):
    """Pointer to a vector of zeros on the stack, which LLVM keeps in a register."""
    return cgutils.alloca_once_value(b, ir.Constant(FLOATS, None))


def call(b, name, result, args):
    """Call the LLVM intrinsic ``name``."""
    signature = ir.FunctionType(result, [a.type for a in args])
    module = b.module
    function = module.globals.get(name) or ir.Function(module, signature, name)
    return b.call(function, args)


def _suffix(typ):
    if isinstance(typ, ir.VectorType):
        return f"v{typ.count}{_suffix(typ.element)}"
    return typ.intrinsic_name


def halves_to_floats(b, bits):
    """fp16 bits (vector of i16) to fp32, exactly."""
    if HAS_FP16_CONVERT:
        return b.fpext(b.bitcast(bits, ir.VectorType(F16, LANES)), FLOATS)
    # Put exponent and mantissa in place, then scale by 2^112: a product that also is right for
    # subnormals. Scales are finite, so infinity needs no care.
    wide = b.zext(bits, INTS)
    magnitude = b.shl(b.and_(wide, lanes_of(I32, 0x7FFF)), lanes_of(I32, 13))
    value = b.fmul(b.bitcast(magnitude, FLOATS), lanes_of(F32, 2.0**112))
    sign = b.shl(b.and_(wide, lanes_of(I32, 0x8000)), lanes_of(I32, 16))
    return b.bitcast(b.or_(b.bitcast(value, INTS), sign), FLOATS)


def bf16_to_floats(b, bits):
    """bf16 bits (vector of i16) to fp32, exactly."""
    return b.bitcast(b.shl(b.zext(bits, INTS), lanes_of(I32, 16)), FLOATS)


def fold_rows(b, rows):
    """Horizontal sums of the vectors in ``rows`` (a power of two), as one short vector.

    A row is always folded in halves: lane j + lane j + L/2, and so on. Rows are folded side by
    side in one register where possible; that changes the work, never the order of additions.
    """
    width = rows[0].type.count  # lanes that still belong to one row
    while len(rows) > 1 or width > 1:
        half = width // 2
        if len(rows) == 1:
            rows = [_fold_inside(b, rows[0], width)]
        else:
            rows = [_fold_pair(b, x, y, width) for x, y in zip(rows[::2], rows[1::2], strict=True)]
        width = half
    return rows[0]


def _fold_inside(b, x, width):
    lower, upper = _halves(x.type.count, width)
    return b.fadd(take(b, x, lower), take(b, x, upper))


def _fold_pair(b, x, y, width):
    lower, upper = _halves(2 * x.type.count, width)
    return b.fadd(take(b, x, lower, y), take(b, x, upper, y))


def _halves(count, width):
    lower = [i for i in range(count) if i % width < width // 2]
    return lower, [i + width // 2 for i in lower]
