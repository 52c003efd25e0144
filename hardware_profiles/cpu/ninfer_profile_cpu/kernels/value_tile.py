"""The second micro-kernel: weighted sums of value rows, ``P V`` of attention.

Lanes run along the head dimension and keys are added one after the other, so an output's bits do
not depend on the shape of its tile.
"""

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .machine import LANES
from .vector_ir import F32, FLOATS, const, fma, load, splat, store, zero_variable

i64 = types.int64


@intrinsic(prefer_literal=True)
def value_tile(
    typing_context, num_rows, num_vectors,
    weights, weights_stride, values, values_stride, num_keys, out, out_stride, old_scale, new_scale,
):
    """``out[r] = old_scale[r] * out[r] + new_scale[r] * sum_j weights[r, j] * values[j]``

    for ``num_rows`` rows (literal) and a strip of ``num_vectors`` vectors of columns (literal).
    Addresses of fp32; strides in bytes; scales are one fp32 a row.
    """
    rows, vectors = num_rows.literal_value, num_vectors.literal_value

    def generate(context, b, signature, args):
        _emit(b, rows, vectors, *args[2:])
        return context.get_dummy_value()

    return types.void(num_rows, num_vectors, *[i64] * 9), generate


def _emit(
    b, rows, vectors, weights, weights_stride, values, values_stride, num_keys, out, out_stride,
    old, new,
):
    sums = [[zero_variable(b) for _ in range(vectors)] for _ in range(rows)]
    lines = [b.add(weights, b.mul(const(r), weights_stride)) for r in range(rows)]
    with cgutils.for_range(b, num_keys) as loop:
        key = b.add(values, b.mul(loop.index, values_stride))
        strip = [load(b, FLOATS, key, 4 * LANES * v) for v in range(vectors)]
        for line, row in zip(lines, sums, strict=True):
            weight = splat(b, load(b, F32, line, b.mul(loop.index, const(4))))
            for total, value in zip(row, strip, strict=True):
                b.store(fma(b, weight, value, b.load(total, typ=FLOATS)), total)
    for r, row in enumerate(sums):
        keep, add = splat(b, load(b, F32, old, 4 * r)), splat(b, load(b, F32, new, 4 * r))
        to = b.add(out, b.mul(const(r), out_stride))
        for v, total in enumerate(row):
            kept = b.fmul(load(b, FLOATS, to, 4 * LANES * v), keep)
            store(b, fma(b, b.load(total, typ=FLOATS), add, kept), to, 4 * LANES * v)
