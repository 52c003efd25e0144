"""The micro-kernel of the gated delta rules: a strip of columns of a head's state, token by token.

Columns of a state never meet, so a strip lives on its own and stays in L1 while the tokens of a
step pass over it. Lanes run along the columns and rows are added one after the other: a column's
bits depend neither on the strip nor on how tokens are cut into calls. One pass over the strip
updates it for a token, reads that token's output and projects the state on the next token's key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compile import compile_native, named
from .machine import LANES
from .vector_ir import F32, FLOATS, const, fma, load, splat, store, zero_variable

i64 = types.int64

STRIP = 2 * LANES
"""Columns: enough chains of additions to hide their latency, and 128 rows fit in half of L1."""

_VECTORS = STRIP // LANES


class _Rows(NamedTuple):
    """Rows of fp32 vectors: address of the first, bytes from one to the next."""

    address: object
    stride: object

    def at(self, b, index):
        return b.add(self.address, b.mul(self.stride, index))


class _Operands(NamedTuple):
    """The strip while it is worked on, and the tokens.

    ``decays``: one a token, or ``num_rows`` if they are by channel.
    """

    work: _Rows
    num_rows: object
    keys: _Rows
    values: _Rows
    decays: object
    by_channel: bool
    betas: object
    queries: _Rows | None
    out: _Rows | None

    def decay(self, b, token, row):
        """Of a row of the state, in every lane."""
        if not self.by_channel:
            return _element(b, self.decays, token)
        return _element(b, self.decays, b.add(b.mul(token, self.num_rows), row))

    def reading(self, b, token, row):
        """The factor of a row in what a token's key reads: before the decay of all, or behind those
        of its channel."""
        key = _element(b, self.keys.at(b, token), row)
        return b.fmul(self.decay(b, token, row), key) if self.by_channel else key


@functools.cache
def read_strip(by_channel: bool = False) -> int:
    """Native ``(source, source_stride, target, target_stride, work, num_rows, num_tokens, keys,
    key_stride, values, value_stride, decays, betas, queries, query_stride, out, out_stride)``: pass
    ``num_tokens`` (at least 1) over a strip ``[num_rows, STRIP]`` of the state::

        S <- decay S;  d = beta (v - S^T k);  S <- S + k d^T;  out = S^T q

    ``source``: the strip before, ``target``: where it goes, which may be the same; ``work``:
    scratch memory of ``num_rows`` x ``STRIP``, or the target if nobody wants it. ``keys`` and
    ``queries`` have ``num_rows`` columns, ``values`` and ``out`` ``STRIP``; ``decays`` and
    ``betas`` are one fp32 a token; ``by_channel``, ``decays`` are ``num_rows`` a token, one for
    each row of S. Addresses of fp32; strides of rows in bytes.
    """
    return compile_native(_strip(1, int(by_channel)))


@functools.cache
def update_strip(by_channel: bool = False) -> int:
    """Native as `read_strip`, for tokens of which no output is wanted."""
    return compile_native(_strip(0, int(by_channel)))


def _strip(has_output: int, by_channel: int) -> Callable[..., None]:
    def strip(
        source, source_stride, target, target_stride, work, num_rows, num_tokens, keys, key_stride,
        values, value_stride, decays, betas, queries, query_stride, out, out_stride,
    ):
        _delta_tile(
            has_output, by_channel, source, source_stride, target, target_stride, work, num_rows,
            num_tokens, keys, key_stride, values, value_stride, decays, betas, queries,
            query_stride, out, out_stride,
        )

    return named(strip, f"{has_output}{by_channel}")


@intrinsic(prefer_literal=True)
def _delta_tile(
    typing_context, has_output, by_channel, source, source_stride, target, target_stride, work,
    num_rows, num_tokens, keys, key_stride, values, value_stride, decays, betas, queries,
    query_stride, out, out_stride,
):
    """`read_strip`, or without ``has_output`` `update_strip`; both flags are literal 0 or 1."""
    reads, channels = bool(has_output.literal_value), bool(by_channel.literal_value)

    def generate(context, b, signature, args):
        source, source_stride, target, target_stride, work, num_rows, num_tokens = args[2:9]
        keys, values, decays, betas = _Rows(*args[9:11]), _Rows(*args[11:13]), args[13], args[14]
        read = (_Rows(*args[15:17]), _Rows(*args[17:19])) if reads else (None, None)
        work = _Rows(work, const(4 * STRIP))
        tokens = _Operands(work, num_rows, keys, values, decays, channels, betas, *read)
        before, after = _Rows(source, source_stride), _Rows(target, target_stride)
        _emit(b, before, after, num_tokens, tokens)
        return context.get_dummy_value()

    return types.void(has_output, by_channel, *[i64] * 17), generate


def _emit(b, before, after, num_tokens, tokens):
    seen = _zeros(b)  # S^T k of the token that comes next, see `_Operands.reading`
    with cgutils.for_range(b, tokens.num_rows) as loop:
        key = tokens.reading(b, const(0), loop.index)
        for v, total in enumerate(seen):
            state = load(b, FLOATS, before.at(b, loop.index), 4 * LANES * v)
            b.store(fma(b, key, state, b.load(total, typ=FLOATS)), total)
            store(b, state, tokens.work.at(b, loop.index), 4 * LANES * v)
    last = b.sub(num_tokens, const(1))
    with cgutils.for_range(b, last) as loop:
        following = b.add(loop.index, const(1))
        _pass(b, tokens, loop.index, seen, tokens.work, following)
    _pass(b, tokens, last, seen, after, None)


def _zeros(b):
    return [zero_variable(b) for _ in range(_VECTORS)]


def _element(b, address, index):
    """An fp32 in every lane."""
    return splat(b, load(b, F32, address, b.mul(index, const(4))))


def _pass(b, tokens, token, seen, target, following):
    """One token; ``following`` is the one after it, or None."""
    decay, beta = tokens.decay(b, token, const(0)), _element(b, tokens.betas, token)
    deltas = []
    for v, projected in enumerate(seen):
        value = load(b, FLOATS, tokens.values.at(b, token), 4 * LANES * v)
        read = b.load(projected, typ=FLOATS)
        error = b.fsub(value, read if tokens.by_channel else b.fmul(decay, read))
        deltas.append(b.fmul(beta, error))
    for projected in seen:
        b.store(FLOATS(None), projected)
    outputs = _zeros(b)
    with cgutils.for_range(b, tokens.num_rows) as loop:
        key = _element(b, tokens.keys.at(b, token), loop.index)
        sums = []
        if tokens.queries:
            sums.append((_element(b, tokens.queries.at(b, token), loop.index), outputs))
        if following:
            sums.append((tokens.reading(b, following, loop.index), seen))
        if tokens.by_channel:
            decay = tokens.decay(b, token, loop.index)
        for v, delta in enumerate(deltas):
            state = load(b, FLOATS, tokens.work.at(b, loop.index), 4 * LANES * v)
            state = fma(b, key, delta, b.fmul(decay, state))
            store(b, state, target.at(b, loop.index), 4 * LANES * v)
            for factor, totals in sums:
                b.store(fma(b, factor, state, b.load(totals[v], typ=FLOATS)), totals[v])
    if tokens.out:
        for v, total in enumerate(outputs):
            store(b, b.load(total, typ=FLOATS), tokens.out.at(b, token), 4 * LANES * v)
