"""A vector of fp32 as a Numba value, so that element-wise kernels can be written in Python.

``LANES`` values in one register. Addresses are int64 and need no alignment. ``*_n`` forms touch
the first ``n`` elements only, for the tail of a row.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from .compile import inline
from .machine import LANES
from .vector_ir import (
    F32,
    FLOATS,
    I32,
    I64,
    INTS,
    call,
    const,
    fma,
    fold_rows,
    lanes_of,
    load,
    splat,
    store,
    vector,
)

i64, f32 = types.int64, types.float32


class VecType(types.Type):
    """Numba type of ``LANES`` fp32 values."""

    def __init__(self):
        super().__init__(name=f"fp32x{LANES}")


@register_model(VecType)
class _VecModel(models.PrimitiveModel):
    def __init__(self, manager, fe_type):
        super().__init__(manager, fe_type, FLOATS)


vec = VecType()


def operation(result, *params):
    """Make an intrinsic of the function that emits it: ``emit(builder, *values)``."""

    def decorate(emit):
        names = ", ".join(f"a{i}" for i in range(len(params)))
        scope = {"emit": emit, "signature": result(*params)}
        exec(  # an intrinsic needs a true parameter list
            f"def {emit.__name__}(typing_context{', ' if names else ''}{names}):\n"
            "    def generate(context, builder, sig, args):\n"
            "        value = emit(builder, *args)\n"
            "        return context.get_dummy_value() if value is None else value\n"
            "    return signature, generate\n",
            scope,
        )
        function = scope[emit.__name__]
        function.__doc__ = emit.__doc__
        function.__module__ = __name__
        return intrinsic(function)

    return decorate


def _buffer(b, typ):
    return b.ptrtoint(cgutils.alloca_once(b, typ), I64)


def load_partial(b, element, typ, address, count):
    """Vector ``typ`` of the first ``count`` elements at an address, then zeros."""
    buffer = _buffer(b, typ)
    store(b, ir.Constant(typ, None), buffer)
    size = 4 if element is F32 else element.width // 8
    with cgutils.for_range(b, count) as loop:
        offset = b.mul(loop.index, const(size))
        store(b, load(b, element, address, offset), buffer, offset)
    return load(b, typ, buffer)


# ---- memory ----


@operation(vec, i64)
def vload(b, address):
    """Load fp32."""
    return load(b, FLOATS, address)


@operation(types.void, i64, vec)
def vstore(b, address, value):
    """Store fp32."""
    store(b, value, address)


@operation(vec, i64, i64)
def vload_n(b, address, count):
    """Load ``count`` fp32; the other lanes are 0."""
    return load_partial(b, F32, FLOATS, address, count)


@operation(types.void, i64, vec, i64)
def vstore_n(b, address, value, count):
    """Store the first ``count`` lanes."""
    buffer = _buffer(b, FLOATS)
    store(b, value, buffer)
    with cgutils.for_range(b, count) as loop:
        offset = b.mul(loop.index, const(4))
        store(b, load(b, F32, buffer, offset), address, offset)


# ---- arithmetic ----


@operation(vec, f32)
def vsplat(b, value):
    return splat(b, value)


@operation(vec, vec, vec)
def vadd(b, x, y):
    return b.fadd(x, y)


@operation(vec, vec, vec)
def vsub(b, x, y):
    return b.fsub(x, y)


@operation(vec, vec, vec)
def vmul(b, x, y):
    return b.fmul(x, y)


@operation(vec, vec, vec)
def vdiv(b, x, y):
    return b.fdiv(x, y)


@operation(vec, vec, vec, vec)
def vfma(b, x, y, z):
    """``x * y + z``"""
    return fma(b, x, y, z)


@operation(vec, vec, vec)
def vmax(b, x, y):
    """The larger of each lane; ``y`` where ``x`` is NaN."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


