"""Norms and gates: one program for a row or a head, sums in fp32. Weights, which nothing writes,
are loaded before `wait`."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.products import UNLIMITED


@triton.jit
def load_row(row, WIDTH: tl.constexpr, PIECE: tl.constexpr):
    """``WIDTH`` components in pieces ``[PIECE]``, the last filled up with zeros."""
    pieces: tl.tuple = ()
    for begin in tl.static_range(0, WIDTH, PIECE):
        i = begin + tl.arange(0, PIECE)
        if WIDTH % PIECE == 0:
            piece = tl.load(row + i)
        else:
            piece = tl.load(row + i, mask=i < WIDTH, other=0.0)
        pieces += (piece,)
    return pieces


@triton.jit
def rmsnorm(
    x, weight, out, x_stride, out_stride, eps, offset, WIDTH: tl.constexpr, PIECE: tl.constexpr,
):
    """One group of ``WIDTH`` components of one token; or all of them."""
    t, group = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH
    scales = load_row(weight + group, WIDTH, PIECE)
    wait()
    release()
    row = load_row(x + t * x_stride + group, WIDTH, PIECE)
    squares = tl.zeros((PIECE,), tl.float32)
    for p in tl.static_range(len(row)):
        piece = row[p].to(tl.float32)
        squares += piece * piece
    factor = 1 / tl.sqrt(tl.sum(squares) / WIDTH + eps)
    for p in tl.static_range(len(row)):
        piece = row[p].to(tl.float32) * factor * (scales[p].to(tl.float32) + offset)
        i = p * PIECE + tl.arange(0, PIECE)
        at = out + t * out_stride + group + i
        if WIDTH % PIECE == 0:
            tl.store(at, piece.to(out.dtype.element_ty))
        else:
            tl.store(at, piece.to(out.dtype.element_ty), mask=i < WIDTH)


@triton.jit
def gated_rmsnorm(
    x, gate, weight, out, x_stride, gate_stride, out_stride, num_heads, width, eps,
    SILU: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):
    """``HEADS`` heads of one token."""
    t = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    i = tl.arange(0, BLOCK)
    live = (head < num_heads) & (i < width)[None, :]
    at = head * width + i[None, :]
    scale = tl.load(weight + i, mask=i < width, other=0.0).to(tl.float32)[None, :]
    wait()
    release()
    row = tl.load(x + t * x_stride + at, mask=live, other=0.0).to(tl.float32)
    by = tl.load(gate + t * gate_stride + at, mask=live, other=0.0).to(tl.float32)
    row = row / tl.sqrt(tl.sum(row * row, 1) / width + eps)[:, None] * scale
    opened = 1 / (1 + tl.exp(-by))
    row *= by * opened if SILU else opened
    tl.store(out + t * out_stride + at, row.to(out.dtype.element_ty), mask=live)


@triton.jit
def sigmoid_gate(
    x, gate, out, x_stride, gate_stride, out_stride, width, ONE: tl.constexpr, BLOCK: tl.constexpr,
):
    """``ONE``: a gate for the whole row."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < width
    row = tl.load(x + t * x_stride + i, mask=live, other=0.0).to(tl.float32)
    if ONE:
        by = tl.load(gate + t * gate_stride).to(tl.float32)
    else:
        by = tl.load(gate + t * gate_stride + i, mask=live, other=0.0).to(tl.float32)
    row /= 1 + tl.exp(-by)
    tl.store(out + t * out_stride + i, row.to(out.dtype.element_ty), mask=live)


@triton.jit
def gated_product(
    both, out, both_stride, out_stride, width, LIMIT: tl.constexpr, BLOCK: tl.constexpr,
):
    """``silu(gate) * up`` of rows that have the gates before the up projections, with a limit as of
    `products.gate`."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < width
    by = tl.load(both + t * both_stride + i, mask=live, other=0.0).to(tl.float32)
    up = tl.load(both + t * both_stride + width + i, mask=live, other=0.0).to(tl.float32)
    if LIMIT != UNLIMITED:
        by, up = tl.minimum(by, LIMIT), tl.clamp(up, -LIMIT, LIMIT)
    row = by / (1 + tl.exp(-by)) * up
    tl.store(out + t * out_stride + i, row.to(out.dtype.element_ty), mask=live)
