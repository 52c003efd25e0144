"""Norms and gates: one program for a row or a head, sums in fp32. Weights, which nothing writes,
are loaded before `wait`."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.products import UNLIMITED


@triton.jit
def normed_row(row, scale, width, eps):
    """A row of ``width`` components in fp32."""
    return row / tl.sqrt(tl.sum(row * row) / width + eps) * scale


@triton.jit
def rmsnorm(x, weight, out, x_stride, out_stride, width, eps, offset, BLOCK: tl.constexpr):
    """One group of ``width`` components of one token; or all of them."""
    t = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    live, at = i < width, tl.program_id(1) * width + i
    scale = tl.load(weight + at, mask=live, other=0.0).to(tl.float32) + offset
    wait()
    release()
    row = tl.load(x + t * x_stride + at, mask=live, other=0.0).to(tl.float32)
    row = normed_row(row, scale, width, eps)
    tl.store(out + t * out_stride + at, row.to(out.dtype.element_ty), mask=live)


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