@operation(vec, vec, f32, f32)
def vclamp(b, x, low, high):
    """``x`` limited to ``low .. high``; NaN stays."""
    low, high = splat(b, low), splat(b, high)
    x = b.select(b.fcmp_ordered("<", x, low), low, x)
    return b.select(b.fcmp_ordered(">", x, high), high, x)


@operation(vec, vec)
def vabs(b, x):
    return b.bitcast(b.and_(b.bitcast(x, INTS), lanes_of(I32, 0x7FFFFFFF)), FLOATS)


@operation(vec, vec, i64, f32)
def vkeep(b, x, count, fill):
    """``x`` in the first ``count`` lanes, ``fill`` in the others."""
    lanes = vector(I64, list(range(LANES)))
    return b.select(b.icmp_signed("<", lanes, splat(b, count)), x, splat(b, fill))


@operation(f32, vec)
def vsum(b, x):
    """Sum of all lanes, folded in halves."""
    return b.extract_element(fold_rows(b, [x]), ir.Constant(I32, 0))


@operation(f32, vec)
def vfirst(b, x):
    """Lane 0."""
    return b.extract_element(x, ir.Constant(I32, 0))


@operation(vec, vec)
def vround(b, x):
    """Nearest integer, ties to even."""
    return call(b, f"llvm.rint.v{LANES}f32", FLOATS, [x])


@operation(vec, vec)
def vexp(b, x):
    """``e ** x`` within 2 units in the last place; 0 below -87.3, and finite above 88.3.

    ``2 ** n`` times a polynomial in the remainder ``|r| <= ln(2) / 2`` (coefficients of Cephes).
    """
    tiny = b.fcmp_ordered("<", x, lanes_of(F32, -87.3))
    x = b.select(b.fcmp_ordered(">", x, lanes_of(F32, 88.3)), lanes_of(F32, 88.3), x)
    x = b.select(tiny, lanes_of(F32, -87.3), x)
    n = call(b, f"llvm.rint.v{LANES}f32", FLOATS, [b.fmul(x, lanes_of(F32, 1.4426950408889634))])
    r = fma(b, n, lanes_of(F32, -0.693359375), x)
    r = fma(b, n, lanes_of(F32, 2.12194440e-4), r)
    p = lanes_of(F32, 1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(b, p, r, lanes_of(F32, c))
    p = b.fadd(fma(b, p, b.fmul(r, r), r), lanes_of(F32, 1.0))
    exponent = b.shl(b.add(b.fptosi(n, INTS), lanes_of(I32, 127)), lanes_of(I32, 23))
    return b.select(tiny, lanes_of(F32, 0.0), b.fmul(p, b.bitcast(exponent, FLOATS)))


@inline
def _one_and_exp_of_minus(x):
    return vadd(vsplat(f32(1.0)), vexp(vsub(vsplat(f32(0.0)), x)))


@inline
def vsilu(x):
    """``x / (1 + e ** -x)``"""
    return vdiv(x, _one_and_exp_of_minus(x))


@inline
def vsigmoid(x):
    """``1 / (1 + e ** -x)``"""
    return vdiv(vsplat(f32(1.0)), _one_and_exp_of_minus(x))


@operation(f32, vec)
def vhmax(b, x):
    """Largest lane."""
    width = LANES
    while width > 1:
        width //= 2
        swapped = b.shuffle_vector(x, x, vector(I32, [i ^ width for i in range(LANES)]))
        x = b.select(b.fcmp_ordered(">", x, swapped), x, swapped)
    return b.extract_element(x, ir.Constant(I32, 0))


@inline
def load_some(address, count):
    """`vload` of the first ``count`` elements, all of them if there are enough."""
    return vload(address) if count >= LANES else vload_n(address, count)


@inline
def store_some(address, value, count):
    """`vstore` of the first ``count`` lanes, all of them if so many are wanted."""
    if count >= LANES:
        vstore(address, value)
    else:
        vstore_n(address, value, count)


@inline
def copy_row(source, count, to):
    """Copy ``count`` fp32."""
    for i in range(0, count, LANES):
        store_some(to + 4 * i, load_some(source + 4 * i, count - i), count - i)
