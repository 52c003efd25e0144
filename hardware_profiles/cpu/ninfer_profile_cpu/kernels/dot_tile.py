"""The micro-kernel: dot products of a few weight rows with a few tokens.

Every matrix product of this profile is made of these tiles. Row n and token t are multiplied in
one vector accumulator, over k in natural order, and folded at the end in one fixed order. So the
bits of an output do not depend on the shape of the tile it was computed in, nor on how many tokens
came along: batch invariance by construction.
"""

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .decoders import decoder
from .machine import LANES
from .planes import Planes
from .vector_ir import (
    FLOATS,
    const,
    fma,
    fold_rows,
    load,
    prefetch_line,
    store,
    zero_variable,
)

i64 = types.int64

PREFETCH_ROWS = 8
"""How far ahead of a tile its weights are asked for."""


@intrinsic(prefer_literal=True)
def dot_tile(
    typing_context, fmt, num_rows, num_tokens,
    codes, codes_stride, high, high_stride, scales, scales_stride, minimums, minimums_stride,
    table, num_steps, x, x_stride, num_valid, out, out_stride,
):
    """``out[t, n] = sum_k w[n, k] * x[t, k]`` for ``num_rows`` x ``num_tokens`` (literals).

    Planes are given as the address of the first row and the stride of rows. ``num_steps`` whole
    steps are read of each row and of each row of ``x``. Strides are bytes. Only
    ``num_valid`` tokens are read; the others repeat the last one. On its way through its codes the
    tile asks for those of the rows `PREFETCH_ROWS` further on.
    """
    form, nt, tt = decoder(fmt.literal_value), num_rows.literal_value, num_tokens.literal_value

    def generate(context, b, signature, args):
        planes = list(zip(args[3:11:2], args[4:11:2], strict=True))
        ahead = [
            (b.add(start, b.mul(const(PREFETCH_ROWS), stride)), nt * nbytes)
            for (start, stride), nbytes in zip(planes[:2], form.step_bytes[:2], strict=True)
        ]
        _emit(b, form, nt, tt, planes, ahead, *args[11:])
        return context.get_dummy_value()

    return types.void(fmt, num_rows, num_tokens, *[i64] * 15), generate


@intrinsic(prefer_literal=True)
def dense_tile(
    typing_context, num_rows, num_tokens, rows, rows_stride, num_vectors, x, x_stride, num_valid,
    out, out_stride,
):
    """`dot_tile` of rows that are ``num_vectors`` whole vectors of fp32."""
    nt, tt = num_rows.literal_value, num_tokens.literal_value

    def generate(context, b, signature, args):
        rows, rows_stride, *others = args[2:]
        absent = [(const(0), const(0))] * 3
        _emit(b, decoder("fp32"), nt, tt, [(rows, rows_stride), *absent], [], const(0), *others)
        return context.get_dummy_value()

    return types.void(num_rows, num_tokens, *[i64] * 8), generate


def _emit(
    b, form, nt, tt, planes, ahead, table, num_steps, x, x_stride, num_valid, out, out_stride
):
    starts = [[b.add(p, b.mul(const(n), stride)) for p, stride in planes] for n in range(nt)]
    rows = [Planes(*start, table) for start in starts]
    tokens = [b.add(x, b.mul(_at_most(b, t, num_valid), x_stride)) for t in range(tt)]
    sums = [[zero_variable(b) for _ in range(nt)] for _ in range(tt)]
    with cgutils.for_range(b, num_steps) as loop:
        for start, nbytes in ahead:
            _prefetch(b, start, nbytes, loop.index)
        _accumulate(b, form, rows, tokens, sums, loop.index)
    for t in range(tt):
        totals = fold_rows(b, [b.load(s, typ=FLOATS) for s in sums[t]])
        store(b, totals, out, b.mul(const(t), out_stride))


def _at_most(b, token, num_valid):
    if token == 0:
        return const(0)
    is_valid = b.icmp_signed("<", const(token), num_valid)
    return b.select(is_valid, const(token), b.sub(num_valid, const(1)))


def _prefetch(b, start, nbytes, step):
    # A few lines at each step: asked for all at once, they would fill the queue of loads, and the
    # tile would wait for them. Rows lie one behind the other, so their lines are one run.
    at = b.add(start, b.mul(step, const(nbytes)))
    for offset in range(0, nbytes, 64):
        prefetch_line(b, at, offset)


def _accumulate(b, form, rows, tokens, sums, step):
    base = b.mul(step, const(form.step * 4))
    weights = [form.decode(b, row, step) for row in rows]
    for v in range(form.step // LANES):
        for t, token in enumerate(tokens):
            values = load(b, FLOATS, token, b.add(base, const(v * LANES * 4)))
            for n in range(len(rows)):
                total = b.load(sums[t][n], typ=FLOATS)
                b.store(fma(b, weights[n][v], values, total), sums[t][n])
